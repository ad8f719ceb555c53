"""What a suggestion is, and the text of all of them as a quant.cfg."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import polars as pl

from calibrant.proto.settings import CalibrationBlock
from calibrant.proto.simple_config import QuantConfig, quoted
from calibrant.simple_form import written_lines


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change of one layer, proved.

    Attributes:
        layer: name of the layer.
        remedy: what is changed: channel_wise, hfmg, ifmr, asymmetric, symmetric, dmq, int16 or skip.
        change: the change in the words of a quant.cfg.
        evidence: what the tables say of the layer that speaks for it.
        before_db: output SQNR in dB before: with this layer alone quantized; for a skip, of the whole fit.
        after_db: the same after.
    """

    layer: str
    remedy: str
    change: str
    evidence: str
    before_db: float
    after_db: float

    @property
    def promise(self) -> str:
        """What was measured, in words."""
        what = "the whole model" if self.remedy == "skip" else "the model with this layer alone quantized"
        return f"output SQNR of {what} {self.before_db:.1f} -> {self.after_db:.1f} dB"


@dataclass(frozen=True)
class Suggestions:
    """What `suggest` found.

    Attributes:
        items: the suggestions; those of one layer stand together.
        before_db: output SQNR of the fit before, in dB.
        after_db: of the improved fit.
        samples: how many samples they were measured on.
        text: the quant.cfg, each suggestion with its evidence in a comment.
        notes: what could not be tried, and why.
    """

    items: tuple[Suggestion, ...]
    before_db: float
    after_db: float
    samples: int
    text: str = field(repr=False)
    notes: tuple[str, ...] = ()

    def frame(self) -> pl.DataFrame:
        """Return one row a suggestion."""
        schema = {
            **dict.fromkeys(("layer", "remedy", "change", "evidence"), pl.String()),
            "before_db": pl.Float64(),
            "after_db": pl.Float64(),
        }
        return pl.DataFrame([asdict(one) for one in self.items], schema=schema)


def suggested_text(
    base: QuantConfig, blocks: Mapping[str, CalibrationBlock], items: Sequence[Suggestion], heading: Sequence[str]
) -> str:
    """Return the quant.cfg: what the base says, then each suggestion under a comment with its evidence.

    Args:
        base: the configuration without the layers of `blocks`.
        blocks: the whole block of each layer that is overridden by a suggestion.
        items: the suggestions.
        heading: lines of a comment on top.
    """
    lines = [*(f"# {line}" for line in heading), *written_lines(base)]
    for layer in dict.fromkeys(one.layer for one in items):
        own = [one for one in items if one.layer == layer]
        lines += ["", *_comment(layer, own)]
        if any(one.remedy == "skip" for one in own):
            lines.append(f"skip_layers: {quoted(layer)}")
        else:
            lines += written_lines(_only(layer, blocks[layer]))[-_override_length(layer, blocks[layer]) :]
    return "".join(f"{line}\n" for line in lines)


def _comment(layer: str, items: Sequence[Suggestion]) -> Iterator[str]:
    yield f"# {quoted(layer)}"
    for one in items:
        yield f"# {one.change}: {one.evidence}"
        yield f"#   {one.promise}"


def _only(layer: str, block: CalibrationBlock) -> QuantConfig:
    return QuantConfig(override_layers=((layer, block),))


def _override_length(layer: str, block: CalibrationBlock) -> int:
    """Return how many lines of the configuration of one override are the override itself."""
    return len(written_lines(_only(layer, block))) - len(written_lines(QuantConfig()))
