"""What exact mode has to say of a fit: how many candidates had to be evaluated on the raw values."""

from collections.abc import Collection

from calibrant.quantizers.affine import Candidates
from calibrant.stats.events import Event


def exact_events(searches: Collection[tuple[str, Candidates | None]]) -> list[Event]:
    """Return one event for all exact searches of a fit; none where nothing was searched on raw values.

    Args:
        searches: name of the tensor, and its candidates, of each fit.

    Example:
        >>> exact_events([("image", None)])
        []
    """
    exact = [(found.survivors, found.loss.size, name) for name, found in searches if found is not None and found.exact]
    if not exact:
        return []
    most, candidates, name = max(exact, key=lambda one: one[0])
    message = (
        f"exact search of {len(exact)} tensors: {sum(one[0] for one in exact)} of {sum(one[1] for one in exact)} candidates were summed "
        f"over the raw values, at most {most} of {candidates} a tensor ('{name}'); bounds prove the others worse (search.exact tells which)"
    )
    return [Event("fit", "info", message)]
