"""Fakes of the library's handles, by what pdkv.h says of them, and of vLLM's scheduler, by what it does with the connector."""

import logging

from pdrouter_vllm.legs import Legs
from pdrouter_vllm.library import DECODE, PREFILL, Code, Kind, LibraryError, Result
from pdrouter_vllm.passing import Reports

BLOCK = 4
QUIET = logging.getLogger("quiet")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


def params(ident, leg, **more):
    return {
        "do_remote_decode": leg == PREFILL, "do_remote_prefill": leg == DECODE, "transfer_id": ident.hex(),
        "peer": {"engine": "other-0", "generation": 7}, "valid_ms": 5000, **more,
    }  # fmt: skip


def ident(n):
    return n.to_bytes(16, "big")


class FakeScheduler:
    """The library's scheduler handle. What becomes of a transfer is decided by whoever drives the test: release, fail, close, free."""

    def __init__(self):
        self.calls = []
        self.refuse = {}  # name of a call -> the error that it raises next
        self.transfers = {}  # id -> "admitted", "queued", "lapsed", "expected", "failing", "offered"
        self.results = []
        self.told = b""

    def _called(self, name, ident, *args):
        self.calls.append((name, ident, *args))
        if name in self.refuse:
            raise self.refuse.pop(name)

    def admit(self, leg, ident, peer, generation, ticket):
        if ident in self.transfers:
            raise LibraryError("admit", Code.KNOWN, "in use")
        self._called("admit", ident, leg, peer, generation, ticket)
        self.transfers[ident] = "admitted"

    def queue(self, ident, peer, generation):
        self._called("queue", ident)
        self.transfers[ident] = "queued"

    def expect(self, ident, peer, generation, need, groups, prompt, wait_ms):
        self._called("expect", ident, need, groups, wait_ms)
        if self.transfers.get(ident) == "lapsed":
            raise LibraryError("expect", Code.STATE, "it has failed while it was queued")
        if self.transfers.get(ident) not in ("admitted", "queued"):
            raise LibraryError("expect", Code.ARGUMENT, "not admitted")
        self.transfers[ident] = "expected"
        self.told += b"e"

    def offer(self, ident, peer, generation, tokens, groups, prompt):
        self._called("offer", ident, tokens, groups)
        if self.transfers.get(ident) != "admitted":
            raise LibraryError("offer", Code.ARGUMENT, "not admitted")
        self.transfers[ident] = "offered"
        self.told += b"o"

    def cancel(self, ident, why):
        self._called("cancel", ident)
        state = self.transfers.get(ident)
        if state == "expected":
            self.transfers[ident] = "failing"
        elif state in ("admitted", "queued"):
            del self.transfers[ident]
        self.told += b"c"

    def orders(self):
        told, self.told = self.told, b""
        return told

    def hear(self, report):
        pass

    def poll(self):
        out, self.results = self.results, []
        for ident in [i for i, state in self.transfers.items() if state == "lapsed"]:
            del self.transfers[ident]
        return out

    def say(self, kind, ident, reason="", **more):
        self.results.append(Result(kind=kind, id=ident, reason=reason, text=reason, **more))

    # What a test has happen.

    def release(self, ident):
        del self.transfers[ident]
        self.say(Kind.RELEASED, ident)

    def fail(self, ident, reason="peer_gone"):
        if self.transfers[ident] == "queued":
            self.transfers[ident] = "lapsed"
        elif self.transfers[ident] == "expected":
            self.transfers[ident] = "failing"
        self.say(Kind.FAILED, ident, reason)

    def close(self, ident):
        del self.transfers[ident]
        self.say(Kind.CLOSED, ident)

    def free(self, ident, reason=""):
        del self.transfers[ident]
        self.say(Kind.FREED, ident, reason)

    def cancelled(self, ident):
        """The gateway cancels a leg."""
        state = self.transfers.get(ident)
        if state in ("admitted", "queued"):
            del self.transfers[ident]
        elif state == "expected":
            self.transfers[ident] = "failing"
        self.say(Kind.CANCELLED, ident, "cancelled")


class Request:
    def __init__(self, name, ident, leg, prompt):
        self.name, self.ident, self.leg, self.prompt = name, ident, leg, prompt
        self.state = "waiting"  # remote, running, done
        self.table = []
        self.computed = 0
        self.valid = True  # what is in the blocks
        self.local = leg == PREFILL  # it was computed here
        self.load_failed = False
        self.again = False


class FakeVllm:
    """vLLM's scheduler and one step of its ranks, as far as a connector sees them: it asserts what vLLM asserts, and that blocks are
    never given away while the plane has them."""

    def __init__(self, role, blocks=64, ranks=1, recompute=True, plane=None):
        self.plane = plane or FakeScheduler()
        self.now = 0.0
        self.legs = Legs(self.plane, {role}, BLOCK, 1, QUIET, clock=lambda: self.now)
        self.role, self.ranks, self.recompute = role, ranks, recompute
        self.free_blocks = list(range(1, blocks))
        self.requests = {}
        self.received, self.load_failed = set(), set()
        self.answers = {}  # what finished() gave
        self.held = 0

    def add(self, name, number, tokens):
        return self.take(Request(name, ident(number), self.role, list(range(tokens))), params(ident(number), self.role))

    def take(self, r, handoff):
        self.requests[r.name] = r
        self.legs.arrived(r.name, handoff, r.prompt)
        return r

    def schedule(self):
        """Gives waiting requests blocks, and returns the orders of the step."""
        for r in list(self.requests.values()):
            if r.state == "remote" and r.name in self.received:
                self.received.discard(r.name)
                if r.name in self.load_failed:
                    self.load_failed.discard(r.name)
                    if r.computed == 0:
                        self._free(r)
                    r.valid = r.local = True  # the rest is computed here
                r.state = "waiting" if not r.table else "running"
                if r.state == "running":
                    assert r.valid, "decode computes on blocks that nothing came into"
                    self.runs(r)
                    r.computed = len(r.prompt)
            if r.state == "waiting":
                need = -(-len(r.prompt) // BLOCK)
                if len(self.free_blocks) < need:
                    continue
                external = self.legs.matched(r.name, 0)
                r.table = [self.free_blocks.pop() for _ in range(need)]
                self.gives(r.table)
                self.legs.allocated(r.name, (r.table,), external)
                r.computed = len(r.prompt)
                r.state = "remote" if external else "running"
                r.valid = not external
                if r.valid:
                    self.runs(r)
        return self.legs.step()

    def step(self):
        """One whole step."""
        orders = self.schedule()
        self.output(orders)
        return orders

    def output(self, orders):
        """The ranks' answers come to the scheduler."""
        for name in orders.failed:
            r = self.requests[name]
            assert r.state == "remote" or r.state == "done"
            if r.state == "remote":
                r.computed = 0
                self.load_failed.add(name)
                if not self.recompute:
                    self.finish(name, whole=False)
        hit = set(orders.failed_blocks)
        for r in list(self.requests.values()):
            if r.state == "remote" and hit & set(r.table):
                r.computed = BLOCK * min(i for i, b in enumerate(r.table) if b in hit)
                if self.recompute:
                    self.load_failed.add(r.name)
                else:
                    self.finish(r.name, whole=False)
            assert r.state != "running" or not hit & set(r.table), "a load error for blocks that are in use"
        received = sent = set()
        said = self.says(orders)
        if said is not None:  # else the connector is not called
            received, sent = self.legs.heard(said.of_ranks)
        for name in received:
            if self.requests[name].state == "remote":
                self.requests[name].valid = True
        for name in received | set(orders.closed):
            r = self.requests[name]  # vLLM asserts that it is there
            assert name not in self.received, "told twice"
            if r.state == "remote":
                assert r.valid or name in self.load_failed, "the wait is over, nothing came, and vLLM was not told"
                self.received.add(name)
            else:
                assert r.state == "done", r.state
                self._gone(r)
        for name in sent:
            assert self.requests[name].state == "done"
            self._gone(self.requests[name])

    def finish(self, name, whole=True):
        """A request ends, by itself or because its client left."""
        r = self.requests[name]
        was, r.state = r.state, "done"
        late = was == "remote" and name not in self.received
        self.received.discard(name)
        self.load_failed.discard(name)
        hold, said = self.legs.finished(name, whole and was == "running", r.computed if was == "running" else 0, (r.table,))
        self.answers[name] = said
        if not hold and not late:
            self._gone(r)

    def preempt(self, name):
        """A running request gives its blocks up, and is to be computed again. One that waits for KV never is, in vLLM."""
        r = self.requests[name]
        assert r.state == "running"
        self._free(r)
        r.state, r.computed, r.local = "waiting", 0, True

    def _gone(self, r):
        self._free(r)
        del self.requests[r.name]

    def says(self, orders):
        """What the ranks answer, None for nothing."""
        return Reports((b"r",) * self.ranks) if self.plane.results or orders.answer else None

    def gives(self, table):
        """Blocks are given to a request."""

    def runs(self, r):
        """The model reads a request's blocks, or fills them."""

    def _free(self, r):
        self.frees(r)
        self.free_blocks += r.table
        r.table = []

    def frees(self, r):
        """A request's blocks are free."""
        assert self.plane.transfers.get(r.ident) not in ("expected", "failing", "offered"), f"{r.name}: freed while the plane has its blocks"

    def idle(self):
        return not self.requests and not self.legs.pending()
