"""A fake-quant model taken apart, and run with the values around each quantized layer exposed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from calibrant.errors import DataError, ExportError
from calibrant.export.balance import balance_fault
from calibrant.export.integer_layers import Array
from calibrant.export.model_inputs import check_feeds, describe_feeds
from calibrant.export.proto_graph import run_session, session_of
from calibrant.export.static_shapes import elements_of
from calibrant.export.weight_only_graph import WeightOnlyNode
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.shift import INT16

_CHAIN = ("Sub", "Clip", "Add", "Round", "Mul")  # from the layer backwards to the float data
_HELD_ELEMENTS = 32 * 2**20  # exposed float32 elements held of one feed, about 128 MB; a single layer may need more


@dataclass(frozen=True, eq=False)
class FakeLayer:
    """A quantized layer of a fake-quant model.

    Attributes:
        name: node name.
        source: the float data before the quantizer.
        data: the integer-valued data that the layer reads.
        output: the float value after the last Mul.
        scale: the quantizer's factor, float32(1 / scale_d).
        offset: the quantizer's offset.
        limits: least and greatest code.
        weight: int8 codes, or None.
        bias: int32 codes, or None.
        dequant_scale: factors of the last Mul, flattened; without the power of two that undoes a shift.
        shift: by how many bits accumulators are shifted into int16, flattened; None: they are not.
    """

    name: str
    source: str
    data: str
    output: str
    scale: np.float32
    offset: int
    limits: tuple[int, int]
    weight: Array | None
    bias: Array | None
    dequant_scale: Array
    shift: Array | None = None
    second: "FakePair | None" = None

    @property
    def exposed(self) -> tuple[str, str, str]:
        """Return the values that verify looks at."""
        return self.source, self.data, self.output


@dataclass(frozen=True, eq=False)
class FakePair:
    """A quantized input of a node that is no layer.

    Attributes:
        name: ``node:index``.
        source: the float data before the quantizer.
        data: the integer-valued data.
        output: the float value that the node reads.
        scale: the quantizer's factor, float32(1 / scale_d).
        offset: the quantizer's offset.
        limits: least and greatest code.
        factor: what the codes without offset are multiplied by, scale_d.
    """

    name: str
    source: str
    data: str
    output: str
    scale: np.float32
    offset: int
    limits: tuple[int, int]
    factor: np.float32

    @property
    def exposed(self) -> tuple[str, str, str]:
        """Return the values that verify looks at."""
        return self.source, self.data, self.output


class FakeReader:
    """Finds the quantized layers of a fake-quant model by their structure, not by the names of what was added."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._nodes: dict[str, onnx.NodeProto] = {node.name: node for node in model.graph.node}
        self._producers: dict[str, onnx.NodeProto] = {name: node for node in model.graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._initializers: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}

    def layer(self, name: str, bias_node: str | None, *, half: bool) -> FakeLayer:
        """Return the quantized layer of this node name.

        Args:
            name: node name.
            bias_node: name of the Add that holds a MatMul's bias, or None.
            half: whether the model around the layer is float16, so that a Cast stands at both ends.

        Raises:
            ExportError: the node does not stand between a quantizer and a Mul.
        """
        node = self._node(name)
        last = node if bias_node is None else self._node(bias_node)
        data = self._before_pad(node)
        chain = self._quantizer(data, f"layer '{name}'")
        shift, last_value = self._shift(last)
        mul, output = self._dequantizer(last_value, half=half)
        scales = self._operand(mul, 1).reshape(-1)
        scale, offset, limits = self._constants(chain, f"layer '{name}'")
        return FakeLayer(
            name=name, source=self._source(chain["Mul"].input[0], half=half), data=data, output=output,
            scale=np.float32(scale), offset=int(offset), limits=limits, weight=self._weight(node),
            bias=self._bias(node, last), shift=shift, second=self._second(node, half=half),
            dequant_scale=scales if shift is None else (scales * np.exp2(-shift.astype(np.float32))).astype(np.float32),
        )  # fmt: skip

    def balance_fault(self, layer: FakeLayer, entry: RecordEntry) -> str | None:
        """Compare what stands before a layer's quantizer with the balance factors of the record."""
        kernel = layer.weight if self._node(layer.name).op_type.startswith("Conv") else None
        rank = 0 if kernel is None else kernel.ndim - 2
        return balance_fault(entry, layer.source, rank, self._producers, self._initializers)

    def pair(self, name: str, slot: int, *, half: bool) -> FakePair:
        """Return the quantized input of this node.

        Args:
            name: node name.
            slot: which input.
            half: as in `layer`.

        Raises:
            ExportError: no quantizer and Mul stand on that input.
        """
        node, where = self._node(name), f"input '{name}:{slot}'"
        output = node.input[slot] if slot < len(node.input) else ""
        mul = self._producers.get(self._source(output, half=half))
        if mul is None or mul.op_type != "Mul":
            message = f"{where}: the fake-quant model has no Mul where the codes should become float again"
            raise ExportError(message)
        chain = self._quantizer(mul.input[0], where)
        scale, offset, limits = self._constants(chain, where)
        return FakePair(
            name=f"{name}:{slot}", source=self._source(chain["Mul"].input[0], half=half), data=mul.input[0],
            output=output, scale=np.float32(scale), offset=int(offset), limits=limits,
            factor=np.float32(self._operand(mul, 1)),
        )  # fmt: skip

    def _constants(self, chain: Mapping[str, onnx.NodeProto], where: str) -> tuple[Array, Array, tuple[int, int]]:
        scale, offset = self._operand(chain["Mul"], 1), self._operand(chain["Sub"], 1)
        if not np.array_equal(offset, self._operand(chain["Add"], 1)):
            message = f"{where}: the fake-quant model adds another offset than it subtracts"
            raise ExportError(message)
        return scale, offset, (int(self._operand(chain["Clip"], 1)), int(self._operand(chain["Clip"], 2)))

    def _node(self, name: str) -> onnx.NodeProto:
        if name not in self._nodes:
            message = f"layer '{name}' is not in the fake-quant model"
            raise ExportError(message)
        return self._nodes[name]

    def _quantizer(self, value: str, where: str) -> dict[str, onnx.NodeProto]:
        chain: dict[str, onnx.NodeProto] = {}
        for op_type in _CHAIN:
            step = self._producers.get(value)
            if step is None or step.op_type != op_type:
                message = f"{where}: the fake-quant model has no {op_type} where its quantizer should have one"
                raise ExportError(message)
            chain[op_type], value = step, step.input[0]
        return chain

    def _second(self, node: onnx.NodeProto, *, half: bool) -> FakePair | None:
        """Return the second input of a product of two variables, or None."""
        made = self._producers.get(node.input[1]) if node.op_type == "MatMul" else None
        if made is None or made.op_type != "Sub":
            return None
        where = f"input '{node.name}:1'"
        chain = self._quantizer(node.input[1], where)
        scale, offset, limits = self._constants(chain, where)
        return FakePair(
            name=f"{node.name}:1", source=self._source(chain["Mul"].input[0], half=half), data=node.input[1],
            output=node.input[1], scale=np.float32(scale), offset=int(offset), limits=limits, factor=np.float32(1),
        )  # fmt: skip

    def _before_pad(self, node: onnx.NodeProto) -> str:
        """Return the codes that a layer reads, maybe through the Pad of an AveragePool."""
        pad = self._producers.get(node.input[0]) if node.op_type == "AveragePool" else None
        return str(node.input[0] if pad is None or pad.op_type != "Pad" else pad.input[0])

    def _shift(self, last: onnx.NodeProto) -> tuple[Array | None, onnx.NodeProto]:
        """Return the shift behind a layer, if any, and the node that the Mul of the dequantizer follows."""
        mul = self._only_reader(last, "Mul")
        readers = self._readers.get(mul.output[0], [])
        if len(readers) != 1 or readers[0].op_type != "Floor":
            return None, last
        clip = self._only_reader(readers[0], "Clip")
        if (int(self._operand(clip, 1)), int(self._operand(clip, 2))) != INT16:
            message = f"node '{clip.name}': the fake-quant model must clip a shifted accumulator to int16"
            raise ExportError(message)
        return -np.log2(self._operand(mul, 1).reshape(-1)), clip

    def _dequantizer(self, last: onnx.NodeProto, *, half: bool) -> tuple[onnx.NodeProto, str]:
        mul = self._only_reader(last, "Mul")
        return mul, self._only_reader(self._only_reader(mul, "Cast"), "Identity").output[0] if half else mul.output[0]

    def _only_reader(self, node: onnx.NodeProto, op_type: str) -> onnx.NodeProto:
        readers = self._readers.get(node.output[0], [])
        if len(readers) != 1 or readers[0].op_type != op_type:
            message = f"node '{node.name}': in the fake-quant model one {op_type} must follow it"
            raise ExportError(message)
        return readers[0]

    def _source(self, name: str, *, half: bool) -> str:
        if not half:
            return name
        cast = self._producers.get(name)
        value = "" if cast is None else str(cast.input[0])
        before = self._producers.get(value)
        return str(before.input[0]) if before is not None and before.op_type == "Identity" else value

    def _weight(self, node: onnx.NodeProto) -> Array | None:
        absent = node.op_type == "AveragePool" or self._second(node, half=False) is not None
        return None if absent else self._codes(node, node.input[1])

    def _bias(self, node: onnx.NodeProto, last: onnx.NodeProto) -> Array | None:
        if last is not node:
            others = [name for name in last.input if name != node.output[0]]
            return self._codes(last, others[0]) if others else None
        return self._codes(node, node.input[2]) if len(node.input) > 2 and node.input[2] else None

    def _codes(self, node: onnx.NodeProto, name: str) -> Array:
        cast = self._producers.get(name)
        if cast is None or cast.op_type != "Cast" or cast.input[0] not in self._initializers:
            message = f"node '{node.name}': '{name}' is no Cast of an integer initializer in the fake-quant model"
            raise ExportError(message)
        return numpy_helper.to_array(self._initializers[cast.input[0]])

    def _operand(self, node: onnx.NodeProto, slot: int) -> Array:
        if len(node.input) <= slot or node.input[slot] not in self._initializers:
            message = f"node '{node.name}': input {slot} is no initializer in the fake-quant model"
            raise ExportError(message)
        return numpy_helper.to_array(self._initializers[node.input[slot]])


class FakeRunner:
    """Runs a fake-quant model with optimizations off and hands out the values around its layers.

    The layers are exposed in groups, in the order in which they are asked for; of one feed, one group is held at a time.

    Args:
        path: the model.
        layers: whose values are asked for.
        rounded: (value, name of the node that reads it) to be rounded to the type of the value. Where float16 nodes follow each other,
            onnxruntime computes them in float32 without rounding in between, which another division of the nodes would do; so would
            exposed values, so that the outputs then come from a run without any. None: the model has no float16.
    """

    def __init__(
        self,
        path: Path,
        layers: Sequence[FakeLayer | FakePair | WeightOnlyNode],
        rounded: Collection[tuple[str, str]] | None = None,
    ) -> None:
        self._model = onnx.load(path, load_external_data=False)
        _separate(self._model.graph, rounded or ())
        self._apart = rounded is not None
        self._folder = str(path.parent) if Path(f"{path}.data").is_file() else None
        self._outputs = [value.name for value in self._model.graph.output]
        self._layers = layers
        self._group_of: dict[FakeLayer | FakePair | WeightOnlyNode, int] = {}
        self._exposed: list[list[str]] = []
        self._sessions: dict[int, ort.InferenceSession] = {}
        self._feeds: Mapping[str, Array] = {}
        self._held: tuple[int, dict[str, Any]] = (-1, {})
        self.outputs: dict[str, Array] = {}

    def start(self, feeds: Mapping[str, Array]) -> None:
        """Begin with another feed; the model's own outputs for it are in `outputs` from here on.

        Raises:
            DataError: an input is missing, unknown or of another type or shape, or onnxruntime fails on it.
        """
        check_feeds(self._model.graph, feeds)
        if not self._exposed:
            self._group(feeds)
        self._feeds = feeds
        try:
            self._hold(0)
        except DataError as error:
            message = f"{describe_feeds(self._model.graph, feeds)}, but {error}"
            raise DataError(message) from error
        self.outputs = {name: self._held[1][name] for name in self._outputs}

    def _group(self, feeds: Mapping[str, Array]) -> None:
        """Share the layers among runs so that each exposes a bounded amount, by the sizes for the first feed."""
        sizes = elements_of(self._model, feeds)
        unknown = max(sizes.values(), default=1)
        groups, held = [set[str]() for _ in range(2 if self._apart else 1)], 0
        for layer in self._layers:
            size = sum(sizes.get(name, unknown) for name in set(layer.exposed) - groups[-1])
            if groups[-1] and held + size > _HELD_ELEMENTS:
                groups.append(set())
                held = 0
            groups[-1].update(layer.exposed)
            held += size
            self._group_of[layer] = len(groups) - 1
        self._exposed = [sorted(group) for group in groups]

    def values(self, layer: FakeLayer | FakePair | WeightOnlyNode) -> tuple[Array, Array, Array]:
        """Return the float data, the integer-valued data and the float output of a layer or input."""
        number = self._group_of[layer]
        if self._held[0] != number:
            self._hold(number)
        source, data, output = (self._held[1][name] for name in layer.exposed)
        return source, data, output

    def _hold(self, number: int) -> None:
        self._held = (-1, {})  # frees the last group before the next one is made
        own = self._outputs if number == 0 else []
        wanted = sorted({*self._exposed[number], *own} - self._feeds.keys())
        found = run_session(self._session(number), wanted, self._feeds)
        self._held = (number, dict(self._feeds) | dict(zip(wanted, found, strict=True)))

    def _session(self, number: int) -> ort.InferenceSession:
        if number not in self._sessions:
            model = onnx.ModelProto()
            model.CopyFrom(self._model)
            known = {value.name for value in model.graph.input}.union(self._outputs)
            extra = [name for name in self._exposed[number] if name not in known]
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
            self._sessions[number] = session_of(model, self._folder)
        return self._sessions[number]


def _separate(graph: onnx.GraphProto, rounded: Collection[tuple[str, str]]) -> None:
    """Put two Identity before the nodes that are to read rounded values; a single one onnxruntime would compute in float32 as well."""
    nodes = []
    for node in graph.node:
        for slot, name in enumerate(node.input):
            if (name, node.name) in rounded:
                node.input[slot] = f"{name}.rounded.{node.name}.{slot}"
                between = f"{node.input[slot]}.between"
                nodes.append(onnx.helper.make_node("Identity", [name], [between]))
                nodes.append(onnx.helper.make_node("Identity", [between], [node.input[slot]]))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
