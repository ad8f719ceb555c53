"""The tables that counting needs, and who uses them when."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from calibrant.stats._count_kernels import NO_FACTS, SPAN, SPARE, TABLE_SIZE
from calibrant.stats._page_kernels import PAGES
from calibrant.stats.extremes import SpanBounds

OrderArray = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

_MOST_IDLE: Final = 2


class ChunkWork(NamedTuple):
    """Arrays that a chunk of values needs; what they hold means nothing to the next.

    Attributes:
        facts: zeros, NaN, infinities, least magnitude, greatest of each sign.
        bounds: of each span.
        sums: of the counts of each page.
        floors: what orders of x and of -x must exceed.
        top: orders of x that do.
        bottom: those of -x.
    """

    facts: Int64Array
    bounds: SpanBounds
    sums: npt.NDArray[np.uint32]
    floors: Int64Array
    top: OrderArray
    bottom: OrderArray

    @classmethod
    def of(cls, spans: int, keep: int) -> Self:
        """Return room for that many spans, of whose values `keep` are wanted at each end."""
        top, bottom = np.empty((2, 2 * keep + 4 * SPAN), np.int32)
        facts, floors = np.empty(len(NO_FACTS), np.int64), np.empty(2, np.int64)
        return cls(facts, SpanBounds.of(spans), np.empty(PAGES, np.uint32), floors, top, bottom)


class CountScratch:
    """A count for every key, once 16 and once 32 bits wide (24 MB of address space, touched only where keys occur).

    Narrow counts need half the cache; the wide ones are for tensors with a bin so crowded that a narrow one wraps.
    Reused by one thread for all its tensors; never shared between two threads. Always left empty but for the spare
    counters at the end.
    """

    def __init__(self) -> None:
        self.narrow = np.zeros(TABLE_SIZE + SPARE, np.uint16)
        self.wide = np.zeros(TABLE_SIZE + SPARE, np.uint32)
        self._work = ChunkWork.of(0, 0)
        self._keep = 0

    def work(self, n: int, keep: int) -> ChunkWork:
        """Return arrays for n values, of which `keep` are wanted at each end; the same ones each time."""
        spans = -(-n // SPAN)
        if keep != self._keep or spans > self._work.bounds.maxima.size:
            self._work, self._keep = ChunkWork.of(spans, keep), keep
        return self._work._replace(bounds=self._work.bounds.first(spans))


# Tables that nobody counts in. Mapping fresh ones makes the kernel clear huge pages, which cost a third of a count with two threads.
_IDLE: Final[SimpleQueue[CountScratch]] = SimpleQueue()


@contextmanager
def lent() -> Iterator[CountScratch]:
    """Lend idle tables, or new ones; what an error may have left dirty is not lent again."""
    try:
        found = _IDLE.get_nowait()
    except Empty:
        found = CountScratch()
    yield found
    if _IDLE.qsize() < _MOST_IDLE:
        _IDLE.put(found)
