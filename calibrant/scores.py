"""An export against its run: is it this fit's."""

from typing import Any

import polars as pl

from calibrant.errors import ExportError
from calibrant.export.files import ExportedFiles
from calibrant.proto.record import RecordEntry, read_record
from calibrant.stats.run import Run


def check_fit(run: Run, fit: str, files: ExportedFiles) -> None:
    """Refuse an export whose record does not hold the scales of the fit.

    Raises:
        ExportError: it names the first layer that differs.
    """
    if not files.record.is_file():
        return  # verify names every missing file
    expected, found = _fit_scales(run, fit), {entry.key: _entry_scales(entry) for entry in read_record(files.record)}
    for layer in [*expected, *(key for key in found if key not in expected)]:
        if expected.get(layer) != found.get(layer):
            message = f"{files.record}: layer '{layer}' has other scales than fit '{fit}' of {run.path}; export that fit to this prefix"
            raise ExportError(message)


# scale_d, offset_d, scale_w, balance factors, shifts
Scales = tuple[float | None, int, tuple[float, ...], tuple[float, ...], tuple[int, ...]]


def _entry_scales(entry: RecordEntry) -> Scales:
    return (
        None if entry.scale_d is None else float(entry.scale_d),
        entry.offset_d or 0,
        tuple(map(float, entry.scale_w)),
        tuple(map(float, entry.tensor_balance_factor)),
        tuple(entry.shift_bit) if any(entry.shift_bit) else (),
    )


def _fit_scales(run: Run, fit: str) -> dict[str, Scales]:
    names = dict(run.read("layers").select("layer_id", "layer").iter_rows())
    rows = run.read("quant_params").filter(pl.col("fit") == fit).sort("layer_id", "channel")
    weights = _by_layer(rows.filter(role="weight"), "scale")
    shifts = _by_layer(rows.filter(role="shift"), "offset")
    factors = _by_layer(run.read("balance").filter(fit=fit).sort("channel"), "factor")
    data = rows.filter(role="data").select("layer_id", "scale", "offset")
    alone: dict[str, Scales] = {names[layer]: (None, 0, scales, (), ()) for layer, scales in weights.items()}
    layers = alone | {
        names[layer]: (scale, offset, weights.get(layer, (1.0,)), factors.get(layer, ()), shifts.get(layer, ()))
        for layer, scale, offset in data.iter_rows()
    }
    inputs = rows.filter(role="tensor").select("node", "input_index", "scale", "offset").iter_rows()
    return {**layers, **{f"{node}:{index}": (scale, offset, (), (), ()) for node, index, scale, offset in inputs}}


def _by_layer(rows: pl.DataFrame, column: str) -> dict[int, tuple[Any, ...]]:
    """Return the values of a column by layer, in the order of the rows."""
    parts = rows.partition_by("layer_id", as_dict=True, maintain_order=True)
    return {int(key[0]): tuple(part[column]) for key, part in parts.items()}
