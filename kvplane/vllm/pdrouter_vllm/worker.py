"""A rank's side: it gives the library what the scheduler orders, and vLLM what the scheduler has it say. It decides nothing."""

import select
import time

from .library import Kind
from .passing import Handshake, Reports


class Worker:
    """One rank. Called from vLLM's worker thread only."""

    def __init__(self, plane, log, clear, wait=None, visible=None):
        """plane: the library's handle of this rank. clear(ranges) overwrites device memory with zeros. wait(plane, seconds) returns as
        soon as the handle has news. visible() returns when the device has done what it was told to and sees what others have written
        into its memory; None where memory is the host's, or nobody writes into it."""
        self._plane = plane
        self._log = log
        self._clear = clear
        self._wait = wait or _readable
        self._visible = visible
        self._seq = 0
        self._first = b""
        self._answer = False
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._blocks: set[int] = set()
        self.generation = 0
        self.broken = ""

    def open(self, regions, timeout, clock=time.monotonic):
        """Registers the memory and publishes the rank. Returns whether its record was published within timeout, in seconds: what
        is not yet will be, as soon as the gateway answers."""
        self._plane.register(regions)
        self._plane.publish()
        end = clock() + timeout
        while not self.generation and not self.broken:
            left = end - clock()
            if left <= 0:
                return False
            self._wait(self._plane, left)
            self._take()
        if self.broken:
            raise RuntimeError(f"pdrouter: the rank cannot join the plane: {self.broken}")
        self._first = self._plane.collect()
        return True

    def handshake(self):
        """The rank's first word, for the scheduler."""
        return Handshake(self._first)

    def begin(self, orders):
        """Carries out the orders of one step."""
        if orders.seq != self._seq + 1:  # what was in the lost ones may have been the word that a write must not begin
            raise RuntimeError(f"pdrouter: orders {orders.seq} after {self._seq}; none may be missed")
        self._seq = orders.seq
        if orders.plane:
            self._plane.do(orders.plane)
        self._blocks.update(orders.failed_blocks)
        self._failed.update(orders.failed)
        self._received.update(orders.closed)
        self._answer = orders.answer
        if orders.rest and not self.broken:
            self._wait(self._plane, orders.rest)

    def results(self):
        """Requests whose wait is over though nothing came, and those among them whose load has failed as a whole."""
        received, failed = self._received, self._failed
        self._received, self._failed = set(), set()
        return received, failed

    def failed_blocks(self):
        """Blocks that nothing came into."""
        blocks, self._blocks = self._blocks, set()
        return blocks

    def reports(self):
        """What this rank has to say to the scheduler, None for nothing."""
        was = self.broken
        report = self._plane.collect()
        self._take()  # what is to be cleared must be before the scheduler hears that it may decode
        if report and self._visible:
            self._visible()  # the report may say that blocks have landed
        if not report and not self._answer and self.broken == was:
            return None
        self._answer = False
        return Reports((report,), self.broken)

    def _take(self):
        for r in self._plane.poll():
            if r.kind == Kind.PUBLISHED:
                self.generation = r.bytes
            elif r.kind == Kind.BROKEN:
                self.broken = r.text or "broken"
                self._log.error("the plane of this rank is broken: %s", r.text)
            elif r.kind == Kind.CLEAR:
                self._clear(r.ranges)


def _readable(plane, seconds):
    ready = select.poll()  # takes descriptors of any number
    ready.register(plane, select.POLLIN)
    ready.poll(seconds * 1000)
