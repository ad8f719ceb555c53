"""A Pad between a quantizer and an AveragePool: it pads codes, and its filler is the code of zero, the offset."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from calibrant.errors import ExportError
from calibrant.export.proto_graph import attributes_of

Array = npt.NDArray[Any]
_NUMPY_MODES: Final[Mapping[str, Any]] = {"constant": "constant", "reflect": "reflect", "edge": "edge"}


@dataclass(frozen=True, slots=True)
class CodePadding:
    """What a Pad adds to codes without offset.

    Attributes:
        name: node name.
        amounts: what is added before each axis, then behind each.
        mode: constant, reflect or edge.
        filler: the value that a constant Pad adds, without offset: 0 in a correct model.
    """

    name: str
    amounts: tuple[int, ...]
    mode: str
    filler: float

    def apply(self, data: Array) -> Array:
        """Pad codes without offset."""
        rank = data.ndim
        widths = list(zip(self.amounts[:rank], self.amounts[rank:], strict=True))
        if self.mode == "constant":
            return np.pad(data, widths, constant_values=self.filler)
        padded: Array = np.pad(data, widths, mode=_NUMPY_MODES[self.mode])
        return padded


def read_padding(node: onnx.NodeProto, initializers: Mapping[str, onnx.TensorProto], offset: int) -> CodePadding:
    """Read the Pad of a deploy model.

    Args:
        node: the Pad.
        initializers: of the model.
        offset: of the quantizer before it.

    Raises:
        ExportError: its amounts or its filler are no initializers, or its mode is none that codes can have.
    """
    mode = str(attributes_of(node).get("mode", "constant"))
    named = [name for name in node.input[1:] if name]
    if len(node.input) < 2 or mode not in _NUMPY_MODES or any(name not in initializers for name in named):
        message = (
            f"node '{node.name}': a Pad of codes needs constant amounts and filler, and mode constant, reflect or edge"
        )
        raise ExportError(message)
    filler = initializers[node.input[2]] if len(node.input) > 2 and node.input[2] else None
    code = 0 if filler is None else int(numpy_helper.to_array(filler).reshape(()))
    amounts = tuple(int(amount) for amount in numpy_helper.to_array(initializers[node.input[1]]))
    return CodePadding(node.name, amounts, mode, float(code - offset))
