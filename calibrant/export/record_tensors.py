"""Entries of a record that stand for inputs of nodes that are no layers (``is_tensor_quantize``)."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from calibrant.errors import ConfigError
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.export.quantized_tensor import QuantizedTensor, in_order
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.nodes import model_nodes
from calibrant.proto.op_types import tensor_types
from calibrant.proto.record import RecordEntry
from calibrant.proto.record_rules import of_entry
from calibrant.stats.model_nodes import ModelNode


def tensors_of_record(
    entries: Sequence[RecordEntry], prepared: PreparedModel, quantized: Sequence[QuantizedLayer]
) -> list[QuantizedTensor]:
    """Return the inputs that a checked record quantizes, in the order of their nodes.

    Args:
        entries: a record that passed `check_record`.
        prepared: the model.
        quantized: the layers that the record quantizes.

    Raises:
        ConfigError: an input that the model does not have or that cannot be quantized; says ``file:line:column``.
    """
    nodes = model_nodes(prepared.model.graph)
    biases = {item.layer.bias_node: item.layer.name for item in quantized if item.layer.bias_node is not None}
    found = [_tensor(entry, nodes, biases) for entry in entries if entry.is_tensor_quantize]
    return in_order(prepared, found)


def _tensor(entry: RecordEntry, nodes: Mapping[str, ModelNode], biases: Mapping[str, str]) -> QuantizedTensor:
    name, _, text = entry.key.rpartition(":")
    node, index = nodes[name], int(text)
    types = tensor_types("atc")
    if node.op_type not in types:
        _reject(entry, "key", f"it is a {node.op_type}; only inputs of {', '.join(sorted(types))} can be quantized")
    if index >= node.inputs:
        count = f"{node.inputs} input{'s' if node.inputs > 1 else ''}, counted from 0"
        _reject(entry, "key", f"the node has {count}")
    if index in node.constant_inputs or index in node.not_float:
        kind = "constant" if index in node.constant_inputs else "no float tensor"
        _reject(entry, "key", f"input {index} is {kind}; delete the entry")
    if name in biases:
        _reject(entry, "key", f"the Add is the bias of layer '{biases[name]}', which is quantized; delete one of them")
    if entry.act_type not in (None, "INT8"):
        _reject(entry, "act_type", f"act_type is {entry.act_type}, but an input of a {node.op_type} can only be INT8")
    scale = np.float32(1 if entry.scale_d is None else entry.scale_d)
    with np.errstate(all="ignore"):
        if not np.isfinite(np.float32(1) / scale) or not np.isfinite(scale * np.float32(256)):
            _reject(entry, "scale_d", f"scale_d is {scale!s}, and 1/scale_d or the largest value leaves float32")
    return QuantizedTensor(name, index, scale, entry.offset_d or 0)


def _reject(entry: RecordEntry, field: str, text: str) -> NoReturn:
    raise ConfigError(of_entry(entry, field, text))
