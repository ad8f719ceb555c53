"""``tensor_quantize`` in a fit: which captured tensors the named inputs are, and their rows in the tables."""

from collections.abc import Sequence
from typing import Any

from calibrant.errors import RunError
from calibrant.quantizers.plan import TensorPlan
from calibrant.stats.run import Run


def tensor_ids(run: Run, tensors: Sequence[TensorPlan]) -> dict[TensorPlan, int]:
    """Find the captured tensor of each input.

    Args:
        run: a complete run.
        tensors: inputs of its prepared model that are to be quantized.

    Raises:
        RunError: a tensor was not captured, since no layer reads it and the run's configuration did not name it.
    """
    if not tensors:
        return {}
    ids = dict(run.read("tensors").select("tensor", "tensor_id").iter_rows())
    for one in tensors:
        if one.tensor not in ids:
            message = (
                f"{run.path}: tensor_quantize names input {one.input_index} of '{one.layer}', whose tensor '{one.tensor}' was not "
                "captured; run the model anew with this configuration (calibrant run --restart)"
            )
            raise RunError(message)
    return {one: ids[one.tensor] for one in tensors}


def tensor_columns(one: TensorPlan, tensor_id: int) -> dict[str, Any]:
    """Return what a row of `quant_params` says of the input itself."""
    return {
        "layer_id": None,
        "tensor_id": tensor_id,
        "role": "tensor",
        "node": one.layer,
        "input_index": one.input_index,
    }
