"""``joint_quant`` in a fit: the shifts of the accumulators of layers that meet at an Add.

The accumulators are those of the deploy model: the exact integers of each layer on the codes of its data, from the run's raw captures or
from a second pass of the model over the data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import polars as pl

from calibrant.balancing import Activations, activations_of
from calibrant.export.integer_layers import IntegerLayer, Quantizer
from calibrant.export.proto_graph import attributes_of
from calibrant.export.quantized_layer import QuantizedLayer, encode_layer
from calibrant.fitted_layers import fitted_layers
from calibrant.ingest.model import PreparedModel, load_prepared
from calibrant.quantizers.layer_plan import LayerPlan
from calibrant.quantizers.shift import ShiftSearch
from calibrant.stats.run import Run
from calibrant.stats.tables import SCHEMAS


def joint_tensors(rows: Sequence[LayerPlan]) -> dict[str, tuple[int, ...]]:
    """Return the tensors whose data share a scale, by the Add that names their group."""
    found: dict[str, set[int]] = {}
    for row in rows:
        if row.joint is not None and row.tensor_id is not None:
            found.setdefault(row.joint, set()).add(row.tensor_id)
    return {add: tuple(sorted(tensors)) for add, tensors in found.items()}


def with_shifts(
    run: Run, rows: Sequence[LayerPlan], frames: Mapping[str, pl.DataFrame], again: Activations | None
) -> dict[str, pl.DataFrame]:
    """Return the tables of a fit with the shifts of its jointly quantized layers in `quant_params` (role ``shift``).

    Args:
        run: a complete run.
        rows: the plans of the quantized layers.
        frames: the tables of the fit.
        again: gives activations of a run that kept only statistics.

    Raises:
        RunError: only statistics were kept, and `again` is not given.
    """
    joint = [row for row in rows if row.joint is not None]
    if not joint:
        return dict(frames)
    activations = activations_of(run, "joint_quant", joint[0].layer, again)
    prepared, names = load_prepared(run.model_folder), {row.layer for row in joint}
    layers = fitted_layers(prepared, frames["quant_params"], frames["balance"])
    searches = [_LayerSearch(prepared, layer) for layer in layers if layer.layer.name in names]
    for tensor_id, values in activations({search.tensor_id for search in searches}):
        for search in searches:
            if search.tensor_id == tensor_id:
                search.update(values)
    shifts = pl.concat([search.frame(frames["quant_params"]["fit"][0]) for search in searches])
    return {**frames, "quant_params": pl.concat([frames["quant_params"], shifts])}


class _LayerSearch:
    """The search of one layer's shifts over all samples."""

    def __init__(self, prepared: PreparedModel, quantized: QuantizedLayer) -> None:
        self._quantized = quantized
        self._quantizer = Quantizer(
            quantized.layer.name,
            quantized.layer.tensor,
            "",
            quantized.reciprocal,
            quantized.offset_d,
            quantized.data_bits,
        )
        self._layer = _integer_layer(prepared, quantized)
        self._search = ShiftSearch(quantized.scale_w.size)
        self._alone = True  # whether a channel has one value a sample (H = W = 1): then one shift serves all

    @property
    def tensor_id(self) -> int:
        """The captured tensor of the layer's data."""
        return int(self._quantized.layer.tensor_id or 0)

    def update(self, values: npt.NDArray[Any]) -> None:
        """Add samples, stacked on axis 0."""
        for sample in values:
            total, _ = self._layer.accumulate(self._quantizer.codes(sample))
            axis = 1 if self._layer.op_type.startswith("Conv") else -1
            channels = np.moveaxis(total.astype(np.int64), axis, 0)
            self._alone = self._alone and channels.size == len(channels)
            self._search.update(channels.reshape(self._quantized.scale_w.size, -1))

    def frame(self, fit: str) -> pl.DataFrame:
        """Return the rows of `quant_params`."""
        shifts = self._search.best(shared=self._alone)
        layer, several = self._quantized.layer, len(shifts) > 1
        rows = [
            {
                **dict.fromkeys(SCHEMAS["quant_params"]),
                "fit": fit, "layer_id": layer.layer_id, "tensor_id": layer.tensor_id, "role": "shift",
                "channel": channel if several else None, "offset": shift, "decided_by": "search_n",
            }
            for channel, shift in enumerate(shifts)
        ]  # fmt: skip
        return pl.DataFrame(rows, schema=SCHEMAS["quant_params"])


def _integer_layer(prepared: PreparedModel, quantized: QuantizedLayer) -> IntegerLayer:
    node = next(node for node in _nodes(prepared) if node.name == quantized.layer.name)
    encoded = encode_layer(prepared, quantized)
    return IntegerLayer(
        name=quantized.layer.name,
        op_type=quantized.layer.op_type,
        attributes=attributes_of(ir.serde.serialize_node(node)),
        source="",
        output="",
        weight=encoded.weight,
        bias=encoded.bias,
        bias_node=quantized.layer.bias_node,
        dequant_scale=quantized.dequant_scale,
        dequantizer="",
    )


def _nodes(prepared: PreparedModel) -> Iterator[ir.Node]:
    return iter(prepared.model.graph)
