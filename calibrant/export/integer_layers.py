"""One quantized layer in exact integers: what the NPU computes between AscendQuant and the value after AscendDequant.

With codes q, offset o and x' = q - o: ``acc = sum(x' * w_q) + b_q``, zero padding pads x' with 0, and
``y = float32(acc) * float32(scale_d * scale_w)``; AveragePool: ``y = float32(float32(acc) / float32(count)) * float32(scale_d)``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, ExportError
from calibrant.export.code_padding import CodePadding
from calibrant.export.integer_kernels import (
    convolve,
    convolve_transposed,
    pool_sums,
    resolve_window,
    transposed_window,
    working_type,
)
from calibrant.quantizers.affine import Float32Array, Float64Array, code_dtype, code_range
from calibrant.quantizers.shift import INT16

Array = npt.NDArray[Any]
INTEGER_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool"})


@dataclass(frozen=True)
class Quantizer:
    """An AscendQuant: ``clip(rint(x * scale) + offset)`` in float32, half to even.

    Attributes:
        name: node name.
        source: the float value.
        output: the value that holds the codes.
        scale: float32(1 / scale_d).
        offset: integer added after scaling.
        bits: 4, 8 or 16.
    """

    name: str
    source: str
    output: str
    scale: np.float32
    offset: int
    bits: int

    def codes(self, values: Array) -> Array:
        """Return the codes of values of any shape without their offset, as float32 integers: ``q - offset``.

        Raises:
            DataError: a value is NaN.
        """
        low, high = code_range(self.bits)
        scaled: Array = np.asarray(
            np.rint(np.asarray(values, np.float32) * self.scale)
        )  # rint of one value is no array
        scaled += np.float32(self.offset)
        np.clip(scaled, low, high, out=scaled)
        if np.isnan(scaled).any():
            message = f"node '{self.name}': its input '{self.source}' holds NaN, which has no code; check the sample"
            raise DataError(message)
        scaled -= np.float32(self.offset)
        return scaled

    def stored(self, codes: Array) -> Array:
        """Return codes without their offset as the integers that a model hands out: with the offset, int8 or int16."""
        return np.asarray(codes + np.float32(self.offset), code_dtype(self.bits))


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """A quantized layer of the deploy model.

    Attributes:
        name: node name.
        op_type: Conv, ConvTranspose, Gemm, MatMul or AveragePool.
        attributes: the node's attributes.
        source: the value that holds the codes.
        output: the float value after AscendDequant.
        weight: int8 codes, or None for AveragePool.
        bias: int32 codes, or None.
        bias_node: name of the Add of a MatMul, or None.
        dequant_scale: float32, shape (1,) or (C,).
        dequantizer: name of the AscendDequant.
        half: whether the float value is float16.
        source_b: the codes of the second input of a MatMul of two variables, or None.
        padding: what a Pad adds to the codes of an AveragePool, or None.
        shift: by how many bits accumulators are shifted into int16, shape of `dequant_scale`; None: they are not.
    """

    name: str
    op_type: str
    attributes: Mapping[str, Any]
    source: str
    output: str
    weight: Array | None
    bias: Array | None
    bias_node: str | None
    dequant_scale: Float32Array
    dequantizer: str
    half: bool = False
    padding: CodePadding | None = None
    shift: Array | None = None
    source_b: str | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The values that hold codes: one, or two of a product of two variables."""
        return (self.source,) if self.source_b is None else (self.source, self.source_b)

    def bound(self, second: Array) -> "IntegerLayer":
        """Return a product of two variables with the codes of its second input in the place of a weight."""
        return replace(self, weight=second)

    @property
    def terms(self) -> int:
        """How many products one accumulator adds up, the bias included."""
        if self.weight is None:
            return int(np.prod(self.attributes.get("kernel_shape", ())))
        return self._depth() + (self.bias is not None)

    @property
    def channels_out(self) -> int | None:
        """Output channels, or None for AveragePool."""
        if self.weight is None:
            return None
        if self.op_type == "ConvTranspose":
            return int(self.weight.shape[1]) * self.groups
        return int(self.weight.shape[0 if self.op_type == "Conv" else -1])

    @property
    def groups(self) -> int:
        """Groups of a convolution, else 1."""
        return int(self.attributes.get("group", 1))

    def greatest_sum_bounds(self, data: Array) -> Float64Array:
        """Bound B, the greatest ``sum(|x'| |w_q|) + |b_q|`` of each output channel, by ``max|x'|`` times its weights' sum.

        Args:
            data: codes without offset.

        Returns:
            shape (C,).
        """
        peak = float(max(data.max(initial=0), -data.min(initial=0)))
        if self.weight is None:
            return np.full(data.shape[1], peak * self.terms)
        sums = self._absolute_sums() * peak + self._absolute_bias()
        return sums if self.source_b is None else sums.max(initial=0, keepdims=True)

    def greatest_sums(self, data: Array) -> Float64Array:
        """Measure B of each output channel on data: the same layer on absolute values.

        Args:
            data: codes without offset.

        Returns:
            shape (C,).
        """
        if self.weight is None:
            return self.channel_maxima(self._accumulate(np.abs(data), None, None, np.float64)[0])
        bias = None if self.bias is None else np.abs(self.bias.astype(np.float64))
        total, _ = self._accumulate(np.abs(data), np.abs(self.weight.astype(np.int16)), bias, np.float64)
        return self.channel_maxima(total)

    def channel_maxima(self, values: Array) -> Float64Array:
        """Return the greatest of each output channel in values of the layer's output shape, at least 0; shape (C,)."""
        if self.source_b is not None:  # how many columns a product has may differ from feed to feed
            return np.asarray([values.max(initial=0)], np.float64)
        axis = values.ndim - 1 if self.op_type in {"Gemm", "MatMul"} else 1
        others = tuple(other for other in range(values.ndim) if other != axis)
        return np.asarray(values.max(axis=others, initial=0), np.float64)

    def accumulate(self, data: Array) -> tuple[Array, Array | None]:
        """Return the accumulators, exact integers in a float type, and the window counts of an AveragePool.

        Args:
            data: codes without offset, integers in a float type.

        Raises:
            ExportError: the weight is for another number of input channels.
        """
        self._check_channels(data)
        number = working_type(float(self.greatest_sum_bounds(data).max(initial=0)))
        return self._accumulate(data, self.weight, self.bias, number)

    def dequantize(self, total: Array, counts: Array | None) -> Array:
        """Turn accumulators into the float value after AscendDequant.

        Args:
            total: accumulators, of the layer's output shape.
            counts: the window counts of an AveragePool, else None.

        Returns:
            of the output's shape; float32, or float16 in a float16 model.
        """
        scale = self.dequant_scale
        if self.shift is not None:
            powers = np.exp2(self.shift.astype(np.float64))
            total = np.clip(np.floor(total / self.along_channels(powers, total.ndim)), *INT16)
            scale = (scale * powers.astype(np.float32)).astype(np.float32)
        values: Array = total.astype(np.float32)
        if counts is not None:
            values = values / counts
        values = values * self.along_channels(scale, values.ndim)
        return values.astype(np.float16) if self.half else values

    def along_channels(self, values: Array, rank: int) -> Array:
        """Shape values, one or one a channel, so that they broadcast against an output of this rank."""
        if values.size == 1:
            return values.reshape(())
        return values.reshape(-1, *[1] * (rank - 2)) if self.op_type in {"Conv", "ConvTranspose"} else values

    def _accumulate(
        self, data: Array, weight: Array | None, bias: Array | None, number: Any
    ) -> tuple[Array, Array | None]:
        data = data.astype(number, copy=False)
        if weight is None:
            return self._pool(data)
        kernel = weight.astype(number)
        total = self.multiply(data, kernel)
        if bias is not None:
            convolution = self.op_type in {"Conv", "ConvTranspose"}
            shape = (-1, *[1] * (total.ndim - 2)) if convolution else bias.shape
            total = total + bias.astype(number).reshape(shape)
        return total, None

    def multiply(self, data: Array, kernel: Array) -> Array:
        """Return the layer's sums of products, without its bias, for data and weight of one float type.

        Raises:
            ExportError: the layer's type has no weight.
        """
        if self.op_type == "Conv":
            window = resolve_window(self.attributes, kernel.shape[2:], data.shape[2:])
            return convolve(data, kernel, window, self.groups)
        if self.op_type == "ConvTranspose":
            window, sizes = transposed_window(self.attributes, kernel.shape[2:], data.shape[2:])
            return convolve_transposed(data, kernel, window, self.groups, sizes)
        if self.op_type in {"Gemm", "MatMul"}:
            product: Array = np.matmul(data, kernel)
            return product
        message = f"layer '{self.name}': {self.op_type} has no integer form"
        raise ExportError(message)

    def _check_channels(self, data: Array) -> None:
        if self.weight is None:
            return
        matrix = self.op_type in {"Gemm", "MatMul"}
        axis = -2 if matrix else int(self.op_type == "Conv")
        wanted = self.weight.shape[axis] * (self.groups if self.op_type == "Conv" else 1)
        given = data.shape[-1 if matrix else 1]
        if wanted != given:
            message = (
                f"layer '{self.name}': a weight for {wanted} input channels on data of {given}; has it 4-bit codes?"
            )
            raise ExportError(message)

    def _pool(self, data: Array) -> tuple[Array, Array]:
        data = data if self.padding is None else self.padding.apply(data)
        window = resolve_window(self.attributes, self.attributes["kernel_shape"], data.shape[2:])
        ceil_mode, count_pads = (
            bool(self.attributes.get("ceil_mode", 0)),
            bool(self.attributes.get("count_include_pad", 0)),
        )
        return pool_sums(data, window, ceil_mode=ceil_mode, count_pads=count_pads)

    def _depth(self) -> int:
        weight = self._required_weight()
        if self.op_type == "Conv":
            return int(np.prod(weight.shape[1:]))
        if self.op_type == "ConvTranspose":
            return int(weight.shape[0]) // self.groups * int(np.prod(weight.shape[2:]))
        return int(weight.shape[-2])

    def _absolute_sums(self) -> Float64Array:
        """Sum |w_q| over everything that one output channel adds up; shape (C,)."""
        weight = np.abs(self._required_weight().astype(np.float64))
        if self.op_type == "Conv":
            return np.asarray(weight.sum(axis=tuple(range(1, weight.ndim))), np.float64)
        if self.op_type == "ConvTranspose":
            grouped = weight.reshape(self.groups, -1, *weight.shape[1:])
            return np.asarray(grouped.sum(axis=(1, *range(3, grouped.ndim))).reshape(-1), np.float64)
        sums = weight.sum(axis=-2)  # of a batched weight the greatest of all its matrices counts
        return np.asarray(sums.max(axis=tuple(range(sums.ndim - 1))), np.float64)

    def _absolute_bias(self) -> Float64Array:
        return np.zeros(1) if self.bias is None else np.abs(self.bias.astype(np.float64)).reshape(-1)

    def _required_weight(self) -> Array:
        if self.weight is None:
            message = f"layer '{self.name}' has no weight"
            raise ExportError(message)
        return self.weight
