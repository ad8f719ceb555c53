"""Accumulators that are shifted into int16, and branches of an Add that share a scale: from the configuration to verify."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import exporting
import models
import naive
import numpy as np
import onnx
import polars as pl
import pytest
from exporting import CASES, Case, choose_scales, prepare
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import calibrant
from calibrant.errors import ConfigError, ExportError, RunError
from calibrant.export.files import ExportedFiles, write_export
from calibrant.export.lint import lint_deploy
from calibrant.export.verify import verify_export
from calibrant.pipeline import plan as plan_of_model
from calibrant.proto.record import read_record
from calibrant.proto.simple_config import QuantConfig, parse_simple_config
from calibrant.quantizers import IfmrOptions, fit_ifmr
from calibrant.quantizers.plan import resolve_plan
from calibrant.quantizers.shift import ShiftSearch
from calibrant.rebuild import export_record
from calibrant.stats.histogram import LogLinearHistogram
from calibrant.stats.model_nodes import ModelNode
from calibrant.stats.tables import LayerRow

F32 = np.float32


def naive_loss(accumulators: Sequence[int], shift: int) -> int:
    loss = 0
    for value in accumulators:
        shifted = min(max(value // 2**shift, -32768), 32767)
        loss += (shifted * 2**shift - value) ** 2
    return loss


def naive_shift(accumulators: Sequence[int]) -> int:
    losses = {shift: naive_loss(accumulators, shift) for shift in range(1, 17)}
    return min(losses, key=lambda shift: (losses[shift], shift))


INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.lists(INT32, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(1, 2**16))
def test_shift_is_the_least_loss(rows: list[list[int]], divisor: int) -> None:
    values = [[value // divisor for value in row] for row in rows]
    search = ShiftSearch(len(values))
    search.update(np.array(values, np.int64)[:, :1])
    search.update(np.array(values, np.int64)[:, 1:])
    assert search.best() == tuple(naive_shift(row) for row in values)
    together = naive_shift([value for row in values for value in row])
    assert search.best(shared=True) == (together,) * len(values)


def test_ties_take_the_smallest_shift() -> None:
    search = ShiftSearch(1)
    search.update(np.array([[0, 2**16, -(2**16)]]))  # 2**16 needs a shift of 2; 2 to 16 lose nothing
    assert search.best() == (2,)


# Exported


def shifted(case: Case, folder: Path, shifts: Sequence[int], **choices: Any) -> tuple[ExportedFiles, Any]:
    prepared = prepare(case.proto(), folder)
    (layer,) = choose_scales(prepared, **choices)
    wanted = tuple(shifts[index % len(shifts)] for index in range(layer.scale_w.size))
    layer = dataclasses.replace(layer, shift=wanted)
    return write_export(prepared, [layer], folder / "out" / "m", "{}\n"), wanted


def expected(case: Case, record: Path, shifts: Sequence[int], x: np.ndarray) -> np.ndarray:
    """clip16(floor(acc / 2**N)) * deq * 2**N, from the record and whole numbers."""
    entry = exporting.read_record(record)["layer"]
    arrays, scale_d, offset = case.arrays(), entry["scale_d"][0], int(entry["offset_d"][0])
    data = np.array(naive.deploy_codes(x, scale_d, offset, 8)).reshape(x.shape) - offset
    codes = exporting.weight_codes(arrays["w"], case.op_type, case.groups, entry["scale_w"])
    total = exporting._multiply(case, data, codes)
    spread = (1, -1, *[1] * (total.ndim - 2)) if case.op_type.startswith("Conv") else (1,) * (total.ndim - 1) + (-1,)
    if "b" in arrays:
        total = total + np.array(naive.bias_codes(arrays["b"].ravel(), scale_d, np.array(entry["scale_w"]))).reshape(
            spread
        )
    powers = np.array([2**shift for shift in shifts]).reshape(spread)
    steps = np.array([F32(scale_d) * F32(scale) for scale in entry["scale_w"]], F32).reshape(spread)
    found: np.ndarray = np.clip(total.astype(np.int64) // powers, -32768, 32767).astype(F32) * (
        steps * powers.astype(F32)
    )
    return found


KINDS = ("Conv 2-D", "Conv grouped", "Conv 1-D", "ConvTranspose grouped", "Gemm", "MatMul and Add", "Conv without bias")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shifts", [(1, 3, 2), (16, 12)], ids=["small", "large"])
def test_shifted_layers_compute_what_the_record_says(tmp_path: Path, name: str, shifts: tuple[int, ...]) -> None:
    case = CASES[name]
    files, wanted = shifted(case, tmp_path, shifts)
    x = case.feed()
    (got,) = models.run(files.fake_quant, {"x": x})
    np.testing.assert_array_equal(got, expected(case, files.record, wanted, x))
    assert read_record(files.record)[0].shift_bit == wanted
    report = verify_export(files, [{"x": x}])
    assert report.passed
    assert report.layers[0].bit_equal
    again = export_record(files.record, tmp_path / "source.onnx", tmp_path / "again" / "m")
    for first, second in (
        (files.deploy, again.deploy),
        (files.fake_quant, again.fake_quant),
        (files.record, again.record),
    ):
        assert first.read_bytes() == second.read_bytes()


def test_accumulators_are_clipped_to_int16(tmp_path: Path) -> None:
    case = CASES["Gemm"]
    files, wanted = shifted(case, tmp_path, (1,), scale_d=0.0001, offset=0)
    x = np.full((1, 6), 5, F32)
    (got,) = models.run(files.fake_quant, {"x": x})
    np.testing.assert_array_equal(got, expected(case, files.record, wanted, x))
    entry = exporting.read_record(files.record)["layer"]
    unit = F32(entry["scale_d"][0]) * F32(entry["scale_w"][0])
    assert (np.abs(got) <= 32768 * 2 * unit).all()
    assert verify_export(files, [{"x": x}]).passed


def test_sums_beyond_float32_may_differ_by_one_step(tmp_path: Path) -> None:
    """4,000 products of 255 and a weight leave 2**24, so that the floor of a rounded sum may fall on the other side."""
    case = Case("Gemm", (1, 4000), (4000, 5), (5,))
    files, wanted = shifted(case, tmp_path, (3,), scale_d=0.004, offset=-128)
    x = np.abs(case.feed())
    report = verify_export(files, [{"x": x}, {"x": x[:, ::-1].copy()}])
    assert report.passed
    check = report.layers[0]
    assert (check.channels, check.exact_channels < 5) == (5, True)
    unit = float(F32(exporting.read_record(files.record)["layer"]["scale_w"][0]) * F32(0.004))
    assert check.allowed_error > 2 ** wanted[0] * unit


def test_a_record_with_other_shifts_is_not_that_of_the_fit(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    record = tmp_path / "a" / "m_record.txt"
    text = record.read_text()
    first = next(line for line in text.splitlines() if "shift_bit" in line)
    record.write_text(text.replace(first, "    shift_bit: 16", 1))
    with pytest.raises(ExportError, match="layer 'left' has other scales than fit 'default'"):
        calibrant.verify(run)


def words_of(model: onnx.ModelProto) -> onnx.TensorProto:
    found: onnx.TensorProto = next(one for one in model.graph.initializer if one.name == "layer.dequant.param")
    return found


def test_words_hold_the_shift_in_bits_39_to_32(tmp_path: Path) -> None:
    files, wanted = shifted(CASES["Conv 2-D"], tmp_path, (1, 7, 16))
    words = numpy_helper.to_array(words_of(onnx.load(files.deploy)))
    entry = read_record(files.record)[0]
    assert entry.scale_d is not None
    for word, shift, scale in zip(words.tolist(), wanted, entry.scale_w, strict=True):
        assert word >> 32 == shift
        assert np.array(word & 0xFFFFFFFF, np.uint32).view(F32) == F32(entry.scale_d) * scale


def test_a_tampered_shift_fails(tmp_path: Path) -> None:
    files, _ = shifted(CASES["Conv 2-D"], tmp_path, (2,))
    deploy = onnx.load(files.deploy)
    tensor = words_of(deploy)
    words = numpy_helper.to_array(tensor) + np.uint64(1 << 32)
    tensor.raw_data = words.tobytes()
    onnx.save(deploy, files.deploy)
    report = verify_export(files, [{"x": CASES["Conv 2-D"].feed()}])
    assert "the shifts of the two models differ" in report.layers[0].failures
    told = "error: layer.dequant: shifts (bits 39 to 32 of the words) are not shift_bit of the record"
    assert told in [str(finding) for finding in report.findings]
    tensor.raw_data = (words + np.uint64(20 << 32)).tobytes()
    told = "error: layer.dequant: shifts (bits 39 to 32) must be 0 in all words, or from 1 to 16 in all"
    assert told in [str(finding) for finding in lint_deploy(deploy)]


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"1 shifts for 1 weight scales; a layer with a weight has one from 1 to 16"):
        shifted(CASES["Gemm"], tmp_path, (17,))
    with pytest.raises(ExportError, match="shifts for 1 weight scales; a layer with a weight"):
        shifted(CASES["AveragePool"], tmp_path, (1,))


def test_record_with_one_shift_for_all_channels(tmp_path: Path) -> None:
    files, _ = shifted(CASES["Conv 2-D"], tmp_path, (4,))
    lines = files.record.read_text().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if "shift_bit" in line)
    kept = [line for index, line in enumerate(lines) if "shift_bit" not in line or index == first]
    (tmp_path / "one.txt").write_text("".join(kept))
    again = export_record(tmp_path / "one.txt", tmp_path / "source.onnx", tmp_path / "again" / "m")
    assert again.deploy.read_bytes() == files.deploy.read_bytes()
    (tmp_path / "two.txt").write_text("".join([*kept[: first + 1], lines[first], *kept[first + 1 :]]))
    with pytest.raises(ConfigError, match="2 shift_bit for 4 scale_w; none or as many are expected"):
        export_record(tmp_path / "two.txt", tmp_path / "source.onnx", tmp_path / "again" / "m")


# From the configuration


def branches() -> onnx.ModelProto:
    """left = Conv(x), right = Relu(Conv(Conv(x))); y = left + right; z = fc(mean(y)) + skip(mean(y)) as matrices."""
    nodes = [
        models.node("Conv", ["x", "w1", "b1"], "l", "left", pads=[1, 1, 1, 1]),
        models.node("Conv", ["x", "w2"], "m", "middle", pads=[1, 1, 1, 1]),
        models.node("Conv", ["m", "w3"], "c", "right", pads=[1, 1, 1, 1]),
        models.node("Relu", ["c"], "r", "relu"),
        models.node("Add", ["l", "r"], "y", "add"),
        models.node("Flatten", ["y"], "f", "flatten"),
        models.node("Gemm", ["f", "w4"], "g", "fc"),
        models.node("MatMul", ["f", "w5"], "n", "matmul"),
        models.node("Add", ["n", "b5"], "s", "bias"),
        models.node("Add", ["g", "s"], "z", "sum"),
    ]
    weights = {
        "w1": models.normal(4, 3, 3, 3, seed=1),
        "b1": models.normal(4, seed=6),
        "w2": models.normal(3, 3, 3, 3, seed=2),
        "w3": models.normal(4, 3, 3, 3, seed=3, scale=0.6),
        "w4": models.normal(64, 5, seed=4),
        "w5": models.normal(64, 5, seed=5),
        "b5": models.normal(5, seed=7),
    }
    return models.model(nodes, [models.value("x", ["N", 3, 4, 4])], [models.value("z", ["N", 5])], weights)


FEEDS = [{"x": models.normal(1, 3, 4, 4, seed=seed, scale=1.5)} for seed in range(4)]


def run_of(folder: Path, text: str = "joint_quant: true", **options: Any) -> calibrant.Run:
    model = models.save(branches(), folder / "source.onnx")
    return calibrant.run(
        model, FEEDS, run=folder / "m.run", prefix=folder / "a" / "m", config=parse_simple_config(text), **options
    )


def float_values(run: calibrant.Run, name: str) -> np.ndarray:
    if name == "x":
        return np.concatenate([feed["x"] for feed in FEEDS])
    model = onnx.load(run.model_folder / "prepared.onnx")
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return np.concatenate([models.run(model, feed, [name])[0] for feed in FEEDS])


def test_layers_that_meet_at_an_add_share_one_scale(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    plan = dict(run.read("plan").select("layer", "joint").iter_rows())
    assert plan == {"left": "add", "middle": None, "right": "add", "fc": "sum", "matmul": "sum"}
    both = LogLinearHistogram.from_values(np.concatenate([float_values(run, "x"), float_values(run, "m")]))
    wanted, alone = (
        fit_ifmr(both, IfmrOptions()),
        fit_ifmr(LogLinearHistogram.from_values(float_values(run, "x")), IfmrOptions()),
    )
    record = {entry.key: entry for entry in read_record(tmp_path / "a" / "m_record.txt")}
    for name, fit in (("left", wanted), ("right", wanted), ("middle", alone)):
        assert record[name].scale_d == F32(fit.scale), name
        assert record[name].offset_d == int(fit.offset), name
    assert wanted.scale != alone.scale
    assert not [text for text in run.read("events")["message"] if "not applied" in text]


def accumulators(entry: Any, data: np.ndarray, weight: np.ndarray, bias: Any) -> np.ndarray:
    scales = [float(scale) for scale in entry.scale_w]
    codes: Any = naive.deploy_codes(data, entry.scale_d, entry.offset_d, 8)
    whole = np.array(codes).reshape(data.shape) - entry.offset_d
    if weight.ndim == 4:
        total = naive.convolution(whole, exporting.weight_codes(weight, "Conv", 1, scales), 1, pads=[1, 1, 1, 1])
    else:
        total = naive.matrix_product(whole, exporting.weight_codes(weight, "Gemm", 1, scales))
    if bias is not None:
        held: Any = naive.bias_codes(bias, entry.scale_d, np.array(scales))
        total = total + np.array(held).reshape(1, -1, *[1] * (total.ndim - 2))
    return np.asarray(total, np.int64)


def test_shifts_are_the_least_loss_over_all_samples(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    record = {entry.key: entry for entry in read_record(tmp_path / "a" / "m_record.txt")}
    arrays = {one.name: numpy_helper.to_array(one) for one in branches().graph.initializer}
    for name, tensor, weight, bias in (("left", "x", "w1", "b1"), ("right", "m", "w3", None)):
        held = None if bias is None else arrays[bias]
        total = accumulators(record[name], float_values(run, tensor), arrays[weight], held)
        channels = [total[:, channel].ravel().tolist() for channel in range(4)]
        assert record[name].shift_bit == tuple(naive_shift(one) for one in channels)
    for name, weight, bias in (("fc", "w4", None), ("matmul", "w5", "b5")):
        held = None if bias is None else arrays[bias]
        total = accumulators(record[name], float_values(run, "f"), arrays[weight], held)
        assert record[name].shift_bit == (naive_shift(total.ravel().tolist()),)
    assert record["middle"].shift_bit == ()
    rows = run.read("quant_params").filter(role="shift")
    assert rows["layer_id"].unique().sort().to_list() == [0, 2, 3, 4]


def test_one_shift_for_all_channels_where_each_has_one_value(tmp_path: Path) -> None:
    run = run_of(tmp_path, "joint_quant: true", matmul_per_channel=True)
    record = {entry.key: entry for entry in read_record(tmp_path / "a" / "m_record.txt")}
    arrays = {one.name: numpy_helper.to_array(one) for one in branches().graph.initializer}
    total = accumulators(record["fc"], float_values(run, "f"), arrays["w4"], None)
    assert record["fc"].shift_bit == (naive_shift(total.ravel().tolist()),) * 5


def test_statistics_alone_need_a_second_pass(tmp_path: Path) -> None:
    run_of(tmp_path)
    (tmp_path / "s").mkdir()
    run = run_of(tmp_path / "s", keep="stats")
    for name in ("record.txt", "deploy_model.onnx", "fake_quant_model.onnx"):
        assert (tmp_path / "s" / "a" / f"m_{name}").read_bytes() == (tmp_path / "a" / f"m_{name}").read_bytes()
    with pytest.raises(RunError, match="joint_quant of layer 'left' needs the activations"):
        calibrant.fit(run, config=parse_simple_config("joint_quant: true"))


def test_record_of_a_joint_run_gives_its_files_again(tmp_path: Path) -> None:
    run_of(tmp_path)
    files = export_record(tmp_path / "a" / "m_record.txt", tmp_path / "source.onnx", tmp_path / "b" / "m")
    for path in (files.fake_quant, files.deploy, files.record, files.quant_map):
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()


def test_exact_search_takes_the_values_of_all_branches(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    fitted = calibrant.fit(run, config=parse_simple_config("joint_quant: true"), name="exact", exact=True)
    scales = fitted.read("quant_params").filter(fit="exact", role="data").sort("layer_id")["scale"].to_list()
    values = np.concatenate([float_values(run, "x").ravel(), float_values(run, "m").ravel()])
    wanted = fit_ifmr(LogLinearHistogram.from_values(values), IfmrOptions(), [values])
    assert scales[0] == scales[2] == F32(wanted.scale)


def test_what_cannot_be_joint_is_told(tmp_path: Path) -> None:
    model = models.save(branches(), tmp_path / "m.onnx")
    other = 'joint_quant: true override_layer_configs { layer_name: "right" calibration_config { hfmg_quantize { } } }'
    rows, events = plan_of_model(model, config=parse_simple_config(other))
    assert rows.filter(pl.col("joint") == "add").height == 0
    told = "joint_quant: the layers that meet at 'add' keep scales of their own: their data has other settings ('left', 'right')"
    assert told in [event.message for event in events]
    skipped = parse_simple_config('joint_quant: true skip_layers: ["left", "fc"]', "quant.cfg")
    rows, events = plan_of_model(model, config=skipped)
    assert rows["joint"].null_count() == rows.height
    told = "quant.cfg:1:1: joint_quant: true changes nothing: no two quantized layers meet at an Add"
    assert told in [event.message for event in events]
    rows, _ = plan_of_model(model, config=parse_simple_config(""))
    assert rows["joint"].null_count() == rows.height


def test_layers_that_meet_at_several_adds_are_one_group() -> None:
    nodes = {name: ModelNode("Conv", outputs=(name,), tensors=("x", "w")) for name in "abcd"}
    nodes["ab"] = ModelNode("Add", 2, tensors=("a", "b"), outputs=("ab",))
    nodes["cd"] = ModelNode("Add", 2, tensors=("c", "d"), outputs=("cd",))
    nodes["bc"] = ModelNode("Add", 2, tensors=("b", "c"), outputs=("bc",))
    layers = [LayerRow(i, name, "Conv", 0, "w", None, 4, 3, 1, 2, None, 1, True, None) for i, name in enumerate("abcd")]
    plan = resolve_plan(QuantConfig(joint_quant=True), layers, other_nodes=nodes)
    assert [row.joint for row in plan.rows] == ["ab"] * 4
