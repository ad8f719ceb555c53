"""What both exported models take from a model that was quantized elsewhere: its own scales, and why a layer stays in float."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import onnx_ir as ir

from calibrant.errors import ExportError
from calibrant.export.qdq_table import ConvertedRow, QdqExport
from calibrant.export.quantized_layer import QuantizedLayer, encode_layer
from calibrant.export.quantized_tensor import QuantizedTensor, in_order
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.qdq.constants import BiasCodes, WeightScales
from calibrant.ingest.qdq.grids import DataGrid
from calibrant.ingest.qdq.prepare import QdqModel
from calibrant.ingest.qdq.strip import Slot, Stripped
from calibrant.quantizers.affine import Float32Array, Int32Array
from calibrant.stats.events import Event
from calibrant.stats.weights import channels_first

_MATRICES: Final = ("Gemm", "MatMul")
# What quantizing before and behind it does alike: it moves values, or keeps the greater one.
_MOVED: Final = frozenset({"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "MaxPool", "Relu"})
_SHAPE_READERS: Final = frozenset({"Shape", "Size"})
_SPACE: Final = 3  # kernel axes of a 3-D convolution


class _RefusedError(Exception):
    """Why a layer stays in float."""


def qdq_export(model: QdqModel, *, matmul_per_channel: bool = False) -> QdqExport:
    """Give each layer and input the scales that the model itself brings.

    Args:
        model: a model whose pairs were taken out.
        matmul_per_channel: take one weight scale an output column of Gemm and MatMul, which AMCT does not know.
    """
    builder = _Builder(model.prepared, model.stripped, matmul_per_channel=matmul_per_channel)
    layers = [builder.row(layer) for layer in model.prepared.layers]
    tensors = list(builder.pairs())
    outputs = tuple(QuantizedTensor(name, 0, grid.scale, grid.offset) for name, grid in model.stripped.outputs.items())
    rows = builder.in_order([*layers, *(row for row, _ in tensors), *map(builder.output, outputs)])
    kept = in_order(model.prepared, [tensor for _, tensor in tensors if tensor is not None])
    return QdqExport(tuple(builder.layers), tuple(kept), outputs, tuple(rows), tuple(builder.events))


class _Builder:
    def __init__(self, prepared: PreparedModel, stripped: Stripped, *, matmul_per_channel: bool) -> None:
        self.prepared, self.stripped, self.matmul_per_channel = prepared, stripped, matmul_per_channel
        self.nodes = {str(node.name): node for node in prepared.model.graph}
        self.data = dict(stripped.data)
        self.data.update((slot, grid) for layer in prepared.layers for slot, grid in self._inherited(layer))
        self.layers: list[QuantizedLayer] = []
        self.events: list[Event] = []
        self.served: set[Slot] = set()

    def in_order(self, rows: Sequence[ConvertedRow]) -> list[ConvertedRow]:
        """Return rows in the order of their nodes, a layer before its inputs."""
        order = {name: place for place, name in enumerate(self.nodes)}
        return sorted(rows, key=lambda row: order[row.node])

    # Layers.

    def row(self, layer: Layer) -> ConvertedRow:
        """Quantize one layer, or say why not."""
        scales = self.stripped.weights.get(layer.name)
        code_type = None if scales is None else scales.code_type
        slot, grid = self._data(layer)
        row = ConvertedRow(
            layer.name, 0, layer.op_type, "float", scale_d=None if grid is None else grid.scale,
            offset_d=None if grid is None else grid.offset, weight_type=code_type,
        )  # fmt: skip
        try:
            quantized, bias = self._quantized(layer, slot, grid, scales)
        except (_RefusedError, ExportError) as error:
            return replace(row, reason=str(error).removeprefix(f"layer '{layer.name}': "))
        self.layers.append(quantized)
        self.served |= {slot, *self._slots(layer)}
        count = None if layer.weight is None else int(quantized.scale_w.size)
        return replace(row, becomes="int8", weight_scales=count, bias=bias)

    def _data(self, layer: Layer) -> tuple[Slot, DataGrid | None]:
        """Return what stands on a layer's data, for an AveragePool maybe before the Pad that belongs to it."""
        slots = self._slots(layer)
        for slot in slots:
            if (grid := self.data.get(slot) or self.stripped.given.get(slot)) is not None:
                return slot, grid
        return slots[0], None

    def _slots(self, layer: Layer) -> list[Slot]:
        return [(layer.name, 0), *([(layer.pad_node, 0)] if layer.pad_node is not None else [])]

    def _quantized(
        self, layer: Layer, slot: Slot, grid: DataGrid | None, scales: WeightScales | None
    ) -> tuple[QuantizedLayer, str | None]:
        if not layer.quantizable:
            raise _RefusedError(layer.reason)
        if grid is None:
            raise _RefusedError(
                self.stripped.refused.get(slot, "no QuantizeLinear and DequantizeLinear stand on its data")
            )
        if len({one for key in self._slots(layer) if (one := self.data.get(key)) is not None}) > 1:
            message = f"the pairs before and behind its Pad '{layer.pad_node}' differ"
            raise _RefusedError(message)
        if grid.offset and layer.kernel_rank == _SPACE and layer.op_type.startswith("Conv"):
            message = f"its data has offset {grid.offset}; data of a 3-D kernel is symmetric (offset 0)"
            raise _RefusedError(message)
        scale_w = np.ones(1, np.float32) if layer.weight is None else self._scale_w(layer, scales)
        found = QuantizedLayer(self._without_pair(layer), grid.scale, grid.offset, 8, scale_w, 8)
        _check_products(found)
        found, bias = self._with_bias(found)
        encode_layer(self.prepared, found)
        return found, bias

    def _scale_w(self, layer: Layer, scales: WeightScales | None) -> Float32Array:
        if scales is None:
            message = "its weight has no DequantizeLinear"
            raise _RefusedError(message)
        if (reason := scales.refusal()) is not None:
            raise _RefusedError(reason)
        scale = scales.scale
        if scale.ndim == 0:
            return self._fused(layer, scale.reshape(1))
        if layer.op_type == "Gemm" and self._was_transposed(layer, scale):
            scale = scale.T
        rows = channels_first(scale, layer.op_type, layer.groups)
        if not np.array_equal(rows, np.broadcast_to(rows[:, :1], rows.shape)):
            message = "the scales of its weight do not run along its output channels; one scale, or one an output channel, is needed"
            raise _RefusedError(message)
        columns = np.ascontiguousarray(rows[:, 0])
        if layer.op_type not in _MATRICES or self.matmul_per_channel:
            return self._fused(layer, columns)
        if np.all(columns == columns[0]):
            return columns[:1]
        message = f"its weight has {columns.size} scales, and AMCT knows one a {layer.op_type}; --matmul-per-channel takes them"
        raise _RefusedError(message)

    def _fused(self, layer: Layer, scale: Float32Array) -> Float32Array:
        """Multiply scales by what a fused BatchNormalization did to each channel; a channel that it made zero keeps its scale."""
        factors = self.stripped.factors.get(layer.name)
        if factors is None:
            return scale
        return np.where(factors == 0, scale, (scale * np.abs(factors)).astype(np.float32))

    def _was_transposed(self, layer: Layer, scale: Float32Array) -> bool:
        """Whether the weight was stored with transB = 1; the prepared model holds it as [K, N]."""
        return layer.name in self.stripped.transposed and scale.ndim == 2

    def _without_pair(self, layer: Layer) -> Layer:
        """Leave the Add behind a MatMul in float where a pair stands between the two."""
        between = [slot for slot in self.data if slot[0] == layer.bias_node]
        return replace(layer, bias=None, bias_node=None) if layer.bias_node is not None and between else layer

    def _inherited(self, layer: Layer) -> Iterator[tuple[Slot, DataGrid]]:
        """Yield the grid that a layer's data keeps from a pair further up, where nodes between only move values."""
        if not layer.quantizable or self._data(layer)[1] is not None:
            return
        node = self.nodes[layer.name]
        while (value := node.inputs[0]) is not None and (maker := value.producer()) is not None:
            if maker.op_type not in _MOVED or maker.domain or value is not maker.outputs[0]:
                return
            if (grid := self.data.get((str(maker.name), 0))) is not None:
                yield (layer.name, 0), grid
                return
            node = maker

    # Biases.

    def _with_bias(self, quantized: QuantizedLayer) -> tuple[QuantizedLayer, str | None]:
        layer = quantized.layer
        if layer.bias is None:
            return quantized, None
        stored = self._stored_bias(layer)
        if stored is None:
            return quantized, "quantized"
        codes, count = stored.codes, layer.channels_out or stored.codes.size
        inside = bool(np.all(np.abs(codes) <= np.iinfo(np.int32).max))
        same = bool(np.all(stored.scale == quantized.dequant_scale)) and stored.scale.size in (1, count)
        if not (same and inside):
            return quantized, self._requantized(quantized, stored)
        whole: Int32Array = np.ascontiguousarray(np.broadcast_to(codes, (count,)), np.int32)
        return replace(quantized, bias_codes=whole), "kept"

    def _stored_bias(self, layer: Layer) -> BiasCodes | None:
        if layer.name in self.stripped.factors:
            return None
        slots = [(layer.name, 2)] if layer.bias_node is None else [(layer.bias_node, 0), (layer.bias_node, 1)]
        return next((self.stripped.biases[slot] for slot in slots if slot in self.stripped.biases), None)

    def _requantized(self, quantized: QuantizedLayer, stored: BiasCodes) -> str:
        name = quantized.layer.name
        scale = quantized.dequant_scale
        ratio = (
            np.max(np.abs(stored.scale / scale - 1))
            if stored.scale.size in (1, scale.size) or scale.size == 1
            else np.inf
        )
        text = (
            f"its bias has a scale that is not scale_d * scale_w (off by up to {ratio:.2g} of it); it is quantized again with that, and "
            "moves by up to half a step"
        )
        self.events.append(Event("export", "info", text, name))
        return "requantized"

    # Pairs before other nodes.

    def pairs(self) -> Iterator[tuple[ConvertedRow, QuantizedTensor | None]]:
        """Yield what becomes of each pair that no layer took, in the order of the nodes."""
        slots = [slot for slot in self.data if slot not in self.served and slot[0] not in self.stripped.outputs]
        for name, number in sorted(slots):
            grid, node = self.data[name, number], self.nodes.get(name)
            if node is None:
                continue
            op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            idle = self._idle(node, number, grid)
            row = ConvertedRow(
                name, number, op_type, "dropped" if idle else "pair", grid.scale, grid.offset, reason=idle
            )
            yield row, None if idle else QuantizedTensor(name, number, grid.scale, grid.offset)

    def _idle(self, node: ir.Node, number: int, grid: DataGrid) -> str | None:
        """Return why a pair changes nothing, or None."""
        if node.op_type in _SHAPE_READERS and not node.domain:
            return "the node reads the shape alone"
        return "the next quantizer is the same" if self._is_moved(node, number, grid) else None

    def _is_moved(self, node: ir.Node, number: int, grid: DataGrid) -> bool:
        """Whether a node only moves or compares values which all go to quantizers of the same scale and offset."""
        output = node.outputs[0]
        if number or node.op_type not in _MOVED or node.domain or output.is_graph_output() or not output.uses():
            return False
        return all(self.data.get((str(use.node.name), use.idx)) == grid for use in output.uses())

    def output(self, tensor: QuantizedTensor) -> ConvertedRow:
        """Return the row of an output that is codes."""
        name = self.nodes[tensor.node].outputs[0].name
        return ConvertedRow(
            tensor.node, 0, "output", "codes", tensor.scale_d, tensor.offset_d, reason=f"output '{name}' is int8 codes"
        )


def _check_products(quantized: QuantizedLayer) -> None:
    with np.errstate(all="ignore"):
        products = np.append(quantized.dequant_scale, quantized.scale_w * np.float32(256))
    if not np.all(np.isfinite(products) & (products > 0)):
        message = f"scale_d * scale_w (scale_d {quantized.scale_d!s}) or its largest weight leaves float32"
        raise _RefusedError(message)
