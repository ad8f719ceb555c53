"""Run a deploy model in exact integers.

AscendQuant, the quantized layers and AscendDequant are computed by calibrant's own kernels; every float node by onnxruntime with
graph optimizations off. Float nodes are grouped by stage, the number of quantized layers on the longest path before them: one
session a stage, so that a model of fifty layers needs about fifty small sessions and no node is run twice.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from calibrant.errors import ExportError
from calibrant.export.antiquantizer import AntiQuantizer
from calibrant.export.deploy_graph import DeployGraph, take_apart
from calibrant.export.external_data import constant_array, load_model
from calibrant.export.integer_layers import Array, IntegerLayer, Quantizer
from calibrant.export.model_inputs import check_feeds
from calibrant.export.proto_graph import part_of, run_session, session_of, values_read

if TYPE_CHECKING:
    import onnxruntime as ort

Values = dict[str, Any]
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False)
class LayerRun:
    """One layer on one feed.

    Attributes:
        layer: the layer.
        data: its codes without offset, float32 integers.
        output: the float value after AscendDequant.
        fits_int32: whether every accumulator stays in int32.
    """

    layer: IntegerLayer
    data: Array
    output: Array
    fits_int32: bool


Observer = Callable[[LayerRun], None]


def run_layer(layer: IntegerLayer, data: Array) -> LayerRun:
    """Run one integer layer.

    Args:
        layer: the layer.
        data: codes without offset, integers in a float type, of the layer's input shape.

    Raises:
        ExportError: the weight is for another number of input channels.
    """
    total, counts = layer.accumulate(data)
    inside = total.size == 0 or (total.min() >= _INT32.min and total.max() <= _INT32.max)
    return LayerRun(layer, data, layer.dequantize(total, counts), bool(inside))


class Interpreter:
    """A deploy model, ready to run.

    Args:
        model: the deploy model, or its file.
        packed: the layers whose weight codes have 4 bits, two in a byte (``wts_type: "INT4"`` in the record).

    Raises:
        ExportError: the model is no deploy model that can be run, or its nodes are not in topological order.

    Attributes:
        crossings: what float nodes hand to float nodes of a later stage: (value, name of the node that reads it).
    """

    def __init__(self, model: onnx.ModelProto | Path, packed: Collection[str] = ()) -> None:
        loaded = load_model(model) if isinstance(model, Path) else model
        self.graph = take_apart(loaded, packed)
        stages = _stages(self.graph)
        self._steps = _plan(self.graph, stages)
        self.crossings = _crossings(self.graph, stages)
        self._last_use = _last_uses(self._steps, [output.name for output in loaded.graph.output])

    @property
    def layers(self) -> tuple[IntegerLayer, ...]:
        """The quantized layers in the order in which `run` reaches them."""
        return tuple(step for step in self._steps if isinstance(step, IntegerLayer))

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Compare feeds with the model's inputs.

        Raises:
            DataError: one is missing or unknown, or has another type or shape than the model declares.
        """
        check_feeds(self.graph.model.graph, feeds)

    def run(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Compute the model's outputs.

        Args:
            feeds: input name -> array.
            observe: called with each quantized layer as it is computed.

        Raises:
            DataError: an input is missing, unknown or of another type or shape, or a quantized value is NaN.
        """
        graph = self.graph.model.graph
        self.check(feeds)
        values: Values = dict(feeds)
        outputs = {output.name for output in graph.output}
        for number, step in enumerate(self._steps):
            if isinstance(step, Quantizer):
                values[step.output] = step.codes(values[step.source])
            elif isinstance(step, AntiQuantizer):
                values[step.output] = step.values(values[step.source])
            elif isinstance(step, IntegerLayer):
                layer = step if step.source_b is None else step.bound(values[step.source_b])
                values[step.output] = _observed(run_layer(layer, values[step.source]), observe)
            else:
                values.update(step.run(values))
            for name in self._last_use.get(number, ()):
                values.pop(name, None)
        codes = {step.output: step for step in self._steps if isinstance(step, Quantizer)}
        found = {name: values[name] if name in values else _constant(graph, name) for name in outputs}
        return {name: codes[name].stored(array) if name in codes else array for name, array in found.items()}


class _FloatStage:
    """The float nodes of one stage; their session is opened when the types of the inputs are known."""

    def __init__(self, graph: DeployGraph, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> None:
        initializers = {tensor.name: tensor for tensor in graph.model.graph.initializer}
        made = {name for node in nodes for name in node.output}
        read = set().union(*(values_read(node) for node in nodes)) - made
        self._model, self._nodes = graph.model, nodes
        self._initializers = [initializers[name] for name in sorted(read & initializers.keys())]
        self.sources = sorted(read - initializers.keys())
        self.outputs = list(outputs)
        self._session: ort.InferenceSession | None = None

    def run(self, values: Values) -> Values:
        feeds = {name: values[name] for name in self.sources}
        if self._session is None:
            part = part_of(self._model, self._nodes, feeds, self.outputs, self._initializers)
            self._session = session_of(part)
        return dict(zip(self.outputs, run_session(self._session, self.outputs, feeds), strict=True))


Step = Quantizer | IntegerLayer | AntiQuantizer | _FloatStage


def _observed(done: LayerRun, observe: Observer | None) -> Array:
    if observe is not None:
        observe(done)
    return done.output


def _plan(graph: DeployGraph, stages: Mapping[str, int]) -> list[Step]:
    """Order the work: the float nodes of a stage, then its quantizers, then its layers."""
    floats: dict[int, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.floats:
        floats[_stage_of(node, stages)].append(node)
    wanted = _read_elsewhere(graph, stages)
    steps: list[Step] = []
    for stage in range(max(stages.values(), default=0) + 1):
        made = [name for node in floats[stage] for name in node.output if name in wanted]
        if made:
            steps.append(_FloatStage(graph, floats[stage], made))
        steps += [quantizer for quantizer in graph.quantizers if stages[quantizer.output] == stage]
        steps += [layer for layer in graph.layers if max(stages[one] for one in layer.sources) == stage]
        steps += [anti for anti in graph.antiquantizers if stages[anti.source] == stage]
    return steps


def _stages(graph: DeployGraph) -> dict[str, int]:
    """Count, for every value, the quantized layers and inputs on the longest path before it."""
    model = graph.model.graph
    stages = {value.name: 0 for value in model.input} | {tensor.name: 0 for tensor in model.initializer}
    by_output = {layer.output: layer for layer in graph.layers}
    sources = {id(node) for node in graph.floats}
    for node in model.node:
        if node.op_type == "AscendDequant":
            _put_stage(stages, node, by_output[node.output[0]].sources, 1)
        elif node.op_type == "AscendAntiQuant":
            _put_stage(stages, node, [node.input[0]], 1)
        elif node.op_type == "AscendQuant" or id(node) in sources:
            _put_stage(stages, node, sorted(values_read(node)), 0)
    return stages


def _put_stage(stages: dict[str, int], node: onnx.NodeProto, read: Sequence[str], more: int) -> None:
    if missing := [name for name in read if name not in stages]:
        message = (
            f"node '{node.name}' ({node.op_type}) reads '{missing[0]}' before it is made: the order is not topological"
        )
        raise ExportError(message)
    stage = max((stages[name] for name in read), default=0) + more
    stages.update({name: stage for name in node.output if name})


def _read_elsewhere(graph: DeployGraph, stages: Mapping[str, int]) -> set[str]:
    """Values that a float stage must hand out: other stages, quantizers or the caller read them."""
    wanted = {output.name for output in graph.model.graph.output} | {item.source for item in graph.quantizers}
    for node in graph.floats:
        wanted |= {name for name in values_read(node) if stages[name] != _stage_of(node, stages)}
    return wanted


def _crossings(graph: DeployGraph, stages: Mapping[str, int]) -> frozenset[tuple[str, str]]:
    made = {name for node in graph.floats for name in node.output if name}
    return frozenset(
        (name, node.name)
        for node in graph.floats
        for name in made.intersection(node.input)
        if stages[name] != _stage_of(node, stages)
    )


def _stage_of(node: onnx.NodeProto, stages: Mapping[str, int]) -> int:
    return max((stages[name] for name in node.output if name), default=0)


def _last_uses(steps: Sequence[Step], kept: Sequence[str]) -> dict[int, list[str]]:
    """Return, for each step, the values that no later step reads."""
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        names = step.sources if isinstance(step, _FloatStage | IntegerLayer) else [step.source]
        last.update(dict.fromkeys(names, number))
    ends: dict[int, list[str]] = defaultdict(list)
    for name, number in last.items():
        if name not in kept:
            ends[number].append(name)
    return dict(ends)


def _constant(graph: onnx.GraphProto, name: str) -> Array:
    tensor = next(tensor for tensor in graph.initializer if tensor.name == name)
    return constant_array(tensor)
