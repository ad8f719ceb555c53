"""Which layers can have what: AMCT's tables of capabilities, by ONNX type and kernel.

Configuration reference, validations; algorithms 1.3, 4, 5 and 13.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from calibrant.proto.op_types import OpType
from calibrant.stats.tables import LayerRow

Limit = Mapping[str, tuple[int, ...] | None]
"""ONNX type -> spatial dimensions of the kernels that can have it; None: any."""

CHANNEL_WISE_DEFAULT: Final[Mapping[str, bool]] = {  # AMCT's, by ONNX type; also the types that can be quantized
    "Conv": True,
    "ConvTranspose": True,
    "Gemm": False,
    "MatMul": False,
    "AveragePool": False,
}
CHANNEL_WISE: Final[Limit] = {"Conv": None, "ConvTranspose": None}
BY_COLUMN: Final[Limit] = {"Gemm": None, "MatMul": None}  # one scale an output column: calibrant's own, by an opt-in
NARROW: Final[Limit] = {"Conv": (2,)}
INT16: Final[Limit] = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": None}
OFFSET: Final[Limit] = {
    "Conv": (0, 1, 2),
    "ConvTranspose": (0, 1, 2),
    "Gemm": None,
    "MatMul": None,
    "AveragePool": (0, 1, 2),
}
NUQ: Final[Limit] = {"Conv": (2,), "Gemm": None, "MatMul": None}
WEIGHTS: Final[Limit] = {"Conv": None, "ConvTranspose": None, "Gemm": None, "MatMul": None}
FUSABLE: Final = ("Conv", "ConvTranspose")


def allows(limit: Limit, op_type: str, kernel_ranks: Iterable[int] | None) -> bool:
    """Whether a type with one of these kernels is within a limit.

    Example:
        >>> allows(NARROW, "Conv", (2,)), allows(NARROW, "Conv", (3,)), allows(NARROW, "Gemm", None)
        (True, False, False)
    """
    if op_type not in limit:
        return False
    ranks = limit[op_type]
    return ranks is None or kernel_ranks is None or not set(ranks).isdisjoint(kernel_ranks)


def type_allows(limit: Limit, named: OpType) -> bool:
    """Whether some layer of a named type can be within a limit."""
    return any(allows(limit, one, named.kernel_ranks) for one in named.onnx)


def layer_allows(limit: Limit, row: LayerRow) -> bool:
    """Whether a layer is within a limit."""
    return allows(limit, row.op_type, (row.kernel_rank,))


def takes_int16(row: LayerRow) -> bool:
    """Whether the data of a layer can have 16 bits; a Gemm needs a bias for it."""
    return layer_allows(INT16, row) and (row.op_type != "Gemm" or row.bias is not None)


def takes_four_bits(row: LayerRow) -> bool:
    """Whether the weight of a layer can have 4 bits: two of them share a byte along the input channels."""
    even = row.channels_in is None or row.channels_in % 2 == 0
    return layer_allows(WEIGHTS, row) and row.groups == 1 and even


def takes_nuq(row: LayerRow, *, dilated: bool) -> bool:
    """Whether the weight of a layer can be quantized non-uniformly."""
    return layer_allows(NUQ, row) and row.groups == 1 and not dilated


def is_depthwise(row: LayerRow) -> bool:
    """Whether each input channel is a group of its own."""
    return row.groups > 1 and row.groups == row.channels_in


def kind(row: LayerRow) -> str:
    """Return a layer's type in words, with its kernel where that matters.

    Example:
        >>> kind(LayerRow(0, "conv", "Conv", 0, "w", None, 8, 4, 1, 3, None, 10, True, None))
        'Conv with a 3-D kernel'
    """
    return f"Conv with a {row.kernel_rank}-D kernel" if row.op_type == "Conv" else row.op_type
