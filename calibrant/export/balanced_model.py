"""The float model with its layers balanced: what DMQ makes of it before anything is quantized."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.export.balance import APPLIED, multipliers, multiply
from calibrant.export.graph_edit import Names, export_clone, into_memory, replace_initializer
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel, initializer_value
from calibrant.quantizers.affine import Float32Array
from calibrant.stats.input_channels import multiplied


def build_balanced(prepared: PreparedModel, factors: Mapping[str, Float32Array]) -> ir.Model:
    """Return the prepared model with weights multiplied by the factors and data by their reciprocals; it computes the same.

    Args:
        prepared: the float model.
        factors: layer name -> shape (Cin,).
    """
    model = export_clone(prepared)
    names, nodes = Names.of(model), {node.name: node for node in model.graph}
    for layer in prepared.layers:
        if layer.name in factors and layer.weight is not None:
            weight = initializer_value(prepared, layer.weight)
            _balance(model.graph, names, nodes[layer.name], layer, weight, factors[layer.name])
    model.graph.sort()
    return into_memory(model)


def _balance(
    graph: ir.Graph,
    names: Names,
    node: ir.Node,
    layer: Layer,
    weight: npt.NDArray[np.floating],
    factors: Float32Array,
) -> None:
    data = node.inputs[0]
    if data is None:
        return
    larger = multiplied(weight, factors, layer.op_type, layer.groups).astype(weight.dtype)
    node.replace_input_with(1, replace_initializer(node, 1, larger, names, graph))
    values = multipliers(layer.name, factors, layer.kernel_rank, str(weight.dtype))
    mul = multiply(graph, names, layer.name, values, data, suffix=APPLIED)
    graph.insert_before(node, mul)
    node.replace_input_with(0, mul.outputs[0])
