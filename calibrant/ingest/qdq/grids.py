"""What a QuantizeLinear or DequantizeLinear says: scale, zero point, type of the codes and the axis of its scales."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from calibrant.errors import ModelError
from calibrant.ingest.passes.constants import ConstantValues

Array = npt.NDArray[Any]
Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]

QUANTIZE: Final = "QuantizeLinear"
DEQUANTIZE: Final = "DequantizeLinear"
_DOMAINS: Final = ("", "com.microsoft")  # onnxruntime's own pair has the same meaning and wider types
RANGES: Final = {
    "int2": (-2, 1), "uint2": (0, 3), "int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1), "int32": (-(2**31), 2**31 - 1),
}  # fmt: skip
_NARROW: Final = (
    "int2",
    "uint2",
    "int4",
    "uint4",
    "int8",
    "uint8",
)  # int8 holds their codes, those of uint8 after a shift
_UINT8_SHIFT: Final = 128


def is_pair_node(node: ir.Node, op_type: str) -> bool:
    """Whether a node is a QuantizeLinear or DequantizeLinear, as `op_type` says."""
    return node.op_type == op_type and node.domain in _DOMAINS


@dataclass(frozen=True, eq=False)
class Grid:
    """The values that codes stand for: ``(code - zero_point) * scale``.

    Attributes:
        node: name of the QuantizeLinear or DequantizeLinear.
        scale: shape () for one scale, (C,) for one a slice along `axis`, or that of the blocks.
        zero_point: integers of the same shape.
        code_type: type of the codes, e.g. ``uint8``.
        axis: of the slices or blocks; None where there is one scale.
        block_size: how many elements along the axis share a scale; 0: blocks are not used.
    """

    node: str
    scale: Float32Array
    zero_point: Int64Array
    code_type: str
    axis: int | None
    block_size: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether the codes are whole numbers."""
        return self.code_type in RANGES

    def agrees_with(self, other: "Grid") -> bool:
        """Whether both stand for the same values."""
        same = np.array_equal(self.scale, other.scale) and np.array_equal(self.zero_point, other.zero_point)
        return same and (self.code_type, self.axis, self.block_size) == (other.code_type, other.axis, other.block_size)

    def refusal(self) -> str | None:
        """Return why data on this grid cannot be int8 data with one scale; None where it can."""
        if self.block_size:
            return f"its data has blocks of {self.block_size} with a scale each; data has one scale"
        if self.axis is not None:
            return f"its data has {self.scale.size} scales along axis {self.axis}; data has one scale"
        if self.code_type not in _NARROW:
            return f"its data is {self.code_type}; int8 data is quantized"
        with np.errstate(all="ignore"):
            finite = np.isfinite(np.float32(1) / self.scale) and np.isfinite(self.scale * np.float32(256))
        return None if finite else f"its data scale {self.scale!s} has no float32 reciprocal or range"

    def data(self) -> "DataGrid":
        """Return the grid as int8 data has it; it must not be refused."""
        shift = _UINT8_SHIFT if self.code_type == "uint8" else 0
        low, high = RANGES[self.code_type]
        return DataGrid(
            np.float32(self.scale.reshape(())), int(self.zero_point.item()) - shift, low - shift, high - shift
        )

    def dequantize(self, codes: Array) -> Float32Array:
        """Return the float32 values of codes, as onnxruntime computes them."""
        scale, zero_point = self.along(codes.shape)
        if not self.is_integer:
            return codes.astype(np.float32) * scale
        difference = codes.astype(np.int64) - zero_point
        with np.errstate(over="ignore"):  # an infinite weight has its own reason to stay in float
            return (difference.astype(np.float32) * scale).astype(np.float32)

    def quantize(self, values: Array) -> Int64Array:
        """Return the codes of values: divided, rounded half to even, moved and clipped."""
        scale, zero_point = self.along(values.shape)
        low, high = RANGES[self.code_type]
        with np.errstate(over="ignore"):
            scaled = np.rint(values.astype(np.float32) / scale)
        codes: Int64Array = np.clip(scaled + zero_point.astype(np.float32), low, high).astype(np.int64)
        return codes

    def along(self, shape: tuple[int, ...]) -> tuple[Float32Array, Int64Array]:
        """Return scale and zero point in a form that broadcasts against values of a shape.

        Raises:
            ModelError: the scales do not fit it.
        """
        if self.axis is None:
            return self.scale.reshape(()), self.zero_point.reshape(())
        axis = self.axis + len(shape) if self.axis < 0 else self.axis
        fits = 0 <= axis < len(shape)
        if fits and self.block_size:
            kept = range(shape[axis])
            scale = np.repeat(self.scale, self.block_size, axis).take(kept, axis)
            return scale, np.repeat(self.zero_point, self.block_size, axis).take(kept, axis)
        if not fits or self.scale.size != shape[axis]:
            message = (
                f"{self.node}: {self.scale.size} scales along axis {self.axis} do not fit values of shape {list(shape)}"
            )
            raise ModelError(message)
        spread = [-1 if one == axis else 1 for one in range(len(shape))]
        return self.scale.reshape(spread), self.zero_point.reshape(spread)


@dataclass(frozen=True)
class DataGrid:
    """One scale and offset of int8 data, and the codes that are used.

    Attributes:
        scale: step of the codes.
        offset: code of zero.
        low: least code; -128, or more where the model uses a part of the range.
        high: greatest code; 127, or less.
    """

    scale: np.float32
    offset: int
    low: int = -128
    high: int = 127

    @property
    def is_whole(self) -> bool:
        """Whether all codes of int8 are used."""
        return (self.low, self.high) == (-128, 127)

    @property
    def ends(self) -> tuple[np.float32, np.float32]:
        """Return the least and the greatest value."""
        return np.float32(self.low - self.offset) * self.scale, np.float32(self.high - self.offset) * self.scale


def read_grid(node: ir.Node, constants: ConstantValues) -> Grid:
    """Read what a QuantizeLinear or DequantizeLinear says.

    Raises:
        ModelError: its scale or zero point is computed, or no scale.
    """
    scale = _constant(node, 1, constants, "scale").astype(np.float32)
    given = node.inputs[2] if len(node.inputs) > 2 else None
    code_type = _code_type(node, given, constants)
    zero = np.zeros(scale.shape, np.int64)
    if given is not None and code_type in RANGES:
        zero = np.broadcast_to(_constant(node, 2, constants, "zero point").astype(np.int64).reshape(-1), scale.size)
        zero = zero.reshape(scale.shape)
    if not np.all(np.isfinite(scale) & (scale > 0)):
        message = (
            f"{node.op_type} '{node.name}': scale {scale.reshape(-1)[:3].tolist()}; positive and finite is expected"
        )
        raise ModelError(message)
    block = node.attributes.get_int("block_size", 0)
    axis = None if scale.size == 1 and not block else node.attributes.get_int("axis", 1)
    return Grid(str(node.name), scale, zero, code_type, axis, block)


def _constant(node: ir.Node, slot: int, constants: ConstantValues, what: str) -> Array:
    value = node.inputs[slot]
    array = None if value is None else constants.array(value)
    if array is None:
        message = f"{node.op_type} '{node.name}': its {what} is not a constant; export the model with fixed scales (static quantization)"
        raise ModelError(message)
    return array


def _code_type(node: ir.Node, zero_point: ir.Value | None, constants: ConstantValues) -> str:
    if zero_point is not None and (array := constants.array(zero_point)) is not None:
        return str(zero_point.dtype or ir.DataType.from_numpy(array.dtype)).lower()
    if node.op_type == QUANTIZE:
        asked = node.attributes.get_int("output_dtype", 0)
        return str(ir.DataType(asked)).lower() if asked else "uint8"
    codes = node.inputs[0]
    return "uint8" if codes is None or codes.dtype is None else str(codes.dtype).lower()
