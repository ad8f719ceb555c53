"""``PREFIX_quant.json``: which source nodes each item of the deploy graph stands for (docs/export.md).

Huawei's accuracy comparison reads it to match the layers of a quantized model with those of the float model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from calibrant.export.rewrite import AnyPlacement, Placement, TensorPlacement
from calibrant.export.weight_only import WeightPlacement

Json = dict[str, Any]


def format_quant_map(
    deploy: ir.Model,
    placements: Sequence[AnyPlacement],
    original_nodes: Mapping[str, tuple[str, ...]],
    name: str,
) -> str:
    """Return the map as JSON text, two-space indentation.

    Args:
        deploy: the deploy model.
        placements: where its quantizers and dequantizers stand.
        original_nodes: prepared node name -> names of the source model's nodes (a Conv with its fused BatchNormalization: both).
        name: the save prefix.
    """
    origins = _origins(placements, original_nodes)
    dequantizers = {placement.dequantizer for placement in placements if isinstance(placement, Placement)}
    items = [_item(item, kind, origins.get(item, ()), item in dequantizers) for item, kind in _items(deploy.graph)]
    return json.dumps({"name": name, "graph": [{"op": items}]}, indent=2, ensure_ascii=False) + "\n"


def _items(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    for value in graph.inputs:
        yield value.name or "", "graph_input"
    for value in graph.initializers.values():
        yield value.name or "", "initializer"
    for node in graph:
        yield node.name or "", node.op_type
    for value in graph.outputs:
        yield value.name or "", "graph_output"


def _origins(
    placements: Sequence[AnyPlacement], original_nodes: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Source nodes by item; a shared quantizer stands for the first of its layers, a MatMul's dequantizer for its Add as well."""
    origins: dict[str, tuple[str, ...]] = {}
    for placement in placements:
        if isinstance(placement, TensorPlacement):
            own = _original(placement.encoded.owner, original_nodes)
            origins.setdefault(placement.quantizer, own)
            origins[placement.antiquantizer] = own
            continue
        layer = placement.encoded.layer
        if isinstance(placement, WeightPlacement):
            origins.update(dict.fromkeys((layer.name, *placement.names), _original(layer.name, original_nodes)))
            continue
        own = _original(layer.name, original_nodes)
        whole = own if layer.bias_node is None else own + _original(layer.bias_node, original_nodes)
        origins[layer.name] = own
        origins.setdefault(placement.quantizer, own)
        origins.update(dict.fromkeys(placement.balance, own))
        origins[placement.dequantizer] = origins[placement.parameter] = whole
        if layer.bias_node is not None:
            origins[layer.bias_node] = _original(layer.bias_node, original_nodes)
    return origins


def _original(name: str, original_nodes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(original_nodes.get(name, (name,)))


def _item(name: str, kind: str, originals: tuple[str, ...], is_dequantizer: bool) -> Json:
    item: Json = {"name": name, "type": kind}
    if originals:
        item["attr"] = [_entry("_datadump_original_op_names", {"list": {"val_type": 1, "s": list(originals)}})]
    if is_dequantizer:
        item["output_desc"] = [{"attr": _output_description(originals)}]
    return item


def _output_description(originals: tuple[str, ...]) -> list[Json]:
    """Describe the float output: it is that of the last source node (of a fused Conv and BatchNormalization, the latter)."""
    return [
        _entry("_datadump_origin_format", {"s": "NCHW"}),
        _entry("_datadump_data_type", {"s": "DT_FLOAT"}),
        _entry("_datadump_origin_output_index", {"i": 0}),
        _entry("_datadump_origin_name", {"s": originals[-1]}),
    ]


def _entry(key: str, value: Json) -> Json:
    return {"key": key, "value": value}
