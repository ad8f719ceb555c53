"""What a configuration may need to know of a node of the model that is no layer."""

from typing import NamedTuple


class ModelNode(NamedTuple):
    """A node of a prepared model.

    Attributes:
        op_type: ONNX type.
        inputs: number of its inputs.
        constant_inputs: positions of the inputs that hold a constant or nothing.
        dilated: whether it has a dilation other than 1.
        producer: ONNX type of the node that makes its input 0; empty for an input of the model or a constant.
        tensors: names of the values that it reads, one an input; empty for an input that is left out.
        outputs: names of the values that it makes.
        not_float: positions of the inputs that are known not to be float32 or float16.
        half: whether the model has float16 inputs or weights.
    """

    op_type: str
    inputs: int = 1
    constant_inputs: frozenset[int] = frozenset()
    dilated: bool = False
    producer: str = ""
    tensors: tuple[str, ...] = ()
    not_float: frozenset[int] = frozenset()
    outputs: tuple[str, ...] = ()
    half: bool = False
