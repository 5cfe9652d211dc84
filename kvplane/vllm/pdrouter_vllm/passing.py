"""The types that pass between the scheduler and its ranks in vLLM's own messages. They are pickled; they hold plain values only."""

import dataclasses


@dataclasses.dataclass
class Orders:
    """What the scheduler tells every rank in one step."""

    seq: int = 0  # numbers the steps, from 1: a rank must miss none
    plane: bytes = b""  # of pdkv_orders, for pdkv_do
    # What ranks say back to vLLM, which hears of a failed load from its ranks alone, and in this order: the blocks that are not there,
    # then, when nothing lands in them any more, that the wait for them is over.
    failed_blocks: tuple[int, ...] = ()
    failed: tuple[str, ...] = ()  # requests, where a block's number does not tell whose it is (several groups); also in closed
    closed: tuple[str, ...] = ()  # requests
    answer: bool = False  # ranks say something, even if it is nothing: the scheduler is called with their answers only
    rest: float = 0.0  # s; how long the rank may wait for news of the plane before it ends the step


@dataclasses.dataclass
class Reports:
    """What the ranks tell the scheduler in one step: each its own, together those of all. What they mean for the engine (ready when
    all are, failed when any is, the blocks of all) is decided by the library, which knows each rank by its name in the report."""

    of_ranks: tuple[bytes, ...] = ()  # of pdkv_collect, for pdkv_hear
    broken: str = ""  # why a rank is of no more use

    def aggregate(self, other):
        return Reports(self.of_ranks + other.of_ranks, self.broken or other.broken)


@dataclasses.dataclass
class Handshake:
    """A rank's first word, told before the first request."""

    report: bytes = b""
