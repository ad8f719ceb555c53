"""``joint_quant``: the layers whose outputs meet at an Add share one scale of their data (our reading; no source defines it).

A branch is a layer with a weight, directly or through a Relu; a MatMul with its bias counts as one layer. An Add with another branch
joins nothing. Layers that meet at several Adds belong to one group, which is named after its first Add.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.layer_plan import LayerPlan
from calibrant.stats.events import Event
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow


def join_layers(
    config: QuantConfig, rows: Sequence[LayerPlan], layers: Sequence[LayerRow], nodes: Mapping[str, ModelNode]
) -> tuple[tuple[LayerPlan, ...], list[Event]]:
    """Name the group of each layer that is quantized jointly.

    Args:
        config: what the user asked for.
        rows: the plans of the layers.
        layers: the layers, in the same order.
        nodes: the model's nodes by name, in their order.

    Returns:
        The plans, and what a person should know.
    """
    if not config.joint_quant:
        return tuple(rows), []
    by_name, events = {row.layer: row for row in rows}, []
    joint: dict[str, str] = {}
    for add, names in _groups(_Branches(rows, layers, nodes)).items():
        reason = _obstacle([by_name[name] for name in names])
        if reason is None:
            joint |= dict.fromkeys(names, add)
        else:
            text = f"joint_quant: the layers that meet at '{add}' keep scales of their own: {reason}"
            events.append(Event("fit", "warn", text, layer=add))
    if not joint and not events:
        text = (
            f"{config.where('joint_quant')}: joint_quant: true changes nothing: no two quantized layers meet at an Add"
        )
        events.append(Event("fit", "info", text))
    return tuple(replace(row, joint=joint.get(row.layer)) for row in rows), events


class _Branches:
    """Finds the layer behind each input of an Add."""

    def __init__(self, rows: Sequence[LayerPlan], layers: Sequence[LayerRow], nodes: Mapping[str, ModelNode]) -> None:
        able = [
            layer
            for row, layer in zip(rows, layers, strict=True)
            if row.enabled and layer.weight is not None and not row.applied.weight_only
        ]
        self.nodes = nodes
        self._layers = {layer.layer for layer in able}
        self._biases = {layer.bias: layer.layer for layer in able if layer.op_type == "MatMul" and layer.bias}
        self._makers = {tensor: name for name, node in nodes.items() for tensor in node.outputs}

    def of(self, add: ModelNode) -> list[str | None]:
        """Return the layer of each input, None for another kind of branch."""
        return [self._layer(self._makers.get(tensor)) for tensor in add.tensors]

    def is_bias(self, add: ModelNode) -> bool:
        """Whether an Add is the bias of a quantized MatMul."""
        return any(tensor in self._biases for tensor in add.tensors)

    def _layer(self, name: str | None) -> str | None:
        node = None if name is None else self.nodes[name]
        if name is None or node is None:
            return None
        if node.op_type == "Relu":
            maker = self._makers.get(node.tensors[0])
            return None if maker is None or self.nodes[maker].op_type == "Relu" else self._layer(maker)
        held = [self._biases[tensor] for tensor in node.tensors if tensor in self._biases]
        if node.op_type == "Add" and held:
            return held[0]
        return name if name in self._layers and name not in self._biases.values() else None


def _groups(branches: _Branches) -> dict[str, list[str]]:
    """Return the layers that meet, by the first Add of each group, in the order of the Adds."""
    groups: dict[str, list[str]] = {}
    for name, node in branches.nodes.items():
        if node.op_type != "Add" or branches.is_bias(node):
            continue
        found = [layer for layer in branches.of(node) if layer is not None]
        if len(found) < len(node.tensors) or len(set(found)) < len(found):
            continue
        touched = [add for add, members in groups.items() if set(members) & set(found)]
        first = touched[0] if touched else name
        members = [layer for add in touched for layer in groups.pop(add)]
        groups[first] = list(dict.fromkeys([*members, *found]))
    return groups


def _obstacle(rows: Sequence[LayerPlan]) -> str | None:
    """Return why layers cannot share a scale, or None."""
    if balanced := next((row.layer for row in rows if row.applied.migration_strength is not None), None):
        return f"the data of '{balanced}' is balanced"
    if len({row.applied.data for row in rows}) > 1:
        return f"their data has other settings ({', '.join(repr(row.layer) for row in rows[:3])})"
    return None
