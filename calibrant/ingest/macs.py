"""Count the multiply-accumulates of a layer."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from calibrant.ingest.explicit_pad import pad_amounts, pad_before
from calibrant.ingest.nodes import parameter
from calibrant.ingest.passes.constants import initializer_tensor

if TYPE_CHECKING:
    from calibrant.ingest.layers import Layer
    from calibrant.ingest.prepared import PreparedModel


def layer_macs(prepared: "PreparedModel", layer: "Layer", input_shape: Sequence[int]) -> int | None:
    """Count the multiply-accumulates of a layer on an input of this shape; give one sample's shape for those of a sample.

    A pooling layer counts one for each element of a window. None where the layer's weight is not known.

    Args:
        prepared: the model that the layer belongs to.
        layer: the layer.
        input_shape: shape of the value on input 0, the batch axis included.
    """
    node = prepared.model.graph.node(layer.name)
    weight = initializer_tensor(parameter(node, 1))
    if layer.op_type == "GlobalAveragePool":
        return prod(input_shape)
    if layer.op_type == "AveragePool":
        kernel = node.attributes.get_ints("kernel_shape", ())
        sizes = _padded(node, input_shape[2:])
        return prod((*input_shape[:2], *_windows(node, sizes, kernel), *kernel))
    if weight is None:
        return None
    dims = weight.shape.numpy()
    if layer.op_type == "Conv":
        return prod((input_shape[0], *_windows(node, input_shape[2:], dims[2:]), *dims))
    if layer.op_type == "ConvTranspose":
        return prod((input_shape[0], *input_shape[2:], *dims))
    return prod((*_product_rows(input_shape, dims[:-2]), *dims[-2:]))


def _padded(node: ir.Node, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return spatial sizes behind the Pad of an AveragePool; without one as they are."""
    pad = pad_before(node)
    amounts = None if pad is None else pad_amounts(pad)
    if amounts is None:
        return tuple(sizes)
    rank = len(amounts) // 2
    return tuple(size + amounts[2 + axis] + amounts[rank + 2 + axis] for axis, size in enumerate(sizes))


def _product_rows(input_shape: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a product without its columns, for a weight with these leading axes (broadcast as matmul does)."""
    rows = tuple(input_shape[-2:-1]) or (1,)
    return (*np.broadcast_shapes(tuple(input_shape[:-2]), tuple(batch)), *rows)


def _windows(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return how many windows fit along each axis (ONNX's formula, auto_pad included)."""
    rank = len(sizes)
    strides = node.attributes.get_ints("strides", (1,) * rank)
    dilations = node.attributes.get_ints("dilations", (1,) * rank)
    pads = node.attributes.get_ints("pads", (0,) * (2 * rank))
    auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
    if auto_pad.startswith("SAME"):
        return [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    if auto_pad == "VALID":
        pads = (0,) * (2 * rank)
    counts = []
    for axis, (size, extent, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        room = size + pads[axis] + pads[axis + rank] - dilation * (extent - 1) - 1
        rounded = -(-room // stride) if node.attributes.get_int("ceil_mode", 0) else room // stride
        counts.append(rounded + 1)
    return counts
