"""An AveragePool behind the Pad that is its padding: the quantizer stands before the Pad, and zero is padded as its code."""

from pathlib import Path
from typing import Any

import exporting
import models
import naive
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import calibrant
from calibrant.export.files import export_files
from calibrant.export.verify import verify_export
from calibrant.ingest.model import layer_macs
from calibrant.rebuild import export_record

F32 = np.float32
PADS = [0, 0, 1, 2, 0, 0, 0, 1]


def padded_pool(
    name: str = "pool_pad", *, mode: str = "constant", filler: float | None = 0.0, pads: list[int] = PADS, **pool: Any
) -> onnx.ModelProto:
    """x [N, 3, 6, 7] -> Pad -> AveragePool 'pool' -> Relu 'relu' -> y."""
    arrays = {"pads": np.array(pads, np.int64)}
    if filler is not None:
        arrays["filler"] = np.array(filler, F32)
    inputs = ["x", "pads", *(["filler"] if filler is not None else [])]
    nodes = [
        models.node("Pad", inputs, "p", name, mode=mode),
        models.node("AveragePool", ["p"], "a", "pool", kernel_shape=[2, 3], strides=[2, 1], **pool),
        models.node("Relu", ["a"], "y", "relu"),
    ]
    return models.model(nodes, [models.value("x", ["N", 3, 6, 7])], [models.value("y", ["N", 3, None, None])], arrays)


def feed(seed: int = 3) -> np.ndarray:
    return models.normal(1, 3, 6, 7, seed=seed, scale=2.0)


def node_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("offset", [-17, 0, 40])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_models_equal_whole_numbers(mode: str, offset: int, tmp_path: Path) -> None:
    proto = padded_pool(mode=mode, filler=0.0 if mode == "constant" else None)
    export = exporting.export(proto, tmp_path, offset=offset)
    assert node_types(export.deploy) == ["AscendQuant", "Pad", "AveragePool", "AscendDequant", "Relu"]
    report = verify_export(export.files, [{"x": feed(seed)} for seed in range(2)])
    assert report.failures() == []
    assert report.findings == ()
    assert report.layers[0].exact
    x, step = feed(8), export.record["pool"]["scale_d"][0]
    codes = np.array(naive.deploy_codes(x, step, offset, 8)).reshape(x.shape) - offset
    padded = np.pad(codes, [(0, 0), (0, 0), (1, 0), (2, 1)], mode=mode)  # type: ignore[call-overload]
    sums, counts = naive.average_pool(padded, [2, 3], strides=[2, 1])
    expected = np.maximum(sums.astype(F32) / counts.astype(F32) * F32(step), 0)
    np.testing.assert_array_equal(models.run(export.files.fake_quant, {"x": x})[0], expected)


@pytest.mark.parametrize("filler", [0.0, None])
def test_the_filler_is_the_code_of_zero(filler: float | None, tmp_path: Path) -> None:
    deploy = exporting.export(padded_pool(filler=filler), tmp_path, offset=-17).deploy
    pad = next(node for node in deploy.graph.node if node.op_type == "Pad")
    arrays = {one.name: numpy_helper.to_array(one) for one in deploy.graph.initializer}
    assert pad.input[0] == "pool.quant.output0"
    assert (arrays[pad.input[2]].dtype, int(arrays[pad.input[2]])) == (np.int8, -17)
    assert "filler" not in arrays


@pytest.mark.parametrize(
    "proto",
    [
        padded_pool("other"),
        padded_pool(filler=1.0),
        padded_pool(pads=[0, 1, 1, 2, 0, 0, 0, 1]),
        padded_pool(pads=[0, 0, -1, 2, 0, 0, 0, 1]),
    ],
    ids=["another name", "another filler", "padded channels", "cut"],
)
def test_any_other_pad_stays_before_the_quantizer(proto: onnx.ModelProto, tmp_path: Path) -> None:
    export = exporting.export(proto, tmp_path)
    assert node_types(export.deploy)[:3] == ["Pad", "AscendQuant", "AveragePool"]
    assert export.prepared.layers[0].tensor == "p"


def test_a_pad_that_others_read_stays_before_the_quantizer(tmp_path: Path) -> None:
    proto = padded_pool()
    proto.graph.node.append(models.node("Sigmoid", ["p"], "z", "second"))
    proto.graph.output.append(models.value("z", ["N", 3, None, None]))
    assert node_types(exporting.export(proto, tmp_path).deploy)[:2] == ["Pad", "AscendQuant"]


def test_a_run_observes_the_value_before_the_pad_and_its_record_rebuilds(tmp_path: Path) -> None:
    model = models.save(padded_pool(), tmp_path / "m.onnx")
    done = calibrant.run(model, [{"x": feed(s)} for s in range(4)], run=tmp_path / "r.run", prefix=tmp_path / "a" / "m")
    assert done.read("tensors")["tensor"].to_list() == ["x"]
    assert done.read("layers")["macs"].to_list() == [3 * 3 * 8 * 6]
    assert calibrant.verify(done).failures() == []
    first = export_files(tmp_path / "a" / "m")
    again = export_record(first.record, model, tmp_path / "b" / "m")
    for part in ("fake_quant", "deploy", "record", "quant_map"):
        assert getattr(first, part).read_bytes() == getattr(again, part).read_bytes()


def test_multiply_accumulates_count_the_padded_windows(tmp_path: Path) -> None:
    prepared = exporting.prepare(padded_pool(), tmp_path)
    assert layer_macs(prepared, prepared.layers[0], (1, 3, 6, 7)) == 3 * ((6 + 1 - 2) // 2 + 1) * (7 + 3 - 3 + 1) * 6


def test_verify_finds_a_filler_that_is_not_zero(tmp_path: Path) -> None:
    files = exporting.export(padded_pool(), tmp_path, offset=-17).files
    deploy = onnx.load(files.deploy)
    filler = next(one for one in deploy.graph.initializer if one.name == "pool.quant.pad_value")
    filler.CopyFrom(numpy_helper.from_array(np.array(0, np.int8), filler.name))
    files.deploy.write_bytes(deploy.SerializeToString())
    report = verify_export(files, [{"x": feed()}])
    assert not report.passed
    assert "outputs differ although float32 is exact" in str(report.failures())
