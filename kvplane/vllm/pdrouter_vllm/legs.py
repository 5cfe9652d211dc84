"""The scheduler's side: what becomes of each leg, from its arrival until vLLM has its blocks back.

Legs is called from vLLM's scheduler only and knows nothing of vLLM: requests are ids, blocks are numbers. The library's scheduler
handle decides what is released, failed, closed and freed. Rules that everything here keeps:
  - blocks that were expected go back to vLLM with RELEASED or CLOSED and with nothing else, whatever becomes of the request;
  - blocks that were offered go back with FREED and with nothing else;
  - vLLM is told once for each, and never of a request whose blocks it does not hold for a transfer.
"""

import dataclasses
import enum
import time

from .library import DECODE, PREFILL, Code, Kind, LibraryError
from .params import BadParams, Handoff, parse_params
from .passing import Orders

RENEW = 60.0  # s; how often the plane hears that a leg still waits for blocks
REST = 0.004  # s; how long the rank may wait for the plane in a step that computes nothing
LIVELY = 16  # steps without anything to do, before it waits
NULL_BLOCK = 0  # stands in a table where a sliding window has passed


class State(enum.Enum):
    ADMITTED = "admitted"  # prefill: it computes. Decode: it waits for blocks
    EXPECTED = "expected"  # decode: blocks are registered; they are pinned
    OFFERED = "offered"  # prefill: blocks are held for the other engine


@dataclasses.dataclass
class Leg:
    request: str
    handoff: Handoff
    prompt: list
    state: State = State.ADMITTED
    renew: float = 0.0  # decode, no blocks yet: when the plane is to hear so again; 0 is at once
    local: int = 0  # tokens that decode holds already
    own: tuple = ()  # (first token, ids) per group: what was registered
    failed: str = ""  # why its blocks are not there, as vLLM was told
    whole: bool = False  # or is to be told that none of the request is
    left: bool = False  # nobody waits for it any more


class Legs:
    """All legs of one engine."""

    def __init__(self, plane, role, block_tokens, groups, log, keep=0, rests=False, clock=time.monotonic):
        """plane: the library's scheduler handle. role: the legs that are served, a set of PREFILL and DECODE. groups: how many the
        cache has. keep: how many tokens at the prompt's end decode computes itself. rests: the rank waits for the plane where there is nothing to do, since it
        is in this process."""
        self._plane = plane
        self._role = role
        self._block = block_tokens
        self._groups = groups
        self._keep = keep
        self._rests = rests
        self._log = log
        self._clock = clock
        self._by_request: dict[str, Leg] = {}
        self._by_id: dict[bytes, Leg] = {}
        self._seq = 0
        self._failed_blocks: list[int] = []
        self._failed: list[str] = []
        self._closed: list[str] = []
        self._received: set[str] = set()  # for vLLM: their KV is here
        self._sent: set[str] = set()  # for vLLM: their blocks may be freed
        self._still = 0  # steps in a row with nothing to do
        self.broken = ""  # why the plane serves no legs any more
        self.refused: dict[str, int] = {}  # legs that the plane does not serve, by reason
        self.ended: dict[str, int] = {}  # transfers, by how they ended here
        self.written = 0  # bytes, into other engines

    # What vLLM's scheduler says of a request.

    def arrived(self, request, params, prompt, unfit="", over=False):
        """A request has come. It is a leg if its params make it one; else, or where the plane refuses, it is served alone. unfit: why
        it cannot be handed over, whatever its params. over: it ends at once, and is only here so that its end is heard: vLLM's server
        makes such a one of each leg that it turns away or whose client has left."""
        try:
            handoff = parse_params(params)
        except BadParams as err:
            self._refuse(request, "params", err)
            return
        if handoff is None:
            return
        if handoff.leg not in self._role:
            self._refuse(request, "role", "this engine's kv_role has no such leg")
        elif unfit:
            self._refuse(request, "unfit", unfit)
        elif self.broken:
            self._refuse(request, "broken", self.broken)
        elif handoff.id in self._by_id or request in self._by_request:
            if over:
                return
            self._refuse(request, "known", "its transfer is in use")
        else:
            try:
                self._plane.admit(handoff.leg, handoff.id, handoff.peer, handoff.generation, handoff.ticket)
            except LibraryError as err:
                if over:
                    return
                why = {Code.TICKET: "ticket", Code.EARLY: "early", Code.KNOWN: "known", Code.FULL: "full"}
                self._refuse(request, why.get(err.code, "error"), err.text or err)
                return
            leg = Leg(request, handoff, prompt)
            self._by_request[request] = self._by_id[handoff.id] = leg

    def matched(self, request, local):
        """How many tokens beyond the local ones come from the other engine; 0 for none."""
        leg = self._by_request.get(request)
        if leg is None or leg.handoff.leg != DECODE or leg.state != State.ADMITTED:
            return 0
        leg.local = local
        return max(len(leg.prompt) - self._keep - local, 0)

    def allocated(self, request, tables, external):
        """A request has blocks, a table per group; external of its tokens are to come from the other engine."""
        leg = self._by_request.get(request)
        if leg is None or leg.handoff.leg != DECODE or leg.state != State.ADMITTED:
            return
        if external <= 0:
            self._alone(leg, "decode needs nothing of it")
            return
        h, need = leg.handoff, (leg.local, leg.local + external)
        try:
            leg.own = own_blocks(tables, self._block, *need)
            self._plane.expect(h.id, h.peer, h.generation, need, leg.own, leg.prompt, h.valid_ms)
        except (LibraryError, ValueError) as err:  # nothing is registered, but vLLM waits by now
            self._log.warning("transfer %s is not expected: %s", h.id.hex(), err)
            self._drop(leg)
            self._fail(leg, "refused")
            self._close(leg)
            return
        leg.state = State.EXPECTED

    def finished(self, request, whole, computed, tables):
        """A request has ended, whole or not, with so many tokens computed into these blocks. Returns whether its blocks are held, and
        what the gateway is told."""
        leg = self._by_request.get(request)
        if leg is None:
            return False, None
        if leg.state == State.EXPECTED:  # vLLM holds the blocks of a request that waits, until it is told
            leg.left = True
            self._cancel(leg, "the request has ended")
            return False, None
        if leg.handoff.leg == DECODE or not whole or computed < len(leg.prompt):
            self._alone(leg, "the request has ended")
            return False, None
        h, n = leg.handoff, len(leg.prompt)
        try:
            leg.own = own_blocks(tables, self._block, 0, n)
            self._plane.offer(h.id, h.peer, h.generation, n, leg.own, leg.prompt)
        except (LibraryError, ValueError) as err:
            self._log.warning("transfer %s is not offered: %s", h.id.hex(), err)
            self._alone(leg, "it cannot be offered")
            return False, None
        leg.state = State.OFFERED
        return True, {"transfer_id": h.id.hex(), "num_tokens": n}

    # Once in each step.

    def step(self, computes=True):
        """Returns what every rank is told in this step, which computes something or not."""
        now = self._clock()
        for leg in self._by_request.values():
            if leg.handoff.leg == DECODE and leg.state == State.ADMITTED and leg.renew <= now:
                leg.renew = now + RENEW
                self._try("queue", leg.handoff.id, leg.handoff.peer, leg.handoff.generation)
        self._take()
        self._seq += 1
        out = Orders(
            seq=self._seq,
            plane=self._plane.orders(),
            failed_blocks=tuple(self._failed_blocks),
            failed=tuple(self._failed),
            closed=tuple(self._closed),
            answer=bool(self._received or self._sent),
        )
        self._failed_blocks, self._failed, self._closed = [], [], []
        self._still = 0 if computes or out.plane or out.failed_blocks or out.closed or out.answer else self._still + 1
        out.rest = REST if self._rests and self._still > LIVELY else 0.0
        return out

    def heard(self, reports, broken=""):
        """Takes what the ranks have said, and returns the requests whose KV is here and those whose blocks may be freed. broken: why a
        rank is of no more use."""
        if broken:
            self._break(broken)
        for report in reports:
            if report:
                self._plane.hear(report)
                self._still = 0
        self._take()
        received, sent = self._received, self._sent
        self._received, self._sent = set(), set()
        return received, sent

    def pending(self):
        """Whether there is something to tell vLLM or the ranks that needs another step."""
        return bool(self._received or self._sent or self._closed or self._failed or self._failed_blocks)

    def open(self):
        """How many legs there are, by state."""
        out = {state.value: 0 for state in State}
        for leg in self._by_id.values():
            out[leg.state.value] += 1
        return out

    def blocks(self, state):
        """How many blocks the legs in a state have with the plane."""
        return sum(len(ids) for leg in self._by_id.values() if leg.state == state for _, ids in leg.own)

    def quarantined(self):
        """How many blocks of failed transfers the other engine may still write into, by its name and why they failed."""
        out = {}
        for leg in self._by_id.values():
            why = leg.failed or ("stopped" if leg.left else "")  # of its own cancel a scheduler hears at the end alone
            if leg.state == State.EXPECTED and why:
                of = out.setdefault(leg.handoff.peer, {})
                of[why] = of.get(why, 0) + sum(len(ids) for _, ids in leg.own)
        return out

    # What the library says.

    def _take(self):
        for r in self._plane.poll():
            leg = self._by_id.get(r.id)
            if r.kind == Kind.BROKEN:
                self._break(r.text or "broken")
            elif leg is None:
                continue
            elif r.kind == Kind.RELEASED and leg.state == State.EXPECTED:
                self._drop(leg)
                self._received.add(leg.request)
                self._count("released")
            elif r.kind == Kind.FAILED:  # the library tells the other ranks
                self._log.warning("transfer %s has failed: %s", leg.handoff.id.hex(), r.text)
                if leg.state == State.EXPECTED:
                    self._fail(leg, r.reason)
                elif leg.state == State.ADMITTED:  # it was only queued: decode computes the prompt itself
                    self._drop(leg)
                    self._count("lapsed")
            elif r.kind == Kind.CLOSED and leg.state == State.EXPECTED:
                self._fail(leg, r.reason)  # a failure that was not told before
                self._close(leg)
                self._drop(leg)
            elif r.kind == Kind.FREED and leg.state == State.OFFERED:
                if r.reason:
                    self._log.info("transfer %s: blocks are free, the other engine went without: %s", leg.handoff.id.hex(), r.text)
                self._drop(leg)
                self._sent.add(leg.request)
                self.written += r.bytes
                self._count("freed_" + r.reason if r.reason else "freed")
            elif r.kind == Kind.CANCELLED and leg.state == State.ADMITTED:
                self._drop(leg)  # the request goes on until its client is gone, without the plane
                self._count("cancelled")

    def _fail(self, leg, reason):
        """vLLM hears that the blocks are not there; they stay pinned."""
        if leg.failed:
            return
        leg.failed = reason or "cancelled"
        self._count("failed_" + leg.failed)
        if leg.left:
            return
        blocks = [b for _, ids in leg.own for b in ids]
        if self._groups == 1 and blocks:
            self._failed_blocks += blocks
        else:  # by name, and only when nothing lands any more: all of it is computed again
            leg.whole = True

    def _close(self, leg):
        """vLLM hears that it has the blocks back. It goes by the ranks, behind what has failed."""
        if leg.whole:
            self._failed.append(leg.request)
        self._closed.append(leg.request)

    def _break(self, why):
        """The plane takes no legs any more. Orders and reports go on: each leg under way comes to its end by them, since a rank that is
        broken still says what becomes of the blocks."""
        if self.broken:
            return
        self._log.error("the plane is broken, requests are served alone from here on: %s", why)
        self.broken = why
        for leg in [leg for leg in self._by_id.values() if leg.state == State.ADMITTED]:
            self._alone(leg, "the plane is broken")

    # Small things.

    def _alone(self, leg, why):
        """The leg is served without the plane, or not at all; the other engine is told so."""
        self._cancel(leg, why)
        self._drop(leg)
        self._count("alone")

    def _cancel(self, leg, why):
        self._try("cancel", leg.handoff.id, why)

    def _try(self, name, *args):
        try:
            getattr(self._plane, name)(*args)
        except LibraryError as err:
            self._log.warning("%s", err)

    def _refuse(self, request, why, text):
        self.refused[why] = self.refused.get(why, 0) + 1
        self._log.warning("request %s is served without a transfer: %s: %s", request, why, text)

    def _drop(self, leg):
        self._by_request.pop(leg.request, None)
        self._by_id.pop(leg.handoff.id, None)

    def _count(self, ending):
        self.ended[ending] = self.ended.get(ending, 0) + 1


def own_blocks(tables, block, begin, end):
    """The blocks of each group that hold tokens [begin, end), with the token where they begin. What a sliding window has passed is
    left out. begin must be a multiple of the block size: blocks in front of it may be others' as well."""
    if begin % block:
        raise ValueError(f"{begin} tokens are held already; want a multiple of {block}")
    out = []
    for table in tables:
        ids = list(table[begin // block : -(-end // block)])
        if len(ids) < -(-end // block) - begin // block:
            raise ValueError(f"{len(table)} blocks of {block} do not hold {end} tokens")
        passed = 0
        while passed < len(ids) and ids[passed] == NULL_BLOCK:
            passed += 1
        ids = ids[passed:]
        if not ids or NULL_BLOCK in ids:
            raise ValueError("the table has holes")
        out.append((begin + passed * block, ids))
    return tuple(out)
