"""The search of the shifts of one jointly quantized layer, on the exact integers of its deploy form."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import polars as pl

from calibrant.export.integer_layers import IntegerLayer, Quantizer
from calibrant.export.proto_graph import attributes_of
from calibrant.export.quantized_layer import QuantizedLayer, encode_layer
from calibrant.ingest.model import PreparedModel
from calibrant.quantizers.shift import ShiftSearch
from calibrant.stats.tables import SCHEMAS


class LayerSearch:
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
    node = next(node for node in prepared.model.graph if node.name == quantized.layer.name)
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
