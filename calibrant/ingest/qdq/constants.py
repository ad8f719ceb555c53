"""Constants behind a DequantizeLinear: their float values, and the scales of a layer's weight and bias."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.nodes import LAYER_TYPES
from calibrant.ingest.passes.constants import Array, ConstantValues, evaluate_node
from calibrant.ingest.qdq.grids import DEQUANTIZE, QUANTIZE, Float32Array, Grid, Int64Array, is_pair_node, read_grid

MOVEMENTS: Final = frozenset({"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


@dataclass(frozen=True, eq=False)
class WeightScales:
    """The scales of a layer's weight in the source model.

    Attributes:
        scale: shape () for one, else the scale of every element, in the shape of the weight as the layer reads it.
        code_type: type of the codes.
        block_size: how many elements share a scale; 0: not in blocks.
        low: least code, without its zero point.
        high: greatest code, without its zero point.
        zero_point: a zero point that is not 0, the first; 0 where all are.
    """

    scale: Float32Array
    code_type: str
    block_size: int
    low: int
    high: int
    zero_point: int

    def refusal(self) -> str | None:
        """Return why int8 codes without offset cannot express the weight; None where they can."""
        if self.code_type.startswith("float"):
            return f"its weight is {self.code_type}, whose values are not evenly spaced; int8 weights are quantized"
        if self.block_size:
            return f"its weight has blocks of {self.block_size} elements with a scale each; one scale, or one an output channel, is needed"
        if self.low < -128 or self.high > 127:
            what = f"zero point {self.zero_point}" if self.zero_point else "no zero point"
            return (
                f"its weight is {self.code_type} with {what}, codes {self.low} to {self.high} from it; weights are symmetric int8: "
                "-128 to 127 (uint8 with zero point 128 always fits)"
            )
        return None


@dataclass(frozen=True, eq=False)
class BiasCodes:
    """A bias that the source model stores as codes.

    Attributes:
        codes: without zero point, flattened.
        scale: one, or one a code.
    """

    codes: Int64Array
    scale: Float32Array


class DequantizedConstants:
    """The DequantizeLinear nodes of a graph whose codes are constant.

    Args:
        graph: in topological order.
        constants: its constant values; those of the nodes become known to it.

    Raises:
        ModelError: a constant that cannot be evaluated, or scales that do not fit it.
    """

    def __init__(self, graph: ir.Graph, constants: ConstantValues) -> None:
        self.graph = graph
        self.constants = constants
        self._stored: dict[ir.Node, tuple[Grid, Array]] = {}
        for node in graph:  # in order, so that what follows from one is known to the next
            if is_pair_node(node, DEQUANTIZE) and (found := self._read(node)) is not None:
                self._stored[node] = found
                constants.know(node.outputs[0], self.values(node))

    def codes(self, node: ir.Node) -> tuple[Grid, Array] | None:
        """Return the grid and the codes of a DequantizeLinear of a constant; None where its input is computed."""
        return self._stored.get(node)

    def values(self, node: ir.Node) -> Array:
        """Return what a DequantizeLinear of a constant makes, in its float type."""
        (grid, codes), dtype = self._stored[node], node.outputs[0].dtype
        return grid.dequantize(codes).astype(np.float32 if dtype is None else dtype.numpy())

    def _read(self, node: ir.Node) -> tuple[Grid, Array] | None:
        value = node.inputs[0]
        if value is None or value not in self.constants:
            return None
        grid, maker = read_grid(node, self.constants), value.producer()
        if maker is not None and is_pair_node(maker, QUANTIZE):
            return self._quantized(maker, grid, node)
        array = self.constants.array(value)
        if array is None:
            message = (
                f"{node.op_type} '{node.name}': its constant input '{value.name}' cannot be evaluated; fold it first"
            )
            raise ModelError(message)
        return grid, array

    def _quantized(self, maker: ir.Node, grid: Grid, node: ir.Node) -> tuple[Grid, Array]:
        source, written = maker.inputs[0], read_grid(maker, self.constants)
        values = None if source is None else self.constants.array(source)
        if values is None or not written.is_integer or written.block_size:
            array = self.constants.array(maker.outputs[0])
            if array is None:
                message = f"{maker.op_type} '{maker.name}': a constant of {written.code_type} cannot be evaluated; fold it first"
                raise ModelError(message)
            return grid, array
        return grid, written.quantize(values)

    def weight_scales(self) -> dict[str, WeightScales]:
        """Return the scales of each layer's weight that is made by a DequantizeLinear, maybe moved since, by layer name."""
        found: dict[str, WeightScales] = {}
        for node in self.graph:
            if node.op_type in LAYER_TYPES and not node.domain and len(node.inputs) > 1 and node.inputs[1] is not None:
                scales = self._behind(node.inputs[1])
                if scales is not None:
                    found[str(node.name)] = scales
        return found

    def _behind(self, value: ir.Value) -> WeightScales | None:
        moves, maker = [], value.producer()
        while maker is not None and maker.op_type in MOVEMENTS and not maker.domain and maker.inputs[0] is not None:
            moves.append(maker)
            maker = maker.inputs[0].producer()
        if maker is None or not is_pair_node(maker, DEQUANTIZE) or (found := self.codes(maker)) is None:
            return None
        grid, codes = found
        scale = self._moved(grid, codes.shape, moves)
        if not grid.is_integer:
            return WeightScales(scale, grid.code_type, grid.block_size, 0, 0, 0)
        difference = codes.astype(np.int64) - grid.along(codes.shape)[1]
        zeros = grid.zero_point[grid.zero_point != 0].reshape(-1)
        return WeightScales(
            scale, grid.code_type, grid.block_size, int(difference.min(initial=0)), int(difference.max(initial=0)),
            int(zeros[0]) if zeros.size else 0,
        )  # fmt: skip

    def _moved(self, grid: Grid, shape: tuple[int, ...], moves: list[ir.Node]) -> Float32Array:
        """Return the scale of each element, moved as the weight is."""
        scale: Array = grid.scale.reshape(()) if grid.axis is None else np.broadcast_to(grid.along(shape)[0], shape)
        if scale.ndim == 0:
            return scale
        for node in reversed(moves):
            others = [None if value is None else self.constants.array(value) for value in node.inputs[1:]]
            opset = self.graph.opset_imports.get(node.domain, 1)
            moved = evaluate_node(node, [np.ascontiguousarray(scale), *others], opset)
            if moved is None:
                message = f"{node.op_type} '{node.name}': the weight behind it cannot be followed; fold the node first"
                raise ModelError(message)
            scale = moved[0]
        return scale

    def biases(self) -> Mapping[tuple[str, int], BiasCodes]:
        """Return what each input holds that a DequantizeLinear of int32 makes, by node name and input."""
        found: dict[tuple[str, int], BiasCodes] = {}
        for node in self.graph:
            if (
                not is_pair_node(node, DEQUANTIZE)
                or (stored := self.codes(node)) is None
                or stored[0].code_type != "int32"
            ):
                continue
            grid, codes = stored
            plain = codes.astype(np.int64) - grid.along(codes.shape)[1]
            bias = BiasCodes(plain.reshape(-1), grid.scale.reshape(-1))
            found.update({(str(use.node.name), use.idx): bias for use in node.outputs[0].uses()})
        return found
