"""Convolution, transposed convolution, matrix product and window sums in exact integers.

The integers are held in float32 or float64, so that BLAS does the work: float32 holds every sum of at most 2**24 exactly, float64
of at most 2**53, whatever the order of the additions. `working_type` chooses by the greatest possible sum. Kernel taps are
multiplied one after another (few-channel ones in small blocks), so no unfolded copy of the input is ever held.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.errors import RangeError, ShapeError

EXACT_FLOAT32 = 1 << 24  # float32 holds all integers up to here
_EXACT_FLOAT64 = 1 << 53
_BLOCK_ROWS = 64  # taps of few-channel inputs are joined until a matrix product has so many rows

Array = npt.NDArray[Any]
Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """Where a kernel touches its input; one entry a spatial axis.

    Attributes:
        kernel, strides, dilations: as in ONNX.
        begin, end: zeros before and after the input.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Input cells that a dilated kernel spans."""
        return tuple((size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True))


def working_type(greatest_sum: float) -> type[np.float32] | type[np.float64]:
    """Return the float type in which sums of at most `greatest_sum` in magnitude are exact.

    Raises:
        RangeError: not even float64 holds them.

    Example:
        >>> working_type(2**24).__name__, working_type(2**24 + 1).__name__
        ('float32', 'float64')
    """
    if greatest_sum > _EXACT_FLOAT64:
        message = f"sums of up to {greatest_sum:.3g} are not exact in float64 (2**53)"
        raise RangeError(message)
    return np.float32 if greatest_sum <= EXACT_FLOAT32 else np.float64


def resolve_window(attributes: Attributes, kernel: Sequence[int], sizes: Sequence[int]) -> Window:
    """Resolve ONNX's strides, dilations, pads and auto_pad for an input of these spatial sizes.

    Raises:
        ShapeError: an attribute has another rank than the kernel.
    """
    rank = len(kernel)
    strides = _attribute(attributes, "strides", [1] * rank, rank)
    dilations = _attribute(attributes, "dilations", [1] * rank, rank)
    pads = _attribute(attributes, "pads", [0] * (2 * rank), 2 * rank)
    auto = str(attributes.get("auto_pad", "NOTSET"))
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    bare = Window(tuple(kernel), strides, dilations, pads[:rank], pads[rank:])
    if not auto.startswith("SAME"):
        return bare
    totals = [
        max((ceil(size / stride) - 1) * stride + extent - size, 0)
        for size, stride, extent in zip(sizes, strides, bare.extents, strict=True)
    ]
    return Window(bare.kernel, strides, dilations, *split_padding(totals, lower=auto == "SAME_LOWER"))


def split_padding(totals: Sequence[int], *, lower: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Share padding between both ends; the odd cell goes to the beginning for `lower`, else to the end.

    Example:
        >>> split_padding([3], lower=False), split_padding([3], lower=True)
        (((1,), (2,)), ((2,), (1,)))
    """
    smaller = tuple(total // 2 for total in totals)
    larger = tuple(total - half for total, half in zip(totals, smaller, strict=True))
    return (larger, smaller) if lower else (smaller, larger)


def convolve(data: Array, weight: Array, window: Window, groups: int) -> Array:
    """Correlate zero-padded data with a kernel.

    Args:
        data: shape (N, C, W...), integers in a float type.
        weight: shape (O, C/groups, K...), the same type.
        window: strides, dilations and padding.
        groups: as in ONNX.

    Returns:
        shape (N, O, ...), the same type.
    """
    padded = _pad(data, window.begin, window.end)
    out_sizes = [
        (size - extent) // stride + 1
        for size, extent, stride in zip(padded.shape[2:], window.extents, window.strides, strict=True)
    ]
    batch, channels = data.shape[:2]
    total = np.zeros((batch, weight.shape[0], prod(out_sizes)), data.dtype)
    taps = list(_taps(window))
    joined = max(1, _BLOCK_ROWS * groups // channels) if _is_dense(weight, groups) else 1
    for start in range(0, len(taps), joined):
        block = taps[start : start + joined]
        seen = [
            _touched(padded, tap, window, out_sizes).reshape(batch, groups, channels // groups, -1) for tap in block
        ]
        rows = np.concatenate(seen, axis=2) if len(seen) > 1 else np.ascontiguousarray(seen[0])
        columns = np.concatenate([_inner(weight, tap) for tap in block], axis=1)
        _add_product(total, rows, columns)
    return total.reshape(batch, weight.shape[0], *out_sizes)


def convolve_transposed(data: Array, weight: Array, window: Window, groups: int, sizes: Sequence[int]) -> Array:
    """Spread every input cell over the output by a kernel, then cut off the padding.

    Args:
        data: shape (N, C, W...), integers in a float type.
        weight: shape (C, O/groups, K...), the same type.
        window: strides, dilations and the padding to cut off.
        groups: as in ONNX.
        sizes: spatial sizes of the output.

    Returns:
        shape (N, O, *sizes), the same type.
    """
    batch, channels = data.shape[:2]
    per_group = weight.shape[1]
    full = [
        max((size - 1) * stride + extent, begin + wanted)
        for size, stride, extent, begin, wanted in zip(
            data.shape[2:], window.strides, window.extents, window.begin, sizes, strict=True
        )
    ]
    total = np.zeros((batch, per_group * groups, *full), data.dtype)
    rows = np.ascontiguousarray(data.reshape(batch, groups, channels // groups, -1))
    for tap in _taps(window):
        kernel = _inner(weight, tap).reshape(groups, channels // groups, per_group)
        spread = np.matmul(np.ascontiguousarray(kernel.transpose(0, 2, 1)), rows)
        place = _touched_slices(tap, window, data.shape[2:])
        target = _inner(total, place)
        target += spread.reshape(batch, per_group * groups, *data.shape[2:])
    inside = tuple(slice(begin, begin + wanted) for begin, wanted in zip(window.begin, sizes, strict=True))
    return _inner(total, inside)


def transposed_window(attributes: Attributes, kernel: Sequence[int], sizes: Sequence[int]) -> tuple[Window, list[int]]:
    """Resolve padding and output sizes of ONNX's ConvTranspose, by output_shape, auto_pad or pads."""
    rank = len(kernel)
    bare = resolve_window({**attributes, "auto_pad": "NOTSET"}, kernel, sizes)
    extra = _attribute(attributes, "output_padding", [0] * rank, rank)
    auto, wanted = str(attributes.get("auto_pad", "NOTSET")), attributes.get("output_shape")
    full = [
        (size - 1) * stride + add + extent
        for size, stride, add, extent in zip(sizes, bare.strides, extra, bare.extents, strict=True)
    ]
    if wanted is None and not auto.startswith("SAME"):
        if auto == "VALID":
            bare = Window(bare.kernel, bare.strides, bare.dilations, (0,) * rank, (0,) * rank)
        return bare, [size - a - b for size, a, b in zip(full, bare.begin, bare.end, strict=True)]
    out = [size * stride for size, stride in zip(sizes, bare.strides, strict=True)]
    out = list(wanted)[-rank:] if wanted is not None else out
    totals = [max(size - target, 0) for size, target in zip(full, out, strict=True)]
    begin, end = split_padding(totals, lower=auto != "SAME_UPPER")
    return Window(bare.kernel, bare.strides, bare.dilations, begin, end), out


def pool_sums(data: Array, window: Window, *, ceil_mode: bool, count_pads: bool) -> tuple[Array, Array]:
    """Sum zero-padded data over windows and count the cells of each window.

    Args:
        data: shape (N, C, W...), integers in a float type.
        window: kernel, strides, dilations and padding.
        ceil_mode: whether a last window may reach beyond the padding; it counts only what lies within.
        count_pads: whether padding counts (ONNX's count_include_pad).

    Returns:
        sums of shape (N, C, ...) and float32 counts that broadcast against them.
    """
    out_sizes = _pooled_sizes(data.shape[2:], window, ceil_mode)
    reach = [
        (out - 1) * stride + extent - size - begin
        for out, stride, extent, size, begin in zip(
            out_sizes, window.strides, window.extents, data.shape[2:], window.begin, strict=True
        )
    ]
    padded = _pad(data, window.begin, tuple(max(end, more) for end, more in zip(window.end, reach, strict=True)))
    total = np.zeros((*data.shape[:2], *out_sizes), data.dtype)
    for tap in _taps(window):
        total += _touched(padded, tap, window, out_sizes)
    return total, _window_counts(data.shape[2:], window, out_sizes, count_pads)


def _pooled_sizes(sizes: Sequence[int], window: Window, ceil_mode: bool) -> list[int]:
    found = []
    for axis, size in enumerate(sizes):
        padded = size + window.begin[axis] + window.end[axis]
        steps = (padded - window.extents[axis]) / window.strides[axis]
        out = (ceil(steps) if ceil_mode else int(steps // 1)) + 1
        if ceil_mode and (out - 1) * window.strides[axis] >= size + window.begin[axis]:
            out -= 1  # a window must not start in the padding after the input
        found.append(out)
    return found


def _window_counts(sizes: Sequence[int], window: Window, out_sizes: Sequence[int], count_pads: bool) -> Array:
    counts = np.ones((), np.float32)
    for axis, size in enumerate(sizes):
        begin, end = window.begin[axis], window.end[axis]
        starts = np.arange(out_sizes[axis])[:, None] * window.strides[axis]
        cells = starts + np.arange(window.kernel[axis]) * window.dilations[axis] - begin
        inside = (cells >= -begin) & (cells < size + end) if count_pads else (cells >= 0) & (cells < size)
        counts = counts[..., None] * inside.sum(axis=1).astype(np.float32)
    return counts


def _is_dense(weight: Array, groups: int) -> bool:
    return not (weight.shape[1] == 1 and groups > 1)


def _add_product(total: Array, rows: Array, columns: Array) -> None:
    """Add ``columns @ rows`` of each group to `total` (N, O, P); depthwise kernels are multiplied without a matrix product."""
    batch, groups, depth, cells = rows.shape
    target = total.reshape(batch, groups, -1, cells)
    kernel = np.ascontiguousarray(columns).reshape(groups, -1, depth)
    target += kernel * rows if depth == 1 else np.matmul(kernel, rows)


def _taps(window: Window) -> Iterator[tuple[int, ...]]:
    return product(*(range(size) for size in window.kernel))


def _touched_slices(tap: Sequence[int], window: Window, out_sizes: Sequence[int]) -> tuple[slice, ...]:
    starts = [position * step for position, step in zip(tap, window.dilations, strict=True)]
    return tuple(
        slice(start, start + (out - 1) * stride + 1, stride)
        for start, out, stride in zip(starts, out_sizes, window.strides, strict=True)
    )


def _touched(padded: Array, tap: Sequence[int], window: Window, out_sizes: Sequence[int]) -> Array:
    return _inner(padded, _touched_slices(tap, window, out_sizes))


def _inner(array: Array, place: Sequence[Any]) -> Array:
    """View an array at places of its last axes."""
    key: tuple[Any, ...] = (..., *place)
    view: Array = array[key]
    return view


def _pad(data: Array, begin: Sequence[int], end: Sequence[int]) -> Array:
    """Pad with zeros; negative padding cuts off, as ONNX allows."""
    widths = [(0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in zip(begin, end, strict=True))]
    padded = np.pad(data, widths) if any(a or b for a, b in widths) else data
    cut = tuple(
        slice(max(-a, 0), padded.shape[axis + 2] - max(-b, 0))
        for axis, (a, b) in enumerate(zip(begin, end, strict=True))
    )
    return _inner(padded, cut)


def _attribute(attributes: Attributes, name: str, default: list[int], length: int) -> tuple[int, ...]:
    values = tuple(int(value) for value in attributes.get(name) or default)
    if len(values) != length:
        message = f"attribute {name} has {len(values)} entries, but the kernel asks for {length}"
        raise ShapeError(message)
    return values
