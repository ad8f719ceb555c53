"""Work on threads whose results come in order."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing

import pytest

from calibrant.ingest.workers import Turn, Workers


def test_results_come_in_order_whatever_takes_longest() -> None:
    def work(item: int, _: Turn) -> int:
        time.sleep(0.02 if item % 3 == 0 else 0)
        return item * item

    for count in (1, 2, 5):
        workers: Workers[int, int] = Workers(count, work)
        assert list(workers.results(range(10))) == [(i, i * i) for i in range(10)]


def test_no_item_is_read_long_before_its_turn() -> None:
    read, done, ahead = [0], [0], [0]

    def items() -> Iterator[int]:
        for item in range(20):
            read[0] += 1
            ahead[0] = max(ahead[0], read[0] - done[0])
            yield item

    workers: Workers[int, int] = Workers(3, lambda item, _: item)
    for _ in workers.results(items()):
        done[0] += 1
    assert ahead[0] == 4  # one for each thread, and one that waits


def test_the_first_error_in_order_is_raised_and_nothing_goes_on() -> None:
    started: list[int] = []

    def work(item: int, _: Turn) -> int:
        started.append(item)
        if item == 2:
            time.sleep(0.05)  # the later error comes first in time
        if item in (2, 3):
            message = f"item {item}"
            raise ValueError(message)
        return item

    workers: Workers[int, int] = Workers(2, work)
    got: list[int] = []
    with pytest.raises(ValueError, match="item 2"), closing(workers.results(range(100))) as results:
        got.extend(item for item, _ in results)
    assert got == [0, 1]
    assert max(started) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("calibrant")]


def test_items_that_fail_let_what_came_before_be_done() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        message = "no fourth"
        raise OSError(message)

    def work(item: int, _: Turn) -> int:
        time.sleep(0.02)
        return item

    workers: Workers[int, int] = Workers(2, work)
    got: list[int] = []
    with pytest.raises(OSError, match="no fourth"):
        got.extend(item for item, _ in workers.results(items()))
    assert got == [0, 1, 2]


def test_an_error_in_the_work_comes_before_that_of_later_items() -> None:
    def items() -> Iterator[int]:
        yield 0
        message = "no second"
        raise OSError(message)

    def work(item: int, _: Turn) -> int:
        time.sleep(0.05)
        message = f"item {item}"
        raise ValueError(message)

    workers: Workers[int, int] = Workers(2, work)
    with pytest.raises(ValueError, match="item 0"):
        list(workers.results(items()))


def test_a_caller_that_stops_leaves_no_thread() -> None:
    workers: Workers[int, int] = Workers(2, lambda item, _: item)
    with closing(workers.results(range(100))) as results:
        assert next(results) == (0, 0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("calibrant")]


def test_a_turn_comes_when_all_before_are_over() -> None:
    order: list[int] = []

    def work(item: int, turn: Turn) -> None:
        time.sleep(0.01 * (5 - item))
        turn.wait()
        order.append(item)

    workers: Workers[int, None] = Workers(5, work)
    list(workers.results(range(5)))
    assert order == list(range(5))


def test_a_turn_comes_after_a_failure_too() -> None:
    reached: list[int] = []

    def work(item: int, turn: Turn) -> None:
        if item == 0:
            message = "the first"
            raise ValueError(message)
        turn.wait()
        reached.append(item)

    workers: Workers[int, None] = Workers(2, work)
    with pytest.raises(ValueError, match="the first"):
        list(workers.results(range(2)))
    assert reached in ([], [1])


def test_work_that_waits_for_work_that_was_never_begun_is_told_to_go_on() -> None:
    """The first item fails while the third waits for the second, which a thread that stops may take out of the queue."""
    never, reached, told = threading.Event(), threading.Event(), list[bool]()

    def work(item: int, _: Turn) -> None:
        if item == 0:
            reached.wait(5)
            message = "the first"
            raise ValueError(message)
        reached.set()
        told.append(never.wait(30))

    workers: Workers[int, None] = Workers(2, work, never.set)
    with pytest.raises(ValueError, match="the first"):
        list(workers.results(range(20)))
    assert told
    assert all(told)


def test_a_turn_behind_work_that_was_cancelled() -> None:
    before: Future[None] = Future()
    before.cancel()
    Turn(before).wait()
