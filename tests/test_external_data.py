"""Exports whose weights stand in a file beside them, forced small: the same as those that hold their weights."""

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from onnx.external_data_helper import uses_external_data

import calibrant
from calibrant.errors import ExportError
from calibrant.export import external_data, files
from calibrant.ingest import prepared

BUILDERS = {
    "conv_bn": models.conv_bn, "depthwise": models.depthwise, "gemm": models.gemm, "integer_input": models.integer_input,
    "tied_embedding": models.tied_embedding, "matmul_add": models.matmul_add, "attention": models.attention,
}  # fmt: skip


def embedding() -> onnx.ModelProto:
    """A table that stays in float, 960 bytes, a MatMul, and the table as an output too."""
    nodes = [
        models.node("Gather", ["table", "ids"], "e", "embed"),
        models.node("MatMul", ["e", "w"], "m", "matmul"),
        models.node("Mul", ["m", "gain"], "y", "scale"),
    ]
    arrays = {"table": models.normal(20, 12), "w": models.normal(12, 30, seed=2), "gain": models.normal(3, 30, seed=3)}
    inputs = [models.value("ids", ["N", 3], onnx.TensorProto.INT64)]
    outputs = [models.value("y", ["N", 3, 30]), models.value("table", [20, 12])]
    return models.model(nodes, inputs, outputs, arrays)


def feeds_of(proto: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    feeds = []
    for seed in range(3):
        feed = {}
        for value in proto.graph.input:
            shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
            is_integer = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
            feed[value.name] = (
                models.rng(seed).integers(0, 4, shape) if is_integer else models.normal(*shape, seed=seed)
            )
        feeds.append(feed)
    return feeds


@pytest.fixture
def everything_outside(monkeypatch):
    monkeypatch.setattr(files, "_EXTERNAL_FROM", 0)
    monkeypatch.setattr(external_data, "_SMALL", 0)
    monkeypatch.setattr(prepared, "_EXTERNAL_ABOVE", 0)


def whole(proto: onnx.ModelProto, folder: Path) -> calibrant.Run:
    folder.mkdir()
    path = models.save(proto, folder / "m.onnx")
    run = calibrant.run(path, feeds_of(proto), run=folder / "r", prefix=folder / "out" / "m")
    assert calibrant.verify(run).passed
    return run


@pytest.mark.parametrize("kind", [*BUILDERS, "embedding"])
def test_weights_beside_the_model_change_nothing(kind, tmp_path, request):
    proto = embedding() if kind == "embedding" else BUILDERS[kind]()
    whole(proto, tmp_path / "inline")
    request.getfixturevalue("everything_outside")
    whole(proto, tmp_path / "outside")
    for name in ("m_record.txt", "m_quant.json", "m_config.json"):
        inline, outside = (tmp_path / place / "out" / name for place in ("inline", "outside"))
        assert inline.read_bytes() == outside.read_bytes()
    for name in ("m_deploy_model.onnx", "m_fake_quant_model.onnx"):
        inline, outside = (tmp_path / place / "out" / name for place in ("inline", "outside"))
        big = [
            tensor.name
            for tensor in onnx.load(outside, load_external_data=False).graph.initializer
            if uses_external_data(tensor)
        ]
        held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(inline).graph.initializer}
        assert set(big) == {name for name, array in held.items() if array.nbytes > 256}
        for tensor in onnx.load(outside).graph.initializer:
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), held[tensor.name])


@pytest.mark.usefixtures("everything_outside")
def test_large_float_weights_stay_in_their_file(tmp_path):
    whole(embedding(), tmp_path / "outside")
    loaded = external_data.load_model(tmp_path / "outside" / "out" / "m_deploy_model.onnx")
    outside = {tensor.name for tensor in loaded.graph.initializer if uses_external_data(tensor)}
    assert outside == {"table", "gain"}
    assert not any(tensor.raw_data for tensor in loaded.graph.initializer if tensor.name in outside)
    table = next(tensor for tensor in loaded.graph.initializer if tensor.name == "table")
    np.testing.assert_array_equal(external_data.constant_array(table), models.normal(20, 12))


@pytest.mark.usefixtures("everything_outside")
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:100])])
def test_weights_that_are_gone_fail_verify(damage, tmp_path):
    run = whole(embedding(), tmp_path / "outside")
    damage(tmp_path / "outside" / "out" / "m_deploy_model.onnx.data")
    with pytest.raises(ExportError, match=r"m_deploy_model\.onnx.*export again"):
        calibrant.verify(run)


@pytest.mark.usefixtures("everything_outside")
def test_another_weight_in_the_file_fails_verify(tmp_path):
    run = whole(embedding(), tmp_path / "outside")
    path = tmp_path / "outside" / "out" / "m_deploy_model.onnx"
    proto = onnx.load(path, load_external_data=False)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    offset = int(next((entry.value for entry in weight.external_data if entry.key == "offset"), 0))
    with Path(f"{path}.data").open("r+b") as stream:
        stream.seek(offset)
        first = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([first[0] ^ 1]))
    with pytest.raises(ExportError, match="matmul: the weight codes of the two models differ"):
        calibrant.verify(run)
