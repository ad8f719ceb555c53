"""Capture a small model into a folder, and read back what it wrote."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import polars as pl

from calibrant.ingest.capture import CaptureOptions, CaptureResult, capture_activations
from calibrant.ingest.data import Data, open_data
from calibrant.ingest.model import PreparedModel, prepare_model, save_prepared
from calibrant.ingest.model_tables import write_model_tables
from calibrant.stats.captures import read_captures
from calibrant.stats.events import Progress, no_progress
from calibrant.stats.keep import Keep

Array = npt.NDArray[Any]

GROUPED_TABLES = ("tensors", "layers", "histograms", "extremes", "channels", "weights")


def prepare(model: onnx.ModelProto | Path, folder: Path, **options: Any) -> PreparedModel:
    """Prepare a model and save it where a run keeps it."""
    if isinstance(model, onnx.ModelProto):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "source.onnx"
        path.write_bytes(model.SerializeToString())
        model = path
    prepared = prepare_model(model, **options)
    save_prepared(prepared, folder / "model")
    write_model_tables(prepared, folder)
    return prepared


def capture(
    model: onnx.ModelProto | Path,
    data: Data,
    folder: Path,
    *,
    keep: str = "raw",
    progress: Progress = no_progress,
    **options: Any,
) -> CaptureResult:
    """Capture into a folder as the pipeline does."""
    prepared, chosen = prepare(model, folder), CaptureOptions(keep=Keep.parse(keep), **options)
    return capture_activations(prepared, open_data(data, prepared.inputs), folder, chosen, progress)


def table(folder: Path, name: str) -> pl.DataFrame:
    if name == "samples":
        return pl.concat(pl.read_parquet(p) for p in sorted((folder / "tables/samples").glob("part-*.parquet")))
    return pl.read_parquet(folder / "tables" / f"{name}.parquet")


def keyed_samples(folder: Path) -> pl.DataFrame:
    """The `samples` table by content key instead of by number."""
    keys = table(folder, "inputs").select("sample", "key")
    rows = table(folder, "samples").join(keys, on="sample", how="left").drop("sample")
    return rows.sort("tensor_id", "key")


def captured(folder: Path, tensor_id: int) -> dict[int, Array]:
    return dict(read_captures(folder, tensor_id))


def assert_same_tables(one: Path, other: Path) -> None:
    """All tables that grouping must not change, bit for bit."""
    for name in GROUPED_TABLES:
        assert table(one, name).equals(table(other, name)), name
    assert keyed_samples(one).equals(keyed_samples(other))


def feeds_of(arrays: Mapping[str, Array], order: Sequence[int] | None = None) -> list[dict[str, Array]]:
    """Feeds of one sample each from arrays of own arrays, shape (n, ...)."""
    count = len(next(iter(arrays.values())))
    return [{name: array[i] for name, array in arrays.items()} for i in (order or range(count))]


def nothing_left(folder: Path) -> bool:
    """Return whether no file of a capture stands; those of the model alone stood before it."""
    found = [*folder.glob("captures/**/*"), *folder.glob("tables/**/*.parquet")]
    return {path.stem for path in found} == {"weights", "biases", "joins"}
