"""A model over 2 GB with external data passes every stage, within bounded memory."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import models
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

ROWS, WIDTH, COLUMNS = (
    2**19,
    1024,
    2**14,
)  # the table alone fills 2**31 bytes, which no protobuf holds; the weight 64 MB
FREE_DISK = 10 * 2**30
MOST_MEMORY = 8 * 2**30
SAMPLE_IDS = [[0, 7, ROWS - 1], [1, 2, 3], [5, ROWS // 2, 11]]


def external(name: str, dims: list[int], location: str) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def write_sparse(path: Path, rows: int, width: int, filled: dict[int, np.ndarray]) -> None:
    """Write a float32 matrix whose other rows are holes of the file."""
    with path.open("wb") as stream:
        stream.truncate(rows * width * 4)
        for row, values in filled.items():
            stream.seek(row * width * 4)
            stream.write(values.astype(np.float32).tobytes())


def build(folder: Path) -> Path:
    """ids [N,3] -> Gather 'embed' from a table of 2 GB -> MatMul 'project' by 64 MB, Add 'shift' -> y; the weights repeat a pattern."""
    used = sorted({row for ids in SAMPLE_IDS for row in ids})
    write_sparse(folder / "table.bin", ROWS, WIDTH, {row: models.normal(WIDTH, seed=row % 97) for row in used})
    pattern = models.normal(16, COLUMNS, scale=0.02)
    (folder / "weight.bin").write_bytes(np.tile(pattern, (WIDTH // 16, 1)).tobytes())
    nodes = [
        models.node("Gather", ["table", "ids"], "e", "embed"),
        models.node("MatMul", ["e", "w"], "m", "project"),
        models.node("Add", ["m", "b"], "y", "shift"),
    ]
    inputs, outputs = [models.value("ids", ["N", 3], TensorProto.INT64)], [models.value("y", ["N", 3, COLUMNS])]
    proto = models.model(nodes, inputs, outputs, {"b": models.normal(COLUMNS, seed=3)})
    proto.graph.initializer.extend(
        [external("table", [ROWS, WIDTH], "table.bin"), external("w", [WIDTH, COLUMNS], "weight.bin")]
    )
    return models.save(proto, folder / "large.onnx")


def calibrant(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "calibrant", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.slow
def test_a_model_over_two_gigabytes_passes_every_stage(tmp_path):
    if shutil.disk_usage(tmp_path).free < FREE_DISK:
        pytest.skip("less than 10 GB of disk are free")
    model = build(tmp_path)
    np.savez(tmp_path / "ids.npz", ids=np.array(SAMPLE_IDS))
    run, prefix = tmp_path / "r", tmp_path / "out" / "m"
    try:
        done = calibrant(
            "run", model, "--data", tmp_path / "ids.npz", "--run", run, "--keep", "stats", "--prefix", prefix
        )
        assert "output_sqnr_db: " in done.stdout
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        assert peak < MOST_MEMORY, f"{peak / 2**30:.1f} GB at the peak"
        for name in ("fake_quant_model", "deploy_model"):
            path = Path(f"{prefix}_{name}.onnx")
            assert path.stat().st_size < 2**20
            assert Path(f"{path}.data").stat().st_size > 2**31
        session = ort.InferenceSession(f"{prefix}_fake_quant_model.onnx", providers=["CPUExecutionProvider"])
        ids = np.array(SAMPLE_IDS[:1])
        table = np.memmap(tmp_path / "table.bin", np.float32, "r", shape=(ROWS, WIDTH))
        weight = np.fromfile(tmp_path / "weight.bin", np.float32).reshape(WIDTH, COLUMNS)
        expected = table[ids[0]] @ weight + models.normal(COLUMNS, seed=3)
        got = session.run(None, {"ids": ids})[0][0]
        noise = np.square(got - expected).sum() / np.square(expected).sum()
        assert noise < 1e-3  # 30 dB
    finally:
        for path in tmp_path.rglob("*.data"):
            path.unlink()
