"""Captured tensors as onnxruntime computes them: with 8 or 16 channels side by side, without the copy that puts them in order.

Convolutions run on arrays (N, C / b, height, width, b). Where such a tensor is exposed, onnxruntime reorders it, which costs as much as
half the inference (docs/performance.md); nothing that is folded depends on the order. So the capture exposes the value before the
reordering. That its memory is what this module takes it for is not believed but compared, bit by bit, on the first sample.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import onnx_ir as ir

from calibrant.ingest.model import CapturedTensor
from calibrant.ingest.sample_axis import equal_bits
from calibrant.ingest.samples import Array
from calibrant.ingest.session import ActivationSession, InferenceError, values_by_name

_DOMAIN: Final = "com.microsoft.nchwc"
_REORDER: Final = "ReorderOutput"
_WIDTHS: Final = (16, 8, 32, 4)  # channels side by side, by CPU
_WHOLE: Final = 16  # tensors of other numbers of channels have some that exist only in memory


def _blocked_value(value: ir.Value) -> ir.Value | None:
    """Return what a value is a reordered copy of, where nothing else needs the copy."""
    node = value.producer()
    if node is None or node.domain != _DOMAIN or node.op_type != _REORDER or value.uses():
        return None
    channels = node.attributes.get("channels")
    return node.inputs[0] if channels is not None and channels.as_int() % _WHOLE == 0 else None


def blocked_values(path: Path, tensors: Sequence[CapturedTensor]) -> dict[str, str]:
    """Return the tensors that an optimized model holds in blocks of channels, and the values that do.

    Args:
        path: the optimized model, with these tensors among its outputs.
        tensors: of a capture.

    Returns:
        captured tensor -> value of the model.
    """
    values = values_by_name(ir.load(path))
    found = {}
    for tensor in tensors:
        blocked = None if tensor.is_input or tensor.channel_axis != 1 else _blocked_value(values[tensor.name])
        if blocked is not None:
            found[tensor.name] = str(blocked.name)
    return found


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
    return {width for width in fitting if equal_bits(in_order(in_blocks(found, width)), expected)}


class BlockedSession:
    """Runs a model whose convolutions' tensors are exposed in blocks of channels.

    Args:
        session: exposes them.
        widths: by tensor: how many channels lie side by side, or None where they are in order.
    """

    def __init__(self, session: ActivationSession, widths: Sequence[int | None]) -> None:
        self._session = session
        self.widths = tuple(widths)

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """Return the tensors of one feed; those in blocks in the shape (N, C / width, ..., width).

        Raises:
            InferenceError: onnxruntime refuses the feed.
        """
        pairs = zip(self._session.run(feed), self.widths, strict=True)
        return [array if width is None else in_blocks(array, width) for array, width in pairs]


def proven_blocks(
    blocked: ActivationSession,
    ordered: ActivationSession,
    tensors: Sequence[CapturedTensor],
    names: Mapping[str, str],
    feed: Mapping[str, Array],
) -> BlockedSession | None:
    """Return the session that gives blocks, where one order of channels explains every bit of a feed's tensors, else None.

    Args:
        blocked: exposes `names` in place of the tensors.
        ordered: exposes the tensors.
        tensors: what both give.
        names: as `blocked_values` gives them.
        feed: of the first sample.
    """
    try:
        pairs = zip(tensors, blocked.run(feed), ordered.run(feed), strict=True)
        widths = [_widths_of(one, other) for tensor, one, other in pairs if tensor.name in names]
    except InferenceError:
        return None  # whoever runs the sample tells what is wrong with it
    common = set.intersection(*widths)
    if len(common) != 1:
        return None  # a sample of zeros explains every order, so it proves none
    width = common.pop()
    return BlockedSession(blocked, [width if tensor.name in names else None for tensor in tensors])
