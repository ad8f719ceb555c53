"""Type names of AMCT's dialects and the ONNX types they stand for.

A configuration names layer types in the words of the framework it was written for: ONNX (``Conv``), Ascend IR as ATC uses it
together with Caffe and TensorFlow (``Conv2D``, ``InnerProduct``), or PyTorch (``Conv2d``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from calibrant.errors import nearest

Dialect = Literal["onnx", "atc", "pytorch"]
DIALECTS: Final[tuple[Dialect, ...]] = ("onnx", "atc", "pytorch")


@dataclass(frozen=True, slots=True)
class OpType:
    """A type name and the layers of an ONNX model that it means.

    Attributes:
        name: the name as the dialect writes it.
        onnx: the ONNX types it stands for.
        kernel_ranks: spatial dimensions of the kernels it means; None: any.
        depthwise: whether it means depthwise convolutions alone.
    """

    name: str
    onnx: tuple[str, ...]
    kernel_ranks: tuple[int, ...] | None = None
    depthwise: bool = False

    def matches(self, op_type: str, kernel_rank: int, *, depthwise: bool = False) -> bool:
        """Whether a layer is of this type.

        Args:
            op_type: the layer's ONNX type.
            kernel_rank: spatial dimensions of its kernel.
            depthwise: whether each input channel is a group of its own.

        Example:
            >>> [layer_type("Conv2D", "atc").matches("Conv", rank) for rank in (1, 2, 3)]
            [True, True, False]
        """
        fits = self.kernel_ranks is None or kernel_rank in self.kernel_ranks
        return op_type in self.onnx and fits and (depthwise or not self.depthwise)


def _table(*types: OpType) -> Mapping[str, OpType]:
    return {one.name: one for one in types}


_DENSE: Final = ("Gemm", "MatMul")
_PLANE: Final = (1, 2)  # a one-dimensional convolution is a Conv2D of height 1 on the NPU
_ONNX: Final = _table(
    *(OpType(name, (name,)) for name in ("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "LSTM", "GRU"))
)
_ATC: Final = _table(
    OpType("Conv2D", ("Conv",), _PLANE),
    OpType("Conv3D", ("Conv",), (3,)),
    OpType("DepthwiseConv2D", ("Conv",), _PLANE, depthwise=True),
    OpType("DepthwiseConv2DNative", ("Conv",), _PLANE, depthwise=True),
    OpType("DepthwiseConv2dNative", ("Conv",), _PLANE, depthwise=True),  # TensorFlow's spelling
    OpType("Conv2DTranspose", ("ConvTranspose",), _PLANE),
    OpType("Conv2DTransposeD", ("ConvTranspose",), _PLANE),
    OpType("Conv2DBackpropInput", ("ConvTranspose",), _PLANE),
    OpType("MatMul", _DENSE),
    OpType("MatMulV2", _DENSE),
    OpType("BatchMatMul", ("MatMul",)),
    OpType("BatchMatMulV2", ("MatMul",)),
    OpType("FullyConnection", _DENSE),
    OpType("AvgPool", ("AveragePool",)),
    OpType("AvgPoolV2", ("AveragePool",)),
    OpType("Convolution", ("Conv",)),  # Caffe, as the three below
    OpType("Deconvolution", ("ConvTranspose",)),
    OpType("InnerProduct", _DENSE),
    OpType("Pooling", ("AveragePool",)),
)
_PYTORCH: Final = _table(
    *(OpType(f"Conv{rank}d", ("Conv",), (rank,)) for rank in (1, 2, 3)),
    *(OpType(f"ConvTranspose{rank}d", ("ConvTranspose",), (rank,)) for rank in (1, 2, 3)),
    OpType("Linear", _DENSE),
    OpType("MatMul", ("MatMul",)),
    OpType("AvgPool2d", ("AveragePool",), (2,)),
    OpType("LSTM", ("LSTM",)),
    OpType("GRU", ("GRU",)),
)
_TABLES: Final[Mapping[Dialect, Mapping[str, OpType]]] = {
    "onnx": _ONNX,
    "atc": {**_ONNX, **_ATC},  # ATC's manual speaks of ONNX's own names as well
    "pytorch": {**_ONNX, **_PYTORCH},
}
_TENSOR_TYPES: Final[Mapping[Dialect, Mapping[str, tuple[str, ...]]]] = {
    "onnx": {"MaxPool": ("MaxPool",), "Add": ("Add",)},
    "atc": {"MaxPool": ("MaxPool",), "Add": ("Add",), "Eltwise": ("Add", "Sum", "Mul", "Max")},
    "pytorch": {},
}
_OTHER_NAMES: Final[Mapping[str, Dialect]] = {  # never quantized, but they give the dialect away
    "Eltwise": "atc",
    "BatchNorm1d": "pytorch",
    "BatchNorm2d": "pytorch",
    "BatchNorm3d": "pytorch",
    "BatchNorm": "pytorch",
}


def layer_type(name: str, dialect: Dialect) -> OpType | None:
    """Return what a type name means, None where the dialect has no such name.

    Args:
        name: a type name as written.
        dialect: whose names are meant; the ONNX names are understood in all.

    Example:
        >>> layer_type("MatMulV2", "atc").onnx
        ('Gemm', 'MatMul')
    """
    return _TABLES[dialect].get(name)


def unknown_type(name: str, dialect: Dialect) -> str:
    """Say of a name that it is no layer type of a dialect, with the nearest one or the dialect that has it.

    Example:
        >>> unknown_type("Conv2D", "onnx")
        "'Conv2D' is no layer type of the onnx dialect, but one of atc"
    """
    text = f"'{name}' is no layer type of the {dialect} dialect"
    others = [other for other in DIALECTS if name in _TABLES[other]]
    if others:
        return f"{text}, but one of {' and '.join(others)}"
    known = _TABLES[dialect]
    return text + (nearest(name, known) or f"; its types are {', '.join(known)}")


def tensor_types(dialect: Dialect) -> frozenset[str]:
    """Return the ONNX types whose inputs ``tensor_quantize`` may name.

    Example:
        >>> sorted(tensor_types("atc"))
        ['Add', 'Max', 'MaxPool', 'Mul', 'Sum']
    """
    return frozenset(onnx for names in _TENSOR_TYPES[dialect].values() for onnx in names)


def dialect_of(name: str) -> Dialect | None:
    """Return the dialect that alone has a type name, None where several or none have it.

    Example:
        >>> [dialect_of(name) for name in ("Conv", "Conv2D", "Conv2d", "MatMul")]
        ['onnx', 'atc', 'pytorch', None]
    """
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    own: Iterable[tuple[Dialect, Mapping[str, OpType]]] = (("onnx", _ONNX), ("atc", _ATC), ("pytorch", _PYTORCH))
    having = [dialect for dialect, table in own if name in table]
    return having[0] if len(having) == 1 else None
