"""Take QuantizeLinear and DequantizeLinear out of a graph: the float model that is left, and what stood on each input.

Values stay what they were as far as the pairs that are handed back are put on those inputs again: a constant becomes its float
values; a pair that int8 with one scale cannot express becomes plain float operators, or is left out with a warning.
"""

from dataclasses import dataclass, field
from typing import Final

import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.passes.constants import Array, ConstantValues, initializer_tensor, make_initializer
from calibrant.ingest.qdq.constants import BiasCodes, DequantizedConstants, WeightScales
from calibrant.ingest.qdq.editor import GraphEditor
from calibrant.ingest.qdq.grids import DEQUANTIZE, QUANTIZE, RANGES, DataGrid, Grid, is_pair_node, read_grid
from calibrant.stats.events import Event

Slot = tuple[str, int]  # node name and input
Limits = tuple[int | None, int | None]  # ends of a Clip of codes; None: the end of their type
_PLAIN_OPSET: Final = 11  # Round exists, and Clip takes its limits as inputs, from here on


@dataclass
class Stripped:
    """What stood in a graph before its pairs were taken out.

    Attributes:
        data: the pair on each input of a node.
        given: inputs of nodes that int8 or uint8 codes of the source model reach through a DequantizeLinear alone.
        weights: scales of each layer's weight, by layer name.
        biases: int32 codes on each input.
        refused: why no int8 data stands on an input that the source quantizes, by input.
        transposed: Gemm layers whose weight is stored with transB = 1, as `weights` describes it.
        factors: what BatchNormalization multiplied each output channel of a weight by, where it was fused, by layer name.
        outputs: Identity nodes before outputs of the model that are codes: their grids.
        events: what a person should know.
    """

    data: dict[Slot, DataGrid] = field(default_factory=dict)
    given: dict[Slot, DataGrid] = field(default_factory=dict)
    weights: dict[str, WeightScales] = field(default_factory=dict)
    biases: dict[Slot, BiasCodes] = field(default_factory=dict)
    refused: dict[Slot, str] = field(default_factory=dict)
    transposed: set[str] = field(default_factory=set)
    factors: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, DataGrid] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


def strip_pairs(model: ir.Model) -> Stripped:
    """Take every pair out of the main graph in place.

    The graph must be in topological order, its nodes named and its shapes inferred.

    Raises:
        ModelError: integer operators between the two nodes of a pair, or scales that are computed.
    """
    return _Stripper(model).strip()


class _Stripper:
    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.editor = GraphEditor(model)
        self.constants = ConstantValues(model.graph)
        self.found = Stripped()

    def strip(self) -> Stripped:
        stored = DequantizedConstants(self.graph, self.constants)
        self.found.weights.update(stored.weight_scales())
        self.found.biases.update(stored.biases())
        self.found.transposed.update(
            str(node.name)
            for node in self.graph
            if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        )
        for node in [node for node in self.graph if is_pair_node(node, DEQUANTIZE)]:
            if stored.codes(node) is not None:
                self._fold(node, stored.values(node))
        for node in [node for node in self.graph if is_pair_node(node, QUANTIZE)]:
            if node.outputs[0].uses() or node.outputs[0].is_graph_output():
                self._open(node)
        for node in [node for node in self.graph if is_pair_node(node, DEQUANTIZE)]:
            self._give(node)
        return self.found

    # Constants.

    def _fold(self, node: ir.Node, values: Array) -> None:
        output = node.outputs[0]
        source = self._source(node)
        wanted = self._freed(source, node) or self.editor.names.take(f"{output.name}.value")
        self.editor.replace(output, make_initializer(self.graph, wanted, values), str(node.name))
        self.editor.remove(node)

    def _source(self, node: ir.Node) -> ir.Value | None:
        """Return the initializer that a DequantizeLinear reads, maybe through a QuantizeLinear of it."""
        value = node.inputs[0]
        maker = None if value is None else value.producer()
        return maker.inputs[0] if maker is not None and is_pair_node(maker, QUANTIZE) else value

    def _freed(self, source: ir.Value | None, node: ir.Node) -> str | None:
        """Give up the name of codes that nothing else reads, so that the weight keeps it in the exported models."""
        if source is None or initializer_tensor(source) is None or source.is_graph_output():
            return None
        maker = None if node.inputs[0] is None else node.inputs[0].producer()
        readers = {use.node for use in source.uses()} | {use.node for use in (maker.outputs[0].uses() if maker else ())}
        if len(readers - {node, maker}) or source.name is None:
            return None
        node.replace_input_with(0, None)
        if maker is not None:
            self.graph.remove(maker, safe=True)
        del self.graph.initializers[source.name]
        return source.name

    # Pairs on data.

    def _open(self, node: ir.Node) -> None:
        data, codes = node.inputs[0], node.outputs[0]
        if data is None:
            message = f"{node.op_type} '{node.name}' reads nothing"
            raise ModelError(message)
        grid = read_grid(node, self.constants)
        for use in list(codes.uses()):
            if is_pair_node(use.node, DEQUANTIZE) and use.idx == 0:
                self._close(use.node, data, grid, None)
            elif (limits := self._limits(use.node, codes)) is not None:
                for inner in list(use.node.outputs[0].uses()):
                    self._close(inner.node, data, grid, limits)
                self.editor.remove(use.node)
            else:
                message = (
                    f"{node.op_type} '{node.name}' feeds {use.node.op_type} '{use.node.name}': integer operators are not converted; "
                    "export the model with a DequantizeLinear right behind each QuantizeLinear"
                )
                raise ModelError(message)
        if codes.is_graph_output():
            self._hand_out(node, data, grid)
        self.editor.remove(node)

    def _limits(self, node: ir.Node, codes: ir.Value) -> Limits | None:
        """Return the ends of a Clip of codes that only DequantizeLinear nodes read, as exporters write 7-bit data."""
        output = node.outputs[0]
        read = all(is_pair_node(use.node, DEQUANTIZE) and use.idx == 0 for use in output.uses())
        if node.op_type != "Clip" or node.domain or node.inputs[0] is not codes or not read or output.is_graph_output():
            return None
        given = [*node.inputs[1:3], None, None][:2]
        if any(value is not None and self.constants.array(value) is None for value in given):
            return None
        ends = [None if value is None else self.constants.array(value) for value in given]
        low, high = (None if one is None else int(one.item()) for one in ends)
        return low, high

    def _close(self, node: ir.Node, data: ir.Value, grid: Grid, limits: Limits | None) -> None:
        """Take a DequantizeLinear out; `grid` is that of the QuantizeLinear before it."""
        other, output = read_grid(node, self.constants), node.outputs[0]
        reason = grid.refusal()
        if reason is None and grid.agrees_with(other):
            whole = grid.data()
            kept = whole if limits is None else _narrowed(whole, limits, grid)
            self._mark(output, self._clipped(data, kept, node), kept, str(node.name))
        else:
            reason = (
                reason
                or f"its QuantizeLinear '{grid.node}' and DequantizeLinear '{other.node}' have unequal scales or zero points"
            )
            self._plain(node, data, grid, other, limits, reason)
        self.editor.remove(node)

    def _clipped(self, data: ir.Value, grid: DataGrid, node: ir.Node) -> ir.Value:
        """Clip float data where only a part of the codes is used: the ends are on the grid, so the codes are the same."""
        if grid.is_whole:
            return data
        name, (low, high) = self.editor.names.take(f"{node.name}.clip"), grid.ends
        return self.editor.chain(name, data, [("Clip", (low, high))], node)

    def _mark(self, old: ir.Value, data: ir.Value, grid: DataGrid, name: str) -> None:
        """Let the readers of a pair read its data, and write down that the pair stood there."""
        carried = []
        for use in list(old.uses()):
            if use.node.graph is self.graph and not is_pair_node(use.node, QUANTIZE):
                use.node.replace_input_with(use.idx, data)
                self.found.data[str(use.node.name), use.idx] = grid
            else:
                carried.append(use)
        if carried or old.is_graph_output():
            carrier = self.editor.identity(data, name, old)
            self.found.data[str(carrier.name), 0] = grid

    # What int8 data cannot express.

    def _plain(
        self, node: ir.Node, data: ir.Value, grid: Grid, other: Grid, limits: Limits | None, reason: str
    ) -> None:
        """Put plain operators in the place of a pair, or nothing where there are none for it."""
        self.found.refused.update({(str(use.node.name), use.idx): reason for use in node.outputs[0].uses()})
        rank = None if data.shape is None else len(data.shape)
        spread = [_spread(one, rank) for one in (grid, other)]
        opset = self.graph.opset_imports.get("", 0)
        inexact = data.dtype == ir.DataType.FLOAT16 and grid.code_type in ("int16", "uint16")  # float16 counts to 2048
        if None in spread or opset < _PLAIN_OPSET or inexact:
            text = f"{reason}; the pair '{grid.node}' is left out, so that values change by its rounding"
            self.found.events.append(Event("export", "warn", text, str(node.name)))
            self.editor.replace(node.outputs[0], data, str(node.name))
            return
        low, high = _ends(limits, grid)
        (scale, zero), (step, start) = (one for one in spread if one is not None)
        steps = [
            ("Div", (scale,)),
            ("Round", ()),
            ("Add", (zero,)),
            ("Clip", (low, high)),
            ("Sub", (start,)),
            ("Mul", (step,)),
        ]
        text = f"{reason}; the pair '{grid.node}' becomes plain float operators with the same values"
        self.found.events.append(Event("export", "warn", text, str(node.name)))
        self.editor.replace(node.outputs[0], self.editor.chain(str(node.name), data, steps, node), str(node.name))

    # Codes at the ends of the model.

    def _hand_out(self, node: ir.Node, data: ir.Value, grid: Grid) -> None:
        """Put an Identity before an output that is codes."""
        codes = node.outputs[0]
        if (reason := grid.refusal()) is not None or not grid.data().is_whole:
            message = (
                f"output '{codes.name}' of the model is {grid.code_type} codes of '{node.name}': {reason or 'a part of int8'}; "
                "end the model with a DequantizeLinear"
            )
            raise ModelError(message)
        carrier = self.editor.identity(data, str(node.name), codes)
        carrier.outputs[0].type, carrier.outputs[0].shape = data.type or ir.TensorType(ir.DataType.FLOAT), codes.shape
        self.found.outputs[str(carrier.name)] = grid.data()
        if grid.code_type != "int8":
            text = f"output '{codes.name}' was {grid.code_type} codes; in both models it is int8: each code less 128"
            self.found.events.append(Event("export", "warn", text, str(node.name)))

    def _give(self, node: ir.Node) -> None:
        """Make plain operators of a DequantizeLinear whose codes come from outside, and remember where they lead."""
        codes, output, grid = node.inputs[0], node.outputs[0], read_grid(node, self.constants)
        if (
            codes is None
            or not grid.is_integer
            or (spread := _spread(grid, None if codes.shape is None else len(codes.shape))) is None
        ):
            message = f"{node.op_type} '{node.name}' makes floats of computed {grid.code_type} codes; give the model float inputs"
            raise ModelError(message)
        kind = output.dtype if output.dtype is not None else ir.DataType.FLOAT
        made = ir.Value(
            name=self.editor.names.take(f"{node.name}.cast.output"), shape=codes.shape, type=ir.TensorType(kind)
        )
        cast = ir.Node(
            "",
            "Cast",
            [codes],
            [ir.AttrInt64("to", int(kind))],
            outputs=[made],
            name=self.editor.names.take(f"{node.name}.cast"),
        )
        self.graph.insert_before(node, cast)
        if grid.refusal() is None:
            self.found.given.update({(str(use.node.name), use.idx): grid.data() for use in output.uses()})
        value = self.editor.chain(str(node.name), made, [("Sub", (spread[1],)), ("Mul", (spread[0],))], node)
        self.editor.replace(output, value, str(node.name))
        self.editor.remove(node)


def _ends(limits: Limits | None, grid: Grid) -> tuple[int, int]:
    """Return the least and the greatest code that are used."""
    (low, high), (first, last) = limits or (None, None), RANGES[grid.code_type]
    return first if low is None else max(low, first), last if high is None else min(high, last)


def _narrowed(whole: DataGrid, limits: Limits, grid: Grid) -> DataGrid:
    (low, high), shift = _ends(limits, grid), RANGES[grid.code_type][0] - whole.low
    return DataGrid(whole.scale, whole.offset, low - shift, high - shift)


def _spread(grid: Grid, rank: int | None) -> tuple[Array, Array] | None:
    """Return scale and zero point so that they broadcast against data of a rank; None where they cannot."""
    if not grid.is_integer or grid.block_size or (grid.axis is not None and rank is None):
        return None
    if grid.axis is None or rank is None:
        return grid.scale.reshape(()), grid.zero_point.reshape(())
    shape = [-1 if axis == grid.axis % rank else 1 for axis in range(rank)]
    return grid.scale.reshape(shape), grid.zero_point.reshape(shape)
