"""BatchNormalization behind a convolution whose weight has scales of its own: fused, its factors move into those scales.

AMCT's rule for trained models: ``scale_w *= |gamma| / sqrt(var + eps)``; the weight codes stay, or change their sign.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from calibrant.ingest.nodes import channels, parameter
from calibrant.ingest.passes import batch_norm
from calibrant.ingest.passes.constants import Array, make_initializer
from calibrant.ingest.passes.names import value_names
from calibrant.ingest.passes.norm_chain import float_array
from calibrant.ingest.qdq.strip import Stripped
from calibrant.stats.events import Event

_LEAST_CODE = -128  # its negative is no int8 code


def fuse_norms(model: ir.Model, stripped: Stripped) -> list[Event]:
    """Fuse what follows convolutions into them, and write the factor of each output channel down in `stripped`.

    A Div by a constant, which PyTorch puts between a trained convolution and its BatchNormalization, becomes a Mul first.

    Returns:
        What stays as it is, and why.
    """
    _multiply(model)
    factors = dict(_factors(model.graph))
    reasons = dict(_reasons(model.graph, factors, stripped))
    events = batch_norm.fuse_batch_norm(model, skip=list(reasons))
    fused = {str(node.name) for node in model.graph if batch_norm.chain_of(node) is None}
    stripped.factors.update({name: factor for name, factor in factors.items() if name in fused and name not in reasons})
    return [*events, *(Event("ingest", "info", text, name) for name, text in reasons.items())]


def _factors(graph: ir.Graph) -> Iterator[tuple[str, Array]]:
    """Yield what fusing multiplies each output channel of a weight by, for the convolutions that have a chain of constants."""
    for node in graph:
        chain = batch_norm.chain_of(node)
        outputs, _ = channels(node, parameter(node, 1))
        if chain is not None and chain.is_constant and outputs is not None:
            yield str(node.name), chain.scale_and_bias(np.zeros(outputs))[0]


def _multiply(model: ir.Model) -> None:
    names = value_names(model)
    for node in model.graph:
        maker = (
            node.inputs[0].producer()
            if node.op_type == "Div" and not node.domain and node.inputs[0] is not None
            else None
        )
        divisor = float_array(node.inputs[1]) if maker is not None else None
        if maker is None or divisor is None or maker.op_type not in batch_norm.FUSABLE_TYPES or not np.all(divisor):
            continue
        node.op_type = "Mul"
        with np.errstate(over="ignore"):
            inverse = (1 / divisor.astype(np.float64)).astype(divisor.dtype)
        node.replace_input_with(1, make_initializer(model.graph, names.take(f"{node.name}.factor"), inverse))


def _reasons(graph: ir.Graph, factors: dict[str, Array], stripped: Stripped) -> Iterator[tuple[str, str]]:
    for node in graph:
        name, chain = str(node.name), batch_norm.chain_of(node)
        if chain is None or name not in factors:
            continue
        scales = stripped.weights.get(name)
        if any(slot[0] == str(one.name) for one in chain.nodes for slot in stripped.data):
            yield name, "BatchNormalization was not fused: a pair stands before it"
        elif scales is not None and scales.low <= _LEAST_CODE and bool(np.any(factors[name] < 0)):
            yield name, "BatchNormalization was not fused: it turns signs, and the weight has codes of -128"
