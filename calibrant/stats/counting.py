"""The tables that counting needs, and who uses them when."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

import numpy as np

from calibrant.stats._count_kernels import SPARE, TABLE_SIZE

_MOST_IDLE: Final = 2


class CountScratch:
    """A count for every key, once 16 and once 32 bits wide (24 MB of address space, touched only where keys occur).

    Narrow counts need half the cache; the wide ones are for tensors with a bin so crowded that a narrow one wraps.
    Reused by one thread for all its tensors; never shared between two threads. Always left empty but for the spare
    counters at the end.
    """

    def __init__(self) -> None:
        self.narrow = np.zeros(TABLE_SIZE + SPARE, np.uint16)
        self.wide = np.zeros(TABLE_SIZE + SPARE, np.uint32)


# Tables that nobody counts in. Mapping fresh ones makes the kernel clear huge pages, which cost a third of a count with two threads.
_IDLE: Final[SimpleQueue[CountScratch]] = SimpleQueue()


@contextmanager
def lent(scratch: CountScratch | None) -> Iterator[CountScratch]:
    """Lend the caller's tables, idle ones, or new ones; what an error may have left dirty is not lent again."""
    if scratch is not None:
        yield scratch
        return
    try:
        found = _IDLE.get_nowait()
    except Empty:
        found = CountScratch()
    yield found
    if _IDLE.qsize() < _MOST_IDLE:
        _IDLE.put(found)
