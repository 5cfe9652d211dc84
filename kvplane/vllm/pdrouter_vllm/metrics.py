"""What the plane shows in vLLM's /metrics and log. The scheduler gives a snapshot whenever it has changed; vLLM carries it to the
process that serves /metrics. The names are in docs/vllm.md.
"""

import dataclasses
from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from .legs import State


@dataclasses.dataclass
class PlaneStats(KVConnectorStats):
    """data: the newest snapshot."""

    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        self.data.update(other.data)
        return self

    def reduce(self):
        return {key: value for key, value in self.data.items() if value}

    def is_empty(self):
        return not self.data


class Snapshots:
    """Gives a snapshot when it differs from the one before."""

    def __init__(self, take):
        self._take = take
        self._last = None

    def stats(self):
        shot = self._take()
        if shot == self._last:
            return None
        self._last = shot
        return PlaneStats(shot)


def snapshot(legs):
    return {
        "legs": legs.open(),
        "held": legs.blocks(State.OFFERED),
        "pinned": legs.blocks(State.EXPECTED),
        "quarantined": legs.quarantined(),
        "written": legs.written,
        "ended": dict(legs.ended),
        "refused": dict(legs.refused),
    }


class PlaneMetrics(KVConnectorPromMetrics):
    """The series, fed with the scheduler's snapshots."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._values = per_engine_labelvalues
        self._counted: dict[tuple, float] = {}
        self._kept: set = set()  # what was in quarantine once: its series falls to 0
        gauge, counter = metric_types[Gauge], metric_types[Counter]

        def make(cls, name, text, *labels):
            return cls(name=name, documentation=text, labelnames=[*labelnames, *labels])

        self._held = make(gauge, "pdrouter_plane_held_blocks", "Blocks held for another engine.")
        self._pinned = make(gauge, "pdrouter_plane_pinned_blocks", "Blocks that wait for another engine's bytes, or may still get some.")
        self._quarantined = make(
            gauge, "pdrouter_plane_quarantined_blocks", "Blocks of failed transfers that a peer may still write into, by why they failed.", "peer", "reason"
        )
        self._legs = make(gauge, "pdrouter_plane_legs", "Legs of transfers in hand.", "state")
        self._written = make(counter, "pdrouter_plane_written_bytes", "Bytes written into other engines.")
        self._ended = make(counter, "pdrouter_plane_transfers", "Transfers that came to an end.", "ending")
        self._refused = make(counter, "pdrouter_plane_refused", "Legs that were served without a transfer.", "reason")

    def observe(self, transfer_stats_data, engine_idx=0):
        told = transfer_stats_data
        values = self._values[engine_idx]
        now = {(peer, reason): blocks for peer, of in told["quarantined"].items() for reason, blocks in of.items()}
        self._kept |= set(now)
        for key in self._kept:
            self._quarantined.labels(*values, *key).set(now.get(key, 0))
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
