"""Rows of the `samples` table: collected as arrays, written in parts of a sensible size."""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from calibrant.errors import RunError
from calibrant.ingest import writer
from calibrant.ingest.writer import SamplesWriter
from calibrant.stats.collector import TensorStatistics
from calibrant.stats.sample_rows import SampleColumns, SampleRows, sample_columns

TENSORS = 3


def folded(tensor_id: int, samples: list[int]) -> SampleRows:
    """Two values a sample: its number, and its number and a half."""
    values = np.array([[sample, sample + 0.5] for sample in samples], np.float32)
    return TensorStatistics(tensor_id, channel_axis=None).fold(values, samples)


def batch(samples: list[int]) -> SampleColumns:
    """The tensors come as threads finish them: not in order."""
    return sample_columns([folded(tensor_id, samples) for tensor_id in reversed(range(TENSORS))])


def expected(samples: range) -> list[tuple[object, ...]]:
    return [
        (tensor, s, 2, int(s == 0), 0, 0, float(s), s + 0.5, s + s + 0.5, s**2 + (s + 0.5) ** 2)
        for tensor in range(TENSORS)
        for s in samples
    ]


def test_many_small_batches_become_one_sorted_part(tmp_path: Path) -> None:
    samples = SamplesWriter(tmp_path)
    for number in range(40):
        samples.append(batch([number]))
    assert not list(tmp_path.iterdir())
    samples.close()
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.parquet"]
    assert pl.read_parquet(tmp_path / "part-00000.parquet").rows() == expected(range(40))
    assert pq.read_table(tmp_path / "part-00000.parquet")["sum_sq"].to_pylist()[1] == 1 + 1.5**2


def test_parts_end_at_their_size_whatever_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SAMPLE_ROWS", 30)
    monkeypatch.setattr(writer, "SAMPLE_BATCHES", 4)
    samples = SamplesWriter(tmp_path)
    for first in range(0, 25, 2):
        samples.append(batch([first, first + 1]))
    samples.close()
    parts = [pl.read_parquet(path) for path in sorted(tmp_path.iterdir())]
    assert [part.height for part in parts] == [30, 30, 18]
    assert parts[0].rows() == expected(range(10))
    assert parts[2].rows() == expected(range(20, 26))


def test_what_waits_holds_nothing_of_the_channels(tmp_path: Path) -> None:
    wide = TensorStatistics(0, channel_axis=1).fold(np.ones((1, 4096, 1), np.float32), [0])
    assert sum(values.nbytes for values in sample_columns([wide]).values()) == 2 * 4 + 4 + 7 * 8


def test_values_of_a_constant_stay_in_their_order(tmp_path: Path) -> None:
    samples = SamplesWriter(tmp_path)
    for value in (5, 3, 4):
        rows = TensorStatistics(0, channel_axis=None).fold(np.full((1, 1), value, np.float32), [-1])
        samples.append(sample_columns([rows]))
    samples.close()
    assert pl.read_parquet(tmp_path / "part-00000.parquet")["max"].to_list() == [5, 3, 4]


def test_a_sample_without_finite_values_has_no_bounds(tmp_path: Path) -> None:
    samples = SamplesWriter(tmp_path)
    rows = TensorStatistics(0, channel_axis=None).fold(np.float16([[np.nan, np.inf], [1, np.nan]]), [0, 1])
    samples.append(sample_columns([rows]))
    samples.close()
    table = pl.read_parquet(tmp_path / "part-00000.parquet")
    assert table.select("n_nan", "n_inf", "min", "max").rows() == [(1, 1, None, None), (1, 0, 1.0, 1.0)]


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    SamplesWriter(tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_a_part_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    samples = SamplesWriter(tmp_path / "file")
    samples.append(batch([0]))
    with pytest.raises(RunError, match=r"part-00000\.parquet: cannot be written .*free space on its disk"):
        samples.close()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
