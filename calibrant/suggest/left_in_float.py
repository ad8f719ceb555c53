"""Which layers to leave in float: those of most noise first, where the whole model's output gains by it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from calibrant.suggest.proof import WholeFit
from calibrant.suggest.remedies import Candidate

SKIP_GAIN_DB: Final = 0.5  # of the whole model's output that a layer in float must give
ENOUGH_DB: Final = 40.0  # output SQNR from which no layer is left in float
MISSES: Final = 3  # layers that gave too little before the search for more ends


@dataclass(frozen=True, slots=True)
class Skip:
    """A layer that is worth being left in float.

    Attributes:
        layer: its name.
        share: of the multiply-accumulates.
        before_db: output SQNR in dB of the whole model before.
        after_db: with this layer in float too.
    """

    layer: str
    share: float
    before_db: float
    after_db: float


def worth_skipping(
    whole: WholeFit, db: float, candidates: Sequence[Candidate], macs: int, max_float_macs: float
) -> Iterator[Skip]:
    """Yield layers to leave in float, each measured with those before it in float.

    Args:
        whole: the fit.
        db: its output SQNR.
        candidates: layers in the order in which they are tried.
        macs: multiply-accumulates of all layers.
        max_float_macs: the greatest share of them in float. A layer whose own are unknown has no share that could be kept.
    """
    skipped: list[str] = []
    misses, spent = 0, 0
    for one in candidates:
        if misses >= MISSES or db >= ENOUGH_DB:
            return
        own = one.row.macs
        if own is None or spent + own > max_float_macs * macs or len(skipped) + 1 == whole.count:
            continue
        found = whole.sqnr_db([*skipped, one.row.layer])
        if not found >= db + SKIP_GAIN_DB:
            misses += 1
            continue
        yield Skip(one.row.layer, own / max(macs, 1), db, found)
        skipped, spent, db = [*skipped, one.row.layer], spent + own, found
