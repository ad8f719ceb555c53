"""The five files: names, content, and that they are written whole or not at all."""

import json
import re

import exporting
import models
import pytest

from calibrant.errors import ExportError
from calibrant.export import files as files_module
from calibrant.export.files import export_files, write_export
from calibrant.proto.record import read_record


def test_names():
    found = export_files("out/m")
    assert [path.as_posix() for path in (found.fake_quant, found.deploy, found.record, found.quant_map, found.config)] == [
        "out/m_fake_quant_model.onnx", "out/m_deploy_model.onnx", "out/m_record.txt", "out/m_quant.json", "out/m_config.json",
    ]  # fmt: skip
    assert export_files("out/").deploy.as_posix() == "out/deploy_model.onnx"
    assert export_files("").record.as_posix() == "record.txt"


def test_all_files_are_written_and_nothing_else(tmp_path):
    export = exporting.export(models.conv_relu(), tmp_path)
    assert export.files.missing() == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "m_config.json", "m_deploy_model.onnx", "m_fake_quant_model.onnx", "m_quant.json", "m_record.txt",
    ]  # fmt: skip
    assert export.files.config.read_text() == "{}\n"


def test_export_is_reproducible(tmp_path):
    prepared = exporting.prepare(models.depthwise(), tmp_path)
    chosen = exporting.choose_scales(prepared)
    first = write_export(prepared, chosen, tmp_path / "a" / "m", "{}")
    second = write_export(prepared, chosen[::-1], tmp_path / "b" / "m", "{}")
    for one, two in zip(vars(first).values(), vars(second).values(), strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_record_of_every_layer_in_topological_order(tmp_path):
    export = exporting.export(models.depthwise(), tmp_path)
    entries = read_record(export.files.record)
    assert [entry.key for entry in entries] == ["dw", "pw"]
    assert [(len(entry.scale_w), len(entry.offset_w)) for entry in entries] == [(4, 4), (6, 6)]
    assert re.match(
        r'record \{\n  key: "dw"\n  value \{\n    scale_d: 0\.02\n    offset_d: -17\n    act_type: "INT8"\n'
        r"    op_data_type: 'FLOAT32'\n    scale_w: ",
        export.files.record.read_text(),
    )


def test_record_of_average_pool(tmp_path):
    export = exporting.export(models.average_pool(), tmp_path)
    assert export.record["pool"]["scale_w"] == [1.0]
    assert export.record["pool"]["offset_w"] == [0]


def test_quant_map(tmp_path):
    export = exporting.export(models.conv_bn(), tmp_path)
    text = export.files.quant_map.read_text()
    assert text.startswith('{\n  "name": "m",\n  "graph": [\n    {\n      "op": [')
    items = {(item["name"], item["type"]): item for item in json.loads(text)["graph"][0]["op"]}
    names = {"list": {"val_type": 1, "s": ["conv", "bn"]}}
    for key in [
        ("conv", "Conv"), ("conv.quant", "AscendQuant"), ("conv.dequant", "AscendDequant"),
        ("conv.dequant.param", "initializer"),
    ]:  # fmt: skip
        assert items[key]["attr"] == [{"key": "_datadump_original_op_names", "value": names}]
    assert "attr" not in items[("relu", "Relu")]
    assert [key for key in items if "output_desc" in items[key]] == [("conv.dequant", "AscendDequant")]
    assert items[("conv.dequant", "AscendDequant")]["output_desc"] == [
        {
            "attr": [
                {"key": "_datadump_origin_format", "value": {"s": "NCHW"}},
                {"key": "_datadump_data_type", "value": {"s": "DT_FLOAT"}},
                {"key": "_datadump_origin_output_index", "value": {"i": 0}},
                {"key": "_datadump_origin_name", "value": {"s": "bn"}},
            ]
        }
    ]
    assert ("x", "graph_input") in items
    assert ("y", "graph_output") in items


def test_quant_map_of_matmul_and_add(tmp_path):
    export = exporting.export(models.matmul_add(), tmp_path)
    items = {item["name"]: item for item in json.loads(export.files.quant_map.read_text())["graph"][0]["op"]}
    originals = {name: items[name]["attr"][0]["value"]["list"]["s"] for name in ("matmul", "add", "matmul.dequant")}
    assert originals == {"matmul": ["matmul"], "add": ["add"], "matmul.dequant": ["matmul", "add"]}


def test_existing_files_are_replaced(tmp_path):
    prepared = exporting.prepare(models.depthwise(), tmp_path)
    files = write_export(prepared, exporting.choose_scales(prepared), tmp_path / "m", "{}")
    stale = tmp_path / "m_deploy_model.onnx.data"
    stale.write_bytes(b"weights of a larger export")
    write_export(prepared, exporting.choose_scales(prepared, skip=["pw"]), tmp_path / "m", "{}")
    assert "pw" not in files.record.read_text()
    assert not stale.exists()


def test_unwritable_folder_is_named(tmp_path):
    prepared = exporting.prepare(models.conv_relu(), tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ExportError, match=r"cannot write to folder '.*file/out'"):
        write_export(prepared, exporting.choose_scales(prepared), tmp_path / "file" / "out" / "m", "{}")


@pytest.mark.parametrize("broken", ["m_quant.json", "m_fake_quant_model.onnx"])
def test_nothing_half_written_stays(broken, tmp_path):
    prepared = exporting.prepare(models.conv_relu(), tmp_path)
    folder = tmp_path / "out"
    files = write_export(prepared, exporting.choose_scales(prepared), folder / "m", "old")
    kept = files.deploy.read_bytes()
    (folder / broken).unlink()
    (folder / broken).mkdir()
    with pytest.raises(ExportError, match=f"'{broken}' is a folder"):
        write_export(prepared, exporting.choose_scales(prepared, scale_d=0.5), folder / "m", "new")
    assert files.deploy.read_bytes() == kept
    assert files.config.read_text() == "old"
    assert (folder / broken).is_dir()
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_failure_while_moving_restores_the_old_files(tmp_path, monkeypatch):
    prepared = exporting.prepare(models.conv_relu(), tmp_path)
    files = write_export(prepared, exporting.choose_scales(prepared), tmp_path / "m", "old")
    before = {path: path.read_bytes() for path in vars(files).values()}
    replace = type(tmp_path).replace

    def failing(self, target):
        if target.name == "m_quant.json" and target.parent == tmp_path:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(type(tmp_path), "replace", failing)
    with pytest.raises(ExportError, match="No space left on device"):
        write_export(prepared, exporting.choose_scales(prepared, scale_d=0.5), tmp_path / "m", "new")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in before} == before
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nothing_to_quantize(tmp_path):
    prepared = exporting.prepare(models.conv_relu(), tmp_path)
    with pytest.raises(ExportError, match="no layer is quantized"):
        write_export(prepared, [], tmp_path / "m", "{}")
    twice = exporting.choose_scales(prepared) * 2
    with pytest.raises(ExportError, match="layer 'conv' is given twice"):
        write_export(prepared, twice, tmp_path / "m", "{}")


def test_large_weights_go_to_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_EXTERNAL_FROM", 100)
    prepared = exporting.prepare(models.gemm(), tmp_path)
    weight = models.normal(4, 600)
    bias = models.normal(600)
    source = models.model(
        [models.node("Gemm", ["x", "w", "b"], "y", "gemm")],
        [models.value("x", ["N", 4])], [models.value("y", ["N", 600])], {"w": weight, "b": bias},
    )  # fmt: skip
    prepared = exporting.prepare(source, tmp_path)
    files = write_export(prepared, exporting.choose_scales(prepared), tmp_path / "out" / "m", "{}")
    assert (tmp_path / "out" / "m_deploy_model.onnx.data").stat().st_size >= 600 * 4
    from calibrant.export.verify import verify_export

    assert verify_export(files, [{"x": models.normal(1, 4, scale=1.0)}]).passed
