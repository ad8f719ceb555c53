"""The counting tables of threads that fold."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from calibrant.stats.histogram import CountScratch


class ScratchPool:
    """Hands each thread a counting table of its own."""

    def __init__(self, size: int) -> None:
        self._free: SimpleQueue[CountScratch] = SimpleQueue()
        for _ in range(size):
            self._free.put(CountScratch())

    @contextmanager
    def lent(self) -> Iterator[CountScratch]:
        """Lend a table; there is one for every thread. What an error may have left dirty is not lent again."""
        scratch = self._free.get()
        try:
            yield scratch
        except BaseException:
            self._free.put(CountScratch())
            raise
        self._free.put(scratch)
