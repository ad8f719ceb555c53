"""DMQ in a graph: a Mul by 1/factor in front of a layer's quantizer, the same in both exported models (docs/export.md).

The node is called ``<layer>.mul`` and its constant ``<layer>.tensor_balance_factor``; nothing is folded into the producer.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from calibrant.errors import ExportError
from calibrant.export.graph_edit import Names, add_initializer
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.affine import Float32Array
from calibrant.stats.input_channels import along_data

Array = npt.NDArray[Any]

MUL = "mul"
FACTOR = "tensor_balance_factor"
APPLIED = "applied_balance_factor"  # in a float model: a Mul of its own, which no record of a later export speaks of


def multipliers(name: str, factors: Float32Array, kernel_rank: int, float_type: str) -> Array:
    """Return 1/factor along a layer's data, in the float type around the layer.

    Args:
        name: of the layer, for errors.
        factors: shape (Cin,).
        kernel_rank: of a convolution, 0 for a matrix.
        float_type: ``float32`` or ``float16``.

    Returns:
        shape [1, C, 1, …] of the weight's rank for a convolution, [1, C] for a matrix.

    Raises:
        ExportError: 1/factor has no positive finite value in float16.
    """
    laid = along_data(np.float32(1) / factors, kernel_rank)
    with np.errstate(over="ignore", under="ignore"):
        values: Array = laid.astype(float_type)
    if not np.all(np.isfinite(values) & (values > 0)):
        message = f"layer '{name}': 1/tensor_balance_factor leaves {float_type}; do not balance this layer"
        raise ExportError(message)
    return values


def multiply(
    graph: ir.Graph, names: Names, layer: str, values: Array, data: ir.Value, *, suffix: str = FACTOR
) -> ir.Node:
    """Make the Mul of a layer's data by constants, which are named after the layer; the caller places it."""
    constant = add_initializer(graph, names.fresh(f"{layer}.{suffix}"), values)
    name = names.fresh(f"{layer}.{MUL}")
    output = ir.Value(name=names.fresh(f"{name}.output0"), shape=data.shape, type=data.type)
    return ir.Node("", "Mul", [data, constant], outputs=[output], name=name)


def balance_fault(
    entry: RecordEntry,
    source: str,
    kernel_rank: int,
    producers: Mapping[str, onnx.NodeProto],
    initializers: Mapping[str, onnx.TensorProto],
) -> str | None:
    """Compare what stands before a quantizer with the factors of the record.

    Args:
        entry: the record of the layer.
        source: the float value that its quantizer reads.
        kernel_rank: of a convolution, 0 for a matrix.
        producers: the nodes of the model by what they make.
        initializers: of the model.

    Returns:
        What is wrong, or None.
    """
    layer, node = entry.key, producers.get(source)
    constant = None if node is None or node.op_type != "Mul" else initializers.get(node.input[1])
    if not entry.tensor_balance_factor:
        added = constant is not None and constant.name.startswith(f"{layer}.{FACTOR}")
        return (
            f"a Mul by '{layer}.{FACTOR}' stands before its quantizer, but the record has no factors" if added else None
        )
    if constant is None:
        return f"no Mul by 1/{FACTOR} stands before its quantizer, but the record has factors"
    factors = np.asarray(entry.tensor_balance_factor, np.float32)
    expected = multipliers(layer, factors, kernel_rank, (entry.op_data_type or "FLOAT32").lower())
    found = numpy_helper.to_array(constant)
    if found.dtype != expected.dtype or found.shape != expected.shape or not np.array_equal(found, expected):
        return f"the Mul before its quantizer is not by 1/{FACTOR} of the record, of shape {list(expected.shape)}"
    return None
