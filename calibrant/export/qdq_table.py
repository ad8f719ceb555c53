"""What became of each layer and pair of a model that was quantized elsewhere, as a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.export.quantized_tensor import QuantizedTensor
from calibrant.stats.events import Event

_SCHEMA: Final = pl.Schema(
    {
        "node": pl.String(), "input": pl.Int32(), "op_type": pl.String(), "becomes": pl.String(), "scale_d": pl.Float32(),
        "offset_d": pl.Int32(), "weight_scales": pl.Int32(), "weight_type": pl.String(), "bias": pl.String(),
        "source_sqnr_db": pl.Float64(), "reason": pl.String(),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConvertedRow:
    """What became of a layer, or of a pair that stands before another node.

    Attributes:
        node: node name.
        input: which input; 0 for a layer.
        op_type: of the node.
        becomes: ``int8`` (a quantized layer), ``pair`` (AscendQuant and AscendAntiQuant), ``dropped`` (a pair that changes
            nothing), ``codes`` (an output of the model), ``float``.
        scale_d: step of the data; None where it has none.
        offset_d: offset of the data.
        weight_scales: how many scales the weight has.
        weight_type: type of the weight's codes in the source model.
        bias: ``kept`` (the model's own int32 codes), ``requantized`` (from codes with another scale), ``quantized`` (from floats).
        reason: why a layer stays in float, or a pair is dropped.
    """

    node: str
    input: int
    op_type: str
    becomes: str
    scale_d: np.float32 | None = None
    offset_d: int | None = None
    weight_scales: int | None = None
    weight_type: str | None = None
    bias: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class QdqExport:
    """What `calibrant.export.files.write_export` takes, and the table of it.

    Attributes:
        layers: quantized layers with the model's own scales.
        tensors: inputs of other nodes that keep their pair.
        outputs: outputs of the model that are codes.
        rows: one a layer, and one a pair before another node.
        events: what a person should know.
    """

    layers: tuple[QuantizedLayer, ...]
    tensors: tuple[QuantizedTensor, ...]
    outputs: tuple[QuantizedTensor, ...]
    rows: tuple[ConvertedRow, ...]
    events: tuple[Event, ...]

    def frame(self, decibels: Mapping[str, float] | None = None) -> pl.DataFrame:
        """Return the rows as a table.

        Args:
            decibels: SQNR of quantized layers against the source model, by name, where it was measured.
        """
        near = decibels or {}
        known = {"source_sqnr_db": [near.get(row.node) if row.becomes == "int8" else None for row in self.rows]}
        columns = {name: known.get(name, [getattr(row, name, None) for row in self.rows]) for name in _SCHEMA}
        return pl.DataFrame(columns, schema=_SCHEMA)
