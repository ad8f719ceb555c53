"""The tables of a run: their columns, types and order (documented in docs/tables.md).

Every table is Parquet with a schema version in its metadata; only `write_frame` and, for tables of numbers, `write_parts` write one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import RunError, SchemaError
from calibrant.stats.parquet_columns import Pages, Part, PlainColumn, columns_file, joined_parts, pages_of
from calibrant.whole_files import whole_file

SCHEMA_VERSION: Final = 1
_COMPRESSION_LEVEL: Final = 1  # of zstd: as small as the default to a hundredth, and a sixth quicker

_ID = pl.Int32()
_COUNT = pl.Int64()
_REAL = pl.Float64()
_F32 = pl.Float32()

_BOUNDS: Final = ("min", "max", "abs_max")  # NULL where no value is finite

SCHEMAS: Final[dict[str, pl.Schema]] = {
    "inputs": pl.Schema({"sample": _COUNT, "key": pl.String(), "source": pl.String(), "position": _COUNT}),
    "tensors": pl.Schema(
        {
            "tensor_id": _ID, "tensor": pl.String(), "dtype": pl.String(), "rank": _ID, "sample_axis": _ID,
            "channel_axis": _ID, "producer": pl.String(), "is_input": pl.Boolean(), "n": _COUNT, "n_zero": _COUNT,
            "n_nan": _COUNT, "n_inf": _COUNT, "min": _F32, "max": _F32, "mantissa_bits": _ID,
        }
    ),
    "layers": pl.Schema(
        {
            "layer_id": _ID, "layer": pl.String(), "op_type": pl.String(), "tensor_id": _ID, "weight": pl.String(),
            "bias": pl.String(), "channels_out": _ID, "channels_in": _ID, "groups": _ID, "kernel_rank": _ID, "macs": _COUNT,
            "parameters": _COUNT, "quantizable": pl.Boolean(), "reason": pl.String(),
            "tensor_b": pl.String(),
        }
    ),
    "samples": pl.Schema(
        {
            "tensor_id": _ID, "sample": _COUNT, "n": _COUNT, "n_zero": _COUNT, "n_nan": _COUNT, "n_inf": _COUNT,
            "min": _F32, "max": _F32, "sum": _REAL, "sum_sq": _REAL,
        }
    ),
    "histograms": pl.Schema({"tensor_id": _ID, "key": pl.UInt32(), "count": _COUNT}),
    "extremes": pl.Schema({"tensor_id": _ID, "side": pl.String(), "value": _F32, "count": _COUNT}),
    "channels": pl.Schema(
        {
            "tensor_id": _ID, "channel": _ID, "n": _COUNT, "min": _F32, "max": _F32, "abs_max": _F32,
            "sum": _REAL, "sum_sq": _REAL,
        }
    ),
    "weights": pl.Schema(
        {
            "layer_id": _ID, "channel": _ID, "n": _COUNT, "min": _F32, "max": _F32, "abs_max": _F32,
            "sum": _REAL, "sum_sq": _REAL,
        }
    ),
    "biases": pl.Schema({"layer_id": _ID, "channel": _ID, "value": _F32}),
    "joins": pl.Schema(
        {
            "node": pl.String(), "op_type": pl.String(), "input_index": _ID, "value": pl.String(), "tensor_id": _ID,
            "seen": pl.String(), "first_channel": _ID, "channels": _ID,
        }
    ),
    "plan": pl.Schema(
        {
            "fit": pl.String(), "layer_id": _ID, "layer": pl.String(), "op_type": pl.String(), "tensor_index": _ID,
            "enabled": pl.Boolean(), "reason": pl.String(), "batch_num": _ID, "do_fusion": pl.Boolean(),
            "data_algorithm": pl.String(), "data_bits": _ID, "asymmetric": pl.Boolean(), "max_percentile": _REAL,
            "min_percentile": _REAL, "search_range_start": _REAL, "search_range_end": _REAL, "search_step": _REAL,
            "num_of_bins": _ID, "float16_step": pl.Boolean(),
            "weight_algorithm": pl.String(), "weight_bits": _ID, "channel_wise": pl.Boolean(),
            "weight_asymmetric": pl.Boolean(), "num_steps": _ID, "num_of_iteration": _ID, "weight_only": pl.Boolean(),
            "migration_strength": _REAL, "joint": pl.String(), "not_applied": pl.String(), "enabled_decided_by": pl.String(),
            "data_decided_by": pl.String(), "asymmetric_decided_by": pl.String(), "weight_decided_by": pl.String(),
            "weight_asymmetric_decided_by": pl.String(), "weight_only_decided_by": pl.String(),
            "balancer_decided_by": pl.String(), "fusion_decided_by": pl.String(),
        }
    ),
    "search": pl.Schema(
        {
            "fit": pl.String(), "layer_id": _ID, "tensor_id": _ID, "algorithm": pl.String(), "candidate": _ID,
            "clip_min": _REAL, "clip_max": _REAL, "scale": _F32, "offset": _ID, "loss": _REAL,
            "is_best": pl.Boolean(), "exact": pl.Boolean(),
        }
    ),
    "quant_params": pl.Schema(
        {
            "fit": pl.String(), "layer_id": _ID, "tensor_id": _ID, "role": pl.String(), "channel": _ID, "bits": _ID,
            "scale": _F32, "offset": _ID, "clip_min": _F32, "clip_max": _F32, "algorithm": pl.String(),
            "mse": _REAL, "sqnr_db": _REAL, "clip_rate": _REAL, "decided_by": pl.String(), "node": pl.String(),
            "input_index": _ID,
        }
    ),
    "balance": pl.Schema({"fit": pl.String(), "layer_id": _ID, "channel": _ID, "factor": _F32}),
    "sensitivity": pl.Schema(
        {
            "fit": pl.String(), "layer_id": _ID, "view": pl.String(), "metric": pl.String(), "value": _REAL, "low": _REAL,
            "high": _REAL, "samples": _COUNT, "scales_hash": pl.String(), "data_hash": pl.String(),
        }
    ),
    "evaluation": pl.Schema(
        {
            "fit": pl.String(), "variant": pl.String(), "output": pl.String(), "metric": pl.String(), "value": _REAL,
            "low": _REAL, "high": _REAL, "samples": _COUNT, "data": pl.String(), "data_fingerprint": pl.String(),
        }
    ),
    "class_agreement": pl.Schema(
        {
            "fit": pl.String(), "variant": pl.String(), "output": pl.String(), "class_id": _COUNT, "samples": _COUNT,
            "agreement": _REAL, "low": _REAL, "high": _REAL, "confused_with": _COUNT, "data": pl.String(),
            "data_fingerprint": pl.String(),
        }
    ),
    "auto_steps": pl.Schema(
        {
            "step": _ID, "fit": pl.String(), "layers_float": _ID, "macs_float": _REAL, "metric": pl.String(), "value": _REAL,
            "low": _REAL, "high": _REAL, "higher_is_better": pl.Boolean(), "ok": pl.Boolean(), "chosen": pl.Boolean(),
        }
    ),
    "events": pl.Schema(
        {
            "stage": pl.String(), "severity": pl.String(), "fit": pl.String(), "layer": pl.String(), "sample": _COUNT,
            "message": pl.String(),
        }
    ),
}  # fmt: skip

FIT_TABLES: Final = ("plan", "search", "quant_params", "balance")  # rows belong to one fit; the others to the run


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A row of the `layers` table: a node that AMCT could quantize, or one that was refused with its reason.

    Attributes:
        layer_id: position in topological order of the prepared model.
        layer: the ONNX node name.
        op_type: Conv, ConvTranspose, Gemm, MatMul, AveragePool or GlobalAveragePool.
        tensor_id: the captured tensor on input 0, or None where nothing is captured for it.
        weight: name of the weight initializer, or None.
        bias: name of the bias initializer (for a MatMul: the constant of the Add that follows), or None.
        channels_out: output channels, or None where the layer has no weight.
        channels_in: input channels (over all groups), or None.
        groups: 1 except for grouped convolutions.
        kernel_rank: spatial dimensions of the kernel (Conv 1, 2 or 3); 0 for Gemm and MatMul.
        macs: multiply-accumulates of one sample, or None where shapes are unknown.
        parameters: elements of weight and bias.
        quantizable: whether the layer may be quantized at all.
        reason: why not, or None.
        tensor_b: the value on input 1 of a MatMul of two variables, which only an override has quantized; else None.
    """

    layer_id: int
    layer: str
    op_type: str
    tensor_id: int | None
    weight: str | None
    bias: str | None
    channels_out: int | None
    channels_in: int | None
    groups: int
    kernel_rank: int
    macs: int | None
    parameters: int
    quantizable: bool
    reason: str | None
    tensor_b: str | None = None


def layers_frame(rows: list[LayerRow]) -> pl.DataFrame:
    """Return the `layers` table of these rows."""
    names = [f.name for f in fields(LayerRow)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    return pl.DataFrame(columns, schema=SCHEMAS["layers"])


def layer_rows(frame: pl.DataFrame) -> list[LayerRow]:
    """Return the rows of a `layers` table."""
    return [LayerRow(**row) for row in conform("layers", frame).iter_rows(named=True)]


def empty_frame(table: str) -> pl.DataFrame:
    """Return a frame of `table` without rows."""
    return pl.DataFrame(schema=SCHEMAS[table])


def conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Bring a frame to the columns and types of its table.

    Raises:
        SchemaError: a column is missing or one is unknown.
    """
    schema = SCHEMAS[table]
    if frame.schema == schema:
        return frame
    missing, unknown = set(schema) - set(frame.columns), set(frame.columns) - set(schema)
    if missing or unknown:
        message = f"table {table}: columns missing {sorted(missing)}, unknown {sorted(unknown)}"
        raise SchemaError(message)
    return frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def frame_of(table: str, columns: Mapping[str, npt.NDArray[np.generic]], **same: int) -> pl.DataFrame:
    """Return rows of a table from arrays of its own types; NaN in a column named min, max or abs_max is null.

    Args:
        table: its name.
        columns: by name.
        same: columns of one value.

    Example:
        >>> frame_of("histograms", {"key": np.uint32([7]), "count": np.array([2])}, tensor_id=3).row(0)
        (3, 7, 2)
    """
    height = len(next(iter(columns.values())))
    all_columns = {**{name: np.full(height, value, np.int32) for name, value in same.items()}, **columns}
    frame = pl.DataFrame({name: all_columns[name] for name in SCHEMAS[table]}, schema=SCHEMAS[table])
    bounds = [name for name in _BOUNDS if name in columns and np.isnan(columns[name]).any()]
    return frame.with_columns(pl.col(bounds).fill_nan(None)) if bounds else frame


def plain_columns(table: str) -> list[PlainColumn]:
    """Return the columns of a table of numbers as its own file has them; min, max and abs_max may be absent."""
    names = {
        _ID: "int32",
        pl.UInt32(): "uint32",
        _COUNT: "int64",
        _F32: "float32",
        _REAL: "float64",
        pl.String(): "text",
    }
    return [PlainColumn(name, names[dtype], name in _BOUNDS) for name, dtype in SCHEMAS[table].items()]


def table_file(folder: Path, table: str) -> Path:
    """Return where a table of a run folder lies that is one file."""
    return folder / "tables" / f"{table}.parquet"


def pages_together(table: str, parts: Sequence[Part]) -> list[Pages]:
    """Encode rows that are few each at once: pages of their own would cost more than they do."""
    return [pages_of(joined_parts(parts), plain_columns(table))] if parts else []


def write_parts(table: str, parts: Iterable[Pages], path: Path) -> None:
    """Write rows that `pages_of` encoded with the `plain_columns` of the table as its Parquet file, whole or not at all.

    Raises:
        RunError: the disk is full or the place is not writable.
    """
    filled = [pages for pages in parts if pages.rows]
    if not filled:
        write_frame(table, empty_frame(table), path)
        return
    content = columns_file(filled, plain_columns(table), _metadata(table))
    with _written(path) as partial:
        partial.write_bytes(content)


def write_frame(table: str, frame: pl.DataFrame, path: Path) -> None:
    """Write a frame as the Parquet file of `table`, whole or not at all.

    Raises:
        RunError: the disk is full or the place is not writable.
    """
    rows = conform(table, frame)
    with _written(path) as partial:
        rows.write_parquet(partial, metadata=_metadata(table), compression_level=_COMPRESSION_LEVEL)


def _metadata(table: str) -> dict[str, str]:
    return {"calibrant.table": table, "calibrant.schema_version": str(SCHEMA_VERSION)}


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Give a place to write a table to.

    Raises:
        RunError: the disk is full or the place is not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            yield partial
    except (OSError, pl.exceptions.PolarsError) as error:
        message = f"{path}: cannot be written ({error}); free space on its disk, or mend its permissions"
        raise RunError(message) from error
