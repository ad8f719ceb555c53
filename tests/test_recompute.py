"""`calibrant stats`: every statistics table again from the Parquet files, bit for bit."""

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from capturing import capture, prepare, table
from test_capture import GROUPED, images

from calibrant.errors import RunError
from calibrant.ingest import writer
from calibrant.ingest.capture import recompute_statistics
from calibrant.ingest.model import load_prepared
from calibrant.stats.events import no_progress

TABLES = ("tensors", "histograms", "extremes", "channels", "weights", "samples")


def recompute(folder: Path) -> None:
    recompute_statistics(folder, load_prepared(folder / "model"), no_progress)


@pytest.mark.parametrize(("proto", "feeds"), [case[1:] for case in GROUPED], ids=[case[0] for case in GROUPED])
def test_tables_are_the_same_bit_for_bit(
    tmp_path: Path, proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]
) -> None:
    capture(proto, feeds, tmp_path, batch_size=4)
    before = {name: table(tmp_path, name).sort(pl_order(name)) for name in TABLES}
    for path in (tmp_path / "tables").glob("[ehtcws]*.parquet"):
        path.unlink()
    recompute(tmp_path)
    for name, frame in before.items():
        assert table(tmp_path, name).sort(pl_order(name)).equals(frame), name
    assert not [p for p in (tmp_path / "tables").iterdir() if p.name.startswith(".")]


def test_the_parts_of_samples_are_named_as_those_of_a_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SAMPLE_ROWS", 7)
    capture(models.depthwise(3), [{"x": images(12)}], tmp_path, batch_size=2)
    before, rows = sorted((tmp_path / "tables/samples").iterdir()), table(tmp_path, "samples")
    recompute(tmp_path)
    after = sorted((tmp_path / "tables/samples").iterdir())
    assert [path.name for path in before] == [f"part-{i:05d}.parquet" for i in range(3)]
    assert [path.name for path in after] == [
        f"part-{i:05d}.parquet" for i in range(2)
    ]  # each tensor's 12 rows come at once
    order = ["tensor_id", "sample"]
    assert table(tmp_path, "samples").sort(order).equals(rows.sort(order))


def pl_order(name: str) -> list[str]:
    """Parts of `samples` may be cut elsewhere; all other tables keep their order."""
    return ["tensor_id", "sample"] if name == "samples" else []


def test_progress_counts_tensors(tmp_path: Path) -> None:
    capture(models.depthwise(3), [{"x": images(3)}], tmp_path)
    seen: list[tuple[str, int, int]] = []
    recompute_statistics(tmp_path, load_prepared(tmp_path / "model"), lambda *step: seen.append(step))
    assert seen == [("stats", 1, 2), ("stats", 2, 2)]


def test_without_raw_activations_it_is_an_error(tmp_path: Path) -> None:
    capture(models.depthwise(3), [{"x": images(3)}], tmp_path, keep="stats")
    before = table(tmp_path, "tensors")
    with pytest.raises(RunError, match="only statistics were kept, capture again with --keep raw"):
        recompute(tmp_path)
    assert table(tmp_path, "tensors").equals(before)


def test_captures_of_another_model(tmp_path: Path) -> None:
    capture(models.depthwise(3), [{"x": images(3)}], tmp_path)
    other = prepare(models.nan_maker(), tmp_path / "other")
    with pytest.raises(RunError, match="holds tensor 'x', the prepared model has 'l' there"):
        recompute_statistics(tmp_path, other, no_progress)


def test_damaged_captures_leave_the_tables_alone(tmp_path: Path) -> None:
    capture(models.depthwise(3), [{"x": images(3)}], tmp_path)
    before = {name: table(tmp_path, name) for name in TABLES}
    path = tmp_path / "captures" / "tensor_id=1" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RunError, match=r"tensor_id=1/part-00000\.parquet: cannot be read as Parquet"):
        recompute(tmp_path)
    for name, frame in before.items():
        assert table(tmp_path, name).equals(frame)
