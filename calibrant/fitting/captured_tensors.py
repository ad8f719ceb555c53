"""``tensor_quantize`` in a fit: which captured tensors the named inputs are, and their rows in the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibrant.errors import RunError
from calibrant.quantizers.plan import LayerPlan, Plan, TensorPlan
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


def with_products(run: Run, plan: Plan) -> Plan:
    """Return a plan in which each MatMul of two variables that is quantized has its captured tensors.

    Raises:
        RunError: a tensor was not captured.
    """
    if not any(row.tensors for row in plan.rows):
        return plan
    ids = dict(run.read("tensors").select("tensor", "tensor_id").iter_rows())
    return replace(plan, rows=tuple(_captured(run, row, ids) if row.tensors else row for row in plan.rows))


def _captured(run: Run, row: LayerPlan, ids: Mapping[str, int]) -> LayerPlan:
    missing = [tensor for tensor in row.tensors if tensor not in ids]
    if missing:
        message = (
            f"{run.path}: layer '{row.layer}' multiplies two variables, of which '{missing[0]}' was not captured; "
            "run the model anew with this configuration (calibrant run --restart)"
        )
        raise RunError(message)
    first, second = (ids[tensor] for tensor in row.tensors)
    return replace(row, tensor_id=first, tensor_id_b=second)


def tensor_columns(one: TensorPlan, tensor_id: int) -> dict[str, Any]:
    """Return what a row of `quant_params` says of the input itself."""
    return {
        "layer_id": None,
        "tensor_id": tensor_id,
        "role": "tensor",
        "node": one.layer,
        "input_index": one.input_index,
    }
