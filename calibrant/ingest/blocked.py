"""Captured tensors as onnxruntime computes them: with 8 or 16 channels side by side, without the copy that puts them in order.

Convolutions run on arrays (N, C / b, height, width, b). Where such a tensor is exposed, onnxruntime reorders it, which costs as much as
half the inference (docs/performance.md); nothing that is folded depends on the order. So the capture exposes the value before the
reordering. That its memory is what this module takes it for is not believed but compared, bit by bit, on the first sample.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import onnx

from calibrant.ingest.exposed_graph import read_names
from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.sample_axis import equal_bits
from calibrant.ingest.samples import Array

_DOMAIN: Final = "com.microsoft.nchwc"
_REORDER: Final = "ReorderOutput"
_WIDTHS: Final = (16, 8, 32, 4)  # channels side by side, by CPU
_WHOLE: Final = 16  # tensors of other numbers of channels have some that exist only in memory


def blocked_values(model: onnx.ModelProto, tensors: Sequence[CapturedTensor]) -> dict[str, str]:
    """Return the tensors that an optimized model holds in blocks of channels, and the values that do.

    Args:
        model: optimized, with these tensors among its outputs.
        tensors: of a capture.

    Returns:
        captured tensor -> value of the model.
    """
    reordered = {node.output[0]: node for node in model.graph.node if _reorders(node)}
    needed = {name for node in model.graph.node for name in read_names(node)}
    found = {}
    for tensor in tensors:
        node = reordered.get(tensor.name)
        is_free = tensor.channel_axis == 1 and tensor.name not in needed
        if node is not None and is_free and _integer(node, "channels") % _WHOLE == 0:
            found[tensor.name] = node.input[0]
    return found


def _integer(node: onnx.NodeProto, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)


def _reorders(node: onnx.NodeProto) -> bool:
    """Return whether a node puts the channels in order and leaves them in front of the other axes."""
    return node.domain == _DOMAIN and node.op_type == _REORDER and not _integer(node, "channels_last")


def in_blocks(array: Array, width: int) -> Array:
    """Return the memory of a blocked array in its true shape, (N, C / width, ..., width).

    Example:
        >>> import numpy as np
        >>> in_blocks(np.zeros((2, 16, 5, 7), np.float32), 8).shape
        (2, 2, 5, 7, 8)
    """
    count, channels, *spatial = array.shape
    return array.reshape(count, channels // width, *spatial, width)


def in_order(array: Array, channel_axis: int = 1) -> Array:
    """Return an array of blocks with its channels in order.

    Args:
        array: shape (..., C / width, ..., width).
        channel_axis: where its blocks are.

    Example:
        >>> import numpy as np
        >>> in_order(np.zeros((2, 2, 5, 7, 8), np.float32)).shape
        (2, 16, 5, 7)
    """
    *shape, width = array.shape
    shape[channel_axis] *= width
    moved = array.transpose(*range(channel_axis + 1), array.ndim - 1, *range(channel_axis + 1, array.ndim - 1))
    return moved.reshape(shape)


def _widths_of(found: Array, expected: Array) -> set[int]:
    """Return the numbers of channels side by side that explain every bit; more than one where values are alike."""
    if found.shape != expected.shape or found.ndim < 2:
        return set()
    fitting = (width for width in _WIDTHS if found.shape[1] % width == 0)
    return {width for width in fitting if _explains(in_blocks(found, width), expected)}


def _explains(blocks: Array, expected: Array) -> bool:
    """Return whether blocks hold the expected bits; the first block alone refutes most that do not."""
    width = blocks.shape[-1]
    first = equal_bits(in_order(blocks[:, :1]), expected[:, :width])
    return first and equal_bits(in_order(blocks), expected)


def proven_width(pairs: Iterable[tuple[Array, Array]]) -> int | None:
    """Return how many channels lie side by side, where one number explains every bit; a sample of zeros proves none.

    Args:
        pairs: what a session gave as it lies in memory, and in order.
    """
    common = set.intersection(*(_widths_of(*pair) for pair in pairs))
    return common.pop() if len(common) == 1 else None
