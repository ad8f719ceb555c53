"""Outputs dumped from the device: every layout that docs/evaluation.md promises, and each way to get it wrong."""

import json
import sys

import models
import numpy as np
import pytest

import calibrant
from calibrant.cli import main as cli
from calibrant.errors import DataError
from calibrant.evaluation import evaluate
from calibrant.export.dumps import find_files


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    model = models.save(models.gemm(), folder / "m.onnx")
    return calibrant.run(model, [{"x": models.normal(16, 4)}], run=folder / "r", keep="stats")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run of a model with the outputs y [N,6] and state_out [2,N,6]."""
    folder = tmp_path_factory.mktemp("dumps_two")
    feeds = [{"x": models.normal(16, 4), "state": models.normal(2, 16, 6, seed=1)}]
    return calibrant.run(models.save(models.sample_axis_1(), folder / "m.onnx"), feeds, run=folder / "r", keep="stats")


@pytest.fixture
def x():
    return models.normal(6, 4, seed=9)


@pytest.fixture
def dumped(run, x):
    """What the device gave: the float model's outputs with an error of 0.1 in the first value of each."""
    outputs = np.concatenate([models.run(run.prepared_file, {"x": row[None]})[0] for row in x])
    outputs[:, 0] += np.float32(0.1)
    return outputs


def scores(run, x, folder, **options):
    found = evaluate(run, [{"x": x}], dumps={"npu": folder}, metrics=["max_abs", "mse"], **options)
    own = found.filter(variant="npu")
    assert own["samples"].to_list() == [6, 6]
    assert own["fit"].to_list() == [None, None]
    return own["value"].to_list()


RIGHT = [pytest.approx(0.1, rel=1e-5), pytest.approx(0.1**2 / 6, rel=1e-5)]


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in files.items():
        if name.endswith(".npy"):
            np.save(folder / name, array)
        else:
            (folder / name).write_bytes(np.ascontiguousarray(array).tobytes())
    return folder


@pytest.mark.parametrize(
    "files",
    [
        lambda d: {f"page_{i}.npy": d[i : i + 1] for i in range(6)},
        lambda d: {f"page_{i}.npy": d[i] for i in range(6)},
        lambda d: {f"{i}_output_0.bin": d[i] for i in range(6)},
        lambda d: {f"page_{i}.1x6.float32.bin": d[i] for i in range(6)},
        lambda d: {"all.npy": d},
        lambda d: {"all.bin": d},
        lambda d: {"a.npy": d[:4], "b.npy": d[4:]},
        lambda d: {"a.4x6.float32.bin": d[:4], "b.2x6.float32.bin": d[4:]},
        lambda d: {"a.bin": d[:4], "b.bin": d[4:], "log.txt": d},
    ],
    ids=["npy", "npy without batch axis", "bin of msame", "typed bin", "one npy", "one bin", "npy batches", "typed bin batches",
         "bin batches beside a log"],
)  # fmt: skip
def test_layouts(run, x, dumped, tmp_path, files):
    assert scores(run, x, write(tmp_path / "d", files(dumped))) == RIGHT


def test_float16_by_option_name_and_sidecar(run, x, dumped, tmp_path):
    half = dumped.astype(np.float16)
    near = [pytest.approx(0.1, abs=2e-3), pytest.approx(0.1**2 / 6, rel=0.05)]
    folder = write(tmp_path / "option", {f"{i}.bin": half[i] for i in range(6)})
    assert scores(run, x, folder, dumps_type="float16") == near
    assert scores(run, x, write(tmp_path / "name", {f"{i}.6.float16.bin": half[i] for i in range(6)})) == near
    folder = write(tmp_path / "sidecar", {f"{i}.bin": half[i] for i in range(6)})
    for i in range(6):
        place = folder / (f"{i}.bin.json" if i % 2 else f"{i}.json")
        place.write_text(json.dumps({"shape": [1, 6], "dtype": "float16"}))
    assert scores(run, x, folder) == near


def test_moved_dumps_are_another_sample(run, x, dumped, tmp_path):
    moved = np.roll(dumped, 1, axis=0)
    expected = np.abs(dumped - np.float32([0.1, 0, 0, 0, 0, 0]) - moved).max()
    found = scores(run, x, write(tmp_path / "d", {f"{i}.npy": moved[i] for i in range(6)}))
    assert found[0] == pytest.approx(expected, rel=1e-5)
    assert found[0] > 0.2


def test_several_outputs_in_folders_or_by_number(two, tmp_path):
    feeds = [{"x": models.normal(1, 4, seed=i), "state": models.normal(2, 1, 6, seed=i)} for i in range(3)]
    outputs = [models.run(two.prepared_file, feed) for feed in feeds]
    for i, (y, state) in enumerate(outputs):
        write(tmp_path / "folders" / "y", {f"{i}.npy": y + 1})
        write(tmp_path / "folders" / "state_out", {f"{i}.npy": state + 2})
        write(tmp_path / "numbers", {f"s{i}_0.bin": y + 1, f"s{i}_output_1.bin": state + 2})
    for folder in ("folders", "numbers"):
        found = evaluate(two, feeds, dumps={"npu": tmp_path / folder}, metrics=["max_abs"]).filter(variant="npu")
        assert dict(found.select("output", "value").rows()) == {"y": pytest.approx(1), "state_out": pytest.approx(2)}
    alone = evaluate(two, feeds, dumps={"npu": tmp_path / "numbers"}, metrics=["max_abs"], output="state_out")
    assert alone.filter(variant="npu").select("output", "value").rows() == [("state_out", pytest.approx(2))]


def test_outputs_with_slashes_have_folders_without(tmp_path):
    write(tmp_path / "head_y_0", {"a.npy": np.zeros(3)})
    assert list(find_files(tmp_path, ["head/y:0"], ["head/y:0", "z"])) == ["head/y:0"]


def test_samples_of_unequal_shape_have_dumps_of_theirs(tmp_path):
    run = calibrant.run(
        models.save(models.dynamic_shapes(), tmp_path / "m.onnx"),
        [{"x": models.normal(4, 3, 8, 8)}],
        run=tmp_path / "r",
    )
    feeds = [{"x": models.normal(1, 3, size, 6, seed=size)} for size in (5, 8)]
    outputs = [models.run(run.prepared_file, feed)[0] for feed in feeds]
    folder = write(tmp_path / "d", {"a.bin": outputs[0] + 1, "b.npy.bin": outputs[1] + 1})
    found = evaluate(run, feeds, dumps={"npu": folder}, metrics=["max_abs"]).filter(variant="npu")
    assert found["value"].item() == pytest.approx(1)


def test_names_of_the_data_files_tell_the_order(run, x, dumped, tmp_path):
    """11 files without leading zeros: as text 10 comes before 2, for the data as for the dumps."""
    many = np.concatenate([x, x])[:11]
    rows = np.concatenate([dumped, dumped])[:11]
    write(tmp_path / "x", {f"page{i}.npy": many[i] for i in range(11)})
    same = write(tmp_path / "same", {f"page{i}_0.bin": rows[i] for i in range(11)})
    found = evaluate(run, tmp_path / "x", dumps={"npu": same}, metrics=["max_abs"]).filter(variant="npu")
    assert found["value"].item() == pytest.approx(0.1, rel=1e-5)
    other = write(tmp_path / "other", {f"out{i}.bin": rows[i] for i in range(11)})
    with pytest.raises(
        DataError, match=r"out10\.bin: the names sort differently as text and as numbers.*pad the numbers"
    ):
        evaluate(run, tmp_path / "x", dumps={"npu": other})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (lambda d: {}, r"no \.npy or \.bin files; expected one file a sample"),
        (lambda d: {"a.npy": d[:3], "b.npy": d[3:5]}, "2 files hold 5 samples, the data has 6"),
        (lambda d: {f"{i}.npy": d[i] for i in range(5)}, r"0\.npy: shape \[6\]; expected a batch"),
        (lambda d: {f"{i}.npy": d[:1] for i in range(7)}, "7 files hold 7 samples, the data has 6"),
        (lambda d: {"a.npy": d, "b.bin": d}, r"holds both \.npy and \.bin files"),
        (
            lambda d: {f"{i}.npy": d[i, :5] for i in range(6)},
            r"0\.npy: shape \[5\]; expected that of the float model's output, \[1, 6\]",
        ),
        (
            lambda d: {f"{i}.bin": d[i, :5] for i in range(6)},
            r"0\.bin: holds 5 values of float32, shape \[1, 6\] has 6",
        ),
        (lambda d: {"a.bin": d.ravel()[:-1]}, r"a\.bin: holds 35 values of float32, shape \[5, 6\] has 30"),
        (lambda d: {f"{i}.1x6.float16.bin": d[i] for i in range(6)}, r"float16\.bin: holds 12 values of float16"),
        (lambda d: {f"{i}.1x6.floaty16.bin": d[i] for i in range(6)}, "no type 'floaty16'; did you mean 'float16'"),
        (lambda d: {f"{i}.bin": b"123" for i in range(6)}, "3 bytes are no whole number of values of float32"),
        (lambda d: {f"{i}.npy": np.array(["a"]) for i in range(6)}, "holds <U1, expected numbers"),
    ],
)
def test_wrong_dumps_are_named(run, x, dumped, tmp_path, files, message):
    made = files(dumped)
    folder = write(
        tmp_path / "d", {name: np.frombuffer(a, np.uint8) if isinstance(a, bytes) else a for name, a in made.items()}
    )
    with pytest.raises(DataError, match=message):
        evaluate(run, [{"x": x}], dumps={"npu": folder})


def test_wrong_folders_options_and_sidecars_are_named(run, two, x, dumped, tmp_path):
    data = [{"x": x}]
    with pytest.raises(DataError, match="nowhere: no such folder"):
        evaluate(run, data, dumps={"npu": tmp_path / "nowhere"})
    folder = write(tmp_path / "d", {f"{i}.bin": dumped[i] for i in range(6)})
    with pytest.raises(DataError, match="--dumps-type half: no type 'half'"):
        evaluate(run, data, dumps={"npu": folder}, dumps_type="half")
    (folder / "0.json").write_text("{}")
    with pytest.raises(DataError, match=r"0\.json: cannot be read .*expected {\"shape\""):
        evaluate(run, data, dumps={"npu": folder})
    (folder / "0.json").unlink()
    with pytest.raises(DataError, match=r"0\.bin: of which of the 2 outputs\? End the name with _0 to _1"):
        find_files(_renamed(folder), ["y"], ["y", "z"])
    write(tmp_path / "f" / "yy", {"a.npy": dumped})
    with pytest.raises(DataError, match=r"sub-folder 'yy' is of no output; the model's are y; did you mean 'y'"):
        evaluate(run, data, dumps={"npu": tmp_path / "f"})
    write(tmp_path / "g" / "z", {"a.npy": dumped})
    with pytest.raises(DataError, match="no sub-folder 'y' for output 'y'"):
        find_files(tmp_path / "g", ["y", "z"], ["y", "z"])
    with pytest.raises(DataError, match="no file ends with _1 for output 'z'"):
        find_files(write(tmp_path / "h", {"a_0.npy": dumped}), ["y", "z"], ["y", "z"])
    (tmp_path / "d2").mkdir()
    (tmp_path / "d2" / "a.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"a\.npy: cannot be read as \.npy"):
        evaluate(run, data, dumps={"npu": tmp_path / "d2"})


def _renamed(folder):
    for file in folder.iterdir():
        file.rename(folder / f"page{file.name}")
    return folder


def test_the_command_takes_dumps_with_and_without_a_name(run, x, dumped, tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "x.npz", x=x)
    folder = write(tmp_path / "d", {"all.npy": dumped})
    arguments = ["evaluate", str(run.path), "--data", str(tmp_path / "x.npz"), "--format", "csv", "--metric", "max_abs"]
    monkeypatch.setattr(sys, "argv", ["calibrant", *arguments, "--dumps", str(folder), "--dumps", f"npu={folder}"])
    with pytest.raises(SystemExit):
        cli.main()
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in rows[1:]] == ["fake_quant", "device", "npu"]
    assert float(rows[2][4]) == pytest.approx(0.1, rel=1e-5)
