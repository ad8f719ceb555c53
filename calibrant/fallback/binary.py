"""AMCT's search: the most sensitive layers go to float first, and how many do is found by halving."""

from collections.abc import Callable, Sequence

from calibrant.fallback.steps import Step, Steps


def least_prefix(count: int, is_ok: Callable[[int], bool]) -> int:
    """Return the least length from 1 to `count` that is ok, found by halving; the last one is not asked and taken to be.

    It is the least one of all where longer prefixes are never worse. At most ceil(log2(count)) lengths are asked.

    Example:
        >>> asked = []
        >>> least_prefix(50, lambda length: (asked.append(length), length >= 7)[1]), len(asked)
        (7, 5)
    """
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if is_ok(middle):
            high = middle
        else:
            low = middle + 1
    return low


def search_binary(steps: Steps, order: Sequence[str], limit: float) -> Step:
    """Return the step that leaves the shortest prefix of `order` in float that reaches the goal.

    Args:
        steps: takes the steps.
        order: the quantized layers, most sensitive first.
        limit: the greatest share of the MACs in float; where no prefix within it is ok, the longest one is returned as it is.
    """
    allowed = sum(steps.share(order[: length + 1]) <= limit for length in range(len(order)))
    if not allowed:
        return steps.take(())
    last = allowed if allowed == len(order) else allowed + 1  # one beyond says that none is ok
    found = least_prefix(last, lambda length: steps.take(order[:length]).judgement.ok)
    return steps.take(order[: min(found, allowed)])
