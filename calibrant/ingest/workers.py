"""Work shared among threads whose results come in the order of what was given."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD: Final = 1  # items that wait beside those in work, so that no thread waits for the next to be read


class Turn:
    """The place of an item in the order.

    Args:
        before: the work on the item before it, or None.
    """

    def __init__(self, before: "Future[Any] | None") -> None:
        self._before = before

    def wait(self) -> None:
        """Wait until the work on all items before is over, whatever came of it."""
        if self._before is not None:
            with suppress(CancelledError):
                self._before.exception()  # not `futures.wait`, which waits for ever for what was cancelled


class Workers(Generic[Item, Result]):
    """Threads that work on items; used as a context, it lets nothing go on behind an error.

    Args:
        count: threads.
        work: what they do: takes an item and its turn.
        stop: called when no more results are wanted; work that waits for other work has to go on then, since that may never begin.
    """

    def __init__(
        self, count: int, work: Callable[[Item, Turn], Result], stop: Callable[[], None] = lambda: None
    ) -> None:
        self._count = count
        self._work = work
        self._stop = stop

    def results(self, items: Iterable[Item]) -> Generator[tuple[Item, Result]]:
        """Yield each item with its result, in order; at most one item more than threads is in work or waits.

        The first error in the order of the items is raised: what was given before the items failed comes first.
        """
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        given = _Given(items)
        with ThreadPoolExecutor(self._count, thread_name_prefix="calibrant") as pool:
            try:
                for item in given:
                    turn = Turn(waiting[-1][1] if waiting else None)
                    waiting.append((item, pool.submit(self._work, item, turn)))
                    if len(waiting) == self._count + AHEAD:
                        yield _finished(waiting)
                while waiting:
                    yield _finished(waiting)
            finally:
                for _, task in waiting:
                    task.cancel()
                self._stop()
                pool.shutdown(wait=True, cancel_futures=True)
        if given.error is not None:
            raise given.error


class _Given(Generic[Item]):
    """Items up to their end or their first error, which is kept."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.error: Exception | None = None
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        try:
            yield from self._items
        except Exception as error:
            self.error = error


def _finished(waiting: "deque[tuple[Item, Future[Result]]]") -> tuple[Item, Result]:
    item, task = waiting.popleft()
    return item, task.result()
