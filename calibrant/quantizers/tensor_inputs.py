"""``tensor_quantize``: inputs of nodes that are no layers, quantized for the sake of faster transport."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from calibrant.errors import ConfigError, nearest
from calibrant.proto.op_types import tensor_types
from calibrant.proto.settings import IfmrSettings, TensorSettings
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.layer_plan import TENSOR, LayerPlan, TensorPlan
from calibrant.quantizers.layer_settings import DEFAULT, data_plan, inherited_asymmetric
from calibrant.stats.events import Event
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow


class TensorInputs:
    """The inputs that a configuration names, each checked against the model.

    Args:
        config: what the user asked for.
        nodes: the model's nodes by name.

    Raises:
        ConfigError: a node that does not exist, is of another type, lacks the input or has a constant there; or INT16.

    Attributes:
        plans: one an input, in the order of the file.
        events: what a person should know.
    """

    def __init__(self, config: QuantConfig, nodes: Mapping[str, ModelNode]) -> None:
        self._config = config
        self._nodes = nodes
        self._types = tensor_types(config.dialect) or tensor_types("onnx")
        self.events: list[Event] = []
        self.plans = tuple(self._plan(one) for one in self._last_ones())

    def _last_ones(self) -> Iterator[TensorSettings]:
        """Yield the settings of each input: of several the last, which a warning tells."""
        found: dict[tuple[str, int], TensorSettings] = {}
        for one in self._config.tensor_quantize:
            key = (one.layer, one.input_index)
            if (first := found.pop(key, None)) is not None:
                where, before = self._where(one), self._where(first)
                text = f"{where}: {TENSOR} names input {one.input_index} of '{one.layer}' again (before at {before}): the last wins"
                self.events.append(Event("fit", "warn", text, one.layer))
            found[key] = one
        yield from found.values()

    def _plan(self, one: TensorSettings) -> TensorPlan:
        node = self._checked_node(one)
        settings = IfmrSettings() if one.data is None else one.data
        if settings.dst_type == "INT16":
            self._reject(one, f"dst_type is INT16, but an input of a {node.op_type} can only be INT8")
        value, source = inherited_asymmetric(self._config, settings)
        asymmetric, rule = (settings.asymmetric, TENSOR) if settings.asymmetric is not None else (value, source.rule)
        data_rule = DEFAULT if one.data is None else TENSOR
        plan = data_plan(settings, 8, asymmetric=asymmetric)
        tensor = node.tensors[one.input_index] if node.tensors else ""
        found = TensorPlan(one.layer, node.op_type, one.input_index, plan, data_rule, rule, tensor)
        return (
            self._in_float(found, f"in a model with float16 Ascend quantizes no {node.op_type}") if node.half else found
        )

    def _checked_node(self, one: TensorSettings) -> ModelNode:
        node = self._nodes.get(one.layer)
        if node is None:
            self._reject(one, f"the model has no such node{self._hint(one.layer)}")
        if node.op_type not in self._types:
            known, hint = " and ".join(sorted(self._types)), nearest(one.layer, self._able())
            self._reject(one, f"it is a {node.op_type}; only inputs of {known} can be named{hint}")
        if not 0 <= one.input_index < node.inputs:
            count = f"{node.inputs} input{'s' if node.inputs > 1 else ''}, counted from 0"
            self._reject(one, f"input_index is {one.input_index}, but the node has {count}")
        if one.input_index in node.constant_inputs:
            self._reject(one, f"input {one.input_index} is constant; name an input that is computed")
        if one.input_index in node.not_float:
            self._reject(one, f"input {one.input_index} is no float tensor; only float32 and float16 can be quantized")
        return node

    def beside(self, rows: Sequence[LayerPlan], layers: Sequence[LayerRow]) -> tuple[TensorPlan, ...]:
        """Return the plans beside those of the layers: an Add that holds a MatMul's bias adds whole numbers, so it stays as it is.

        Args:
            rows: the plans of the layers.
            layers: the layers, in the same order.
        """
        holders = {
            layer.bias: layer.layer
            for row, layer in zip(rows, layers, strict=True)
            if layer.op_type == "MatMul" and layer.bias is not None and row.enabled and not row.applied.weight_only
        }
        return tuple(self._beside(one, holders) for one in self.plans)

    def _beside(self, one: TensorPlan, holders: Mapping[str, str]) -> TensorPlan:
        found = [holders[name] for name in self._nodes[one.layer].tensors if name in holders]
        if one.op_type != "Add" or not found:
            return one
        return self._in_float(one, f"the Add is the bias of layer '{found[0]}', which is quantized")

    def _in_float(self, one: TensorPlan, reason: str) -> TensorPlan:
        self.events.append(Event("fit", "warn", f"{TENSOR} of '{one.key}' has no effect: {reason}", one.layer))
        return replace(one, reason=reason)

    def _able(self) -> list[str]:
        return [name for name, node in self._nodes.items() if node.op_type in self._types]

    def _hint(self, name: str) -> str:
        """Return the nearest name, or a few that can be named."""
        able = self._able()
        few = f"; it could be {', '.join(able[:3])}{' …' if len(able) > 3 else ''}" if able else ""
        return nearest(name, able) or nearest(name, self._nodes) or few

    def _reject(self, one: TensorSettings, text: str) -> NoReturn:
        message = f"{self._where(one)}: {TENSOR} names '{one.layer}': {text}"
        raise ConfigError(message)

    def _where(self, one: TensorSettings) -> str:
        return one.place or self._config.where(TENSOR)
