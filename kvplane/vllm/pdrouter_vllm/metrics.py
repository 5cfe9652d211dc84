"""What the plane shows in vLLM's /metrics and log. The scheduler gives a snapshot whenever it has changed, a rank at most once a
second; vLLM carries them to the process that serves /metrics. The names are in docs/vllm.md.
"""

import dataclasses
import time
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from .legs import State

PERIOD = 1.0  # s; asking a rank's agent may take some ms


@dataclasses.dataclass
class PlaneStats(KVConnectorStats):
    """data: the newest snapshot of each rank and of the scheduler, by who it is from."""

    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        self.data.update(other.data)
        return self

    def reduce(self):
        return {f"{who} {key}": value for who, shot in self.data.items() for key, value in shot.items() if value}

    def is_empty(self):
        return not self.data


class Snapshots:
    """Gives a snapshot when there is a new one and a period, in seconds, has passed, or at once where an engine may be idle for long
    afterwards: what it shows then must be true."""

    def __init__(self, who, take, period=PERIOD, clock=time.monotonic):
        self._who, self._take, self._period, self._clock = who, take, period, clock
        self._next, self._last = 0.0, None

    def stats(self, at_once=False):
        now = self._clock()
        if now < self._next and not at_once:
            return None
        self._next = now + self._period
        shot = self._take()
        if shot == self._last:
            return None
        self._last = shot
        return PlaneStats({self._who: shot})


def rank_snapshot(status):
    """What of a rank's status is shown. status: as the library gives it."""
    agent = status.get("agent") or status
    return {"quarantined": {peer: q.get("blocks", 0) for peer, q in (agent.get("quarantined") or {}).items()}}


def scheduler_snapshot(legs):
    return {
        "legs": legs.open(),
        "held": legs.blocks(State.OFFERED),
        "pinned": legs.blocks(State.EXPECTED),
        "written": legs.written,
        "ended": dict(legs.ended),
        "refused": dict(legs.refused),
    }


class PlaneMetrics(KVConnectorPromMetrics):
    """The series, fed with the snapshots of all ranks and the scheduler."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._values = per_engine_labelvalues
        self._shots: dict[int, dict[str, dict]] = {}
        self._counted: dict[tuple, float] = {}
        self._peers: set = set()
        gauge, counter = metric_types[Gauge], metric_types[Counter]

        def make(cls, name, text, *labels):
            return cls(name=name, documentation=text, labelnames=[*labelnames, *labels])

        self._held = make(gauge, "pdrouter_plane_held_blocks", "Blocks held for another engine.")
        self._pinned = make(gauge, "pdrouter_plane_pinned_blocks", "Blocks that wait for another engine's bytes, or may still get some.")
        self._quarantined = make(
            gauge, "pdrouter_plane_quarantined_blocks", "Blocks of failed transfers that a peer may still write into, summed over ranks.", "peer"
        )
        self._legs = make(gauge, "pdrouter_plane_legs", "Legs of transfers in hand.", "state")
        self._written = make(counter, "pdrouter_plane_written_bytes", "Bytes written into other engines.")
        self._ended = make(counter, "pdrouter_plane_transfers", "Transfers that came to an end.", "ending")
        self._refused = make(counter, "pdrouter_plane_refused", "Legs that were served without a transfer.", "reason")

    def observe(self, transfer_stats_data, engine_idx=0):
        shots = self._shots.setdefault(engine_idx, {})
        shots.update(transfer_stats_data)
        values = self._values[engine_idx]
        ranks = [shot for who, shot in shots.items() if who != "scheduler"]
        now = {}
        for r in ranks:
            for peer, blocks in r["quarantined"].items():
                now[peer] = now.get(peer, 0) + blocks
        for peer in self._peers | set(now):
            self._quarantined.labels(*values, peer).set(now.get(peer, 0))
        self._peers |= set(now)
        told = shots.get("scheduler")
        if told is None:
            return
        self._held.labels(*values).set(told["held"])
        self._pinned.labels(*values).set(told["pinned"])
        self._raise(self._written, values, told["written"])
        for state, n in told["legs"].items():
            self._legs.labels(*values, state).set(n)
        for metric, counts in ((self._ended, told["ended"]), (self._refused, told["refused"])):
            for label, n in counts.items():
                self._raise(metric, [*values, label], n)

    def _raise(self, metric, values, total):
        """Lets a counter rise to a total that is counted elsewhere."""
        key = (metric, *values)
        metric.labels(*values).inc(max(total - self._counted.get(key, 0), 0))
        self._counted[key] = total
