"""Parameters that several nodes share, from the model to the verified export: each layer's codes are its own, other readers keep floats."""

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from exporting import read_record
from onnx import TensorProto, numpy_helper

import calibrant
from calibrant.export.files import ExportedFiles, export_files
from calibrant.rebuild import export_record

F32 = np.float32
PARTS = ("fake_quant", "deploy", "record", "quant_map")


def run(proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], folder: Path) -> ExportedFiles:
    """Run and rebuild from the record; both give the same files, and verify finds nothing."""
    model = models.save(proto, folder / "m.onnx")
    done = calibrant.run(model, feeds, run=folder / "r.run", prefix=folder / "a" / "m", batch_size=2)
    assert calibrant.verify(done).failures() == []
    first = export_files(folder / "a" / "m")
    again = export_record(first.record, model, folder / "b" / "m")
    for part in PARTS:
        assert getattr(first, part).read_bytes() == getattr(again, part).read_bytes()
    for expected, found in zip(models.run(proto, feeds[0]), models.run(first.fake_quant, feeds[0]), strict=True):
        noise = np.sum((expected - found) ** 2)
        assert 10 * np.log10(np.sum(expected**2) / noise) > 20
    return first


def arrays(files: ExportedFiles) -> tuple[dict[str, onnx.NodeProto], dict[str, np.ndarray]]:
    deploy = onnx.load(files.deploy)
    return {node.name: node for node in deploy.graph.node}, {
        one.name: numpy_helper.to_array(one) for one in deploy.graph.initializer
    }


def tokens(count: int = 4) -> list[dict[str, np.ndarray]]:
    return [{"ids": np.random.default_rng(seed).integers(0, 8, (1, 5))} for seed in range(count)]


def tied(transposed_by: str) -> onnx.ModelProto:
    """ids -> Gather 'embed' from 'table' [8, 6]; y = the rows times the transposed table, as MatMul or Gemm 'head'."""
    nodes = [models.node("Gather", ["table", "ids"], "e", "embed")]
    if transposed_by == "Transpose":
        nodes += [
            models.node("Transpose", ["table"], "t", "turn", perm=[1, 0]),
            models.node("MatMul", ["e", "t"], "y", "head"),
        ]
        shape = ["N", 5, 8]
    else:
        nodes += [
            models.node("Reshape", ["e", "flat"], "f", "rows"),
            models.node("Gemm", ["f", "table"], "y", "head", transB=1),
        ]
        shape = [None, 8]
    initializers = {"table": models.normal(8, 6, scale=1.0), "flat": np.array([-1, 6])}
    inputs = [models.value("ids", ["N", 5], TensorProto.INT64)]
    return models.model(nodes, inputs, [models.value("y", shape)], initializers)


@pytest.mark.parametrize("transposed_by", ["Transpose", "Gemm"])
def test_a_table_between_a_gather_and_a_transposed_product(transposed_by: str, tmp_path: Path) -> None:
    nodes, tensors = arrays(run(tied(transposed_by), tokens(), tmp_path))
    table = models.normal(8, 6, scale=1.0)
    assert np.array_equal(tensors[nodes["embed"].input[0]], table)
    codes = tensors[nodes["head"].input[1]]
    scale = F32(read_record(tmp_path / "a" / "m_record.txt")["head"]["scale_w"][0])
    np.testing.assert_array_equal(codes, np.rint(table.T / scale).astype(np.int8))


def branches(scale: float = 12.0, *, bias: str = "shared") -> onnx.ModelProto:
    """x and x times `scale` go through 'one' and 'two', which share weight and bias; y is their sum."""
    extra = {"shared": ["b"], "absent": []}[bias]
    nodes = [
        models.node("Mul", ["x", "k"], "l", "louder"),
        models.node("Conv", ["x", "w", *extra], "c", "one"),
        models.node("Conv", ["l", "w", *extra], "d", "two"),
        models.node("Concat", ["c", "d"], "y", "both", axis=1),
    ]
    initializers = {"w": models.normal(4, 3, 3, 3), "b": models.normal(4, seed=1), "k": np.array(scale, F32)}
    if bias == "absent":
        del initializers["b"]
    return models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 8, 6, 6])], initializers)


def images() -> list[dict[str, np.ndarray]]:
    return [{"x": models.normal(1, 3, 8, 8, seed=seed, scale=1.0)} for seed in range(4)]


def test_a_shared_bias_has_codes_for_each_layer(tmp_path: Path) -> None:
    nodes, tensors = arrays(run(branches(), images(), tmp_path))
    record = read_record(tmp_path / "a" / "m_record.txt")
    for name in ("one", "two"):
        steps = F32(record[name]["scale_d"][0]) * np.array(record[name]["scale_w"], F32)
        np.testing.assert_array_equal(tensors[nodes[name].input[2]], np.rint(models.normal(4, seed=1) / steps))
    assert nodes["one"].input[1:] != nodes["two"].input[1:]
    assert 11 < record["two"]["scale_d"][0] / record["one"]["scale_d"][0] < 13


def test_layers_without_a_bias_get_none(tmp_path: Path) -> None:
    nodes, _ = arrays(run(branches(bias="absent"), images(), tmp_path))
    assert [len(nodes[name].input) for name in ("one", "two")] == [2, 2]


def test_a_weight_that_a_gemm_and_a_matmul_share(tmp_path: Path) -> None:
    nodes = [
        models.node("Gemm", ["x", "w", "b"], "g", "gemm"),
        models.node("MatMul", ["x", "w"], "m", "matmul"),
        models.node("Add", ["m", "b"], "n", "add"),
        models.node("Concat", ["g", "n"], "y", "both", axis=1),
    ]
    weights = {"w": models.normal(6, 5), "b": models.normal(5, seed=1)}
    proto = models.model(nodes, [models.value("x", ["N", 6])], [models.value("y", ["N", 10])], weights)
    found, tensors = arrays(run(proto, [{"x": models.normal(1, 6, seed=s, scale=1.0)} for s in range(4)], tmp_path))
    assert found["gemm"].input[1] != found["matmul"].input[1]
    np.testing.assert_array_equal(tensors[found["gemm"].input[1]], tensors[found["matmul"].input[1]])
    biases = [
        tensors[name]
        for node in ("gemm", "add")
        for name in found[node].input
        if name in tensors and tensors[name].dtype == np.int32
    ]
    assert len(biases) == 2
    np.testing.assert_array_equal(*biases)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_scalar_bias_of_two_gemms_is_spread_for_each(shape: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [
        models.node("Gemm", ["x", "w", "b"], "g", "one"),
        models.node("Gemm", ["g", "v", "b"], "y", "two"),
    ]
    weights = {"w": models.normal(6, 5), "v": models.normal(5, 3, seed=2), "b": models.normal(1, seed=1).reshape(shape)}
    proto = models.model(nodes, [models.value("x", ["N", 6])], [models.value("y", ["N", 3])], weights)
    found, tensors = arrays(run(proto, [{"x": models.normal(1, 6, seed=s, scale=1.0)} for s in range(4)], tmp_path))
    record = read_record(tmp_path / "a" / "m_record.txt")
    for name, columns in (("one", 5), ("two", 3)):
        step = F32(record[name]["scale_d"][0]) * F32(record[name]["scale_w"][0])
        np.testing.assert_array_equal(
            tensors[found[name].input[2]], np.full(columns, np.rint(weights["b"].ravel()[0] / step))
        )
