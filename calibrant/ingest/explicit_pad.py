"""A Pad that stands before an AveragePool as its padding: the data is quantized before it (amct-config-and-export.md, 4.3)."""

from typing import Final

import onnx_ir as ir

from calibrant.ingest.passes.constants import initializer_tensor

SUFFIX: Final = "_pad"  # AMCT knows the Pad by its name, that of the layer with this
MODES: Final = ("constant", "reflect", "edge")


def pad_before(node: ir.Node) -> ir.Node | None:
    """Return the Pad ``<layer>_pad`` that an AveragePool alone reads, or None.

    It pads by constant amounts on all axes, with zeros or with values of its input, so that padding codes is padding values.
    """
    value = node.inputs[0] if node.inputs else None
    pad = None if value is None else value.producer()
    if node.op_type != "AveragePool" or value is None or pad is None or pad.op_type != "Pad" or pad.domain:
        return None
    alone = len(value.uses()) == 1 and not value.is_graph_output() and pad.graph is node.graph
    named = pad.name == f"{node.name}{SUFFIX}"
    return pad if alone and named and pad_amounts(pad) is not None and _pads_zeros(pad) else None


def pad_amounts(pad: ir.Node) -> tuple[int, ...] | None:
    """Return what is added before each axis, then behind each; None where that is no constant, or pads more than space."""
    tensor = initializer_tensor(pad.inputs[1]) if len(pad.inputs) > 1 else None
    if tensor is None or (len(pad.inputs) > 3 and pad.inputs[3] is not None):
        return None
    amounts = tuple(int(amount) for amount in tensor.numpy())
    rank = len(amounts) // 2
    outer = (*amounts[:2], *amounts[rank : rank + 2])  # samples and channels
    return amounts if rank > 2 and not any(outer) and all(amount >= 0 for amount in amounts) else None


def _pads_zeros(pad: ir.Node) -> bool:
    mode = pad.attributes.get_string("mode", "constant")
    filler = pad.inputs[2] if len(pad.inputs) > 2 else None
    if mode != "constant" or filler is None:
        return mode in MODES
    tensor = initializer_tensor(filler)
    return tensor is not None and not tensor.numpy().any()
