"""Weights of few levels, from the configuration to both models: 4, 6 and 7 bits, and NUQ's centres."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import exporting
import models
import naive
import numpy as np
import onnx
import polars as pl
import pytest
from exporting import Case
from onnx import numpy_helper
from shared_material import SHARED, needs_shared

import calibrant
from calibrant.errors import ConfigError
from calibrant.export.files import ExportedFiles, export_files
from calibrant.export.verify import verify_export
from calibrant.rebuild import export_record

CASES = {
    "Conv": Case("Conv", (1, 4, 6, 5), (5, 4, 3, 3), (5,), {"pads": [1, 1, 1, 1]}),
    "ConvTranspose": Case("ConvTranspose", (1, 4, 4, 4), (4, 3, 2, 2), (3,), {"strides": [2, 2]}),
    "Gemm": Case("Gemm", (1, 8), (8, 5), (5,)),
    "MatMul": Case("MatMul", (1, 3, 6), (6, 5)),
    "MatMul and Add": Case("MatMul", (1, 3, 6), (6, 5), (5,)),
}
INPUT_AXIS = {"Conv": 1, "ConvTranspose": 0, "Gemm": 0, "MatMul": 0}
NUQ = "nuq_quantize {{ num_steps: {} num_of_iteration: {} }}"
BITS = "arq_quantize {{ quant_bits: {} }}"


class Exported(NamedTuple):
    """A run of one layer and its files."""

    run: calibrant.Run
    files: ExportedFiles
    source: Path


def quantize(case: Case, folder: Path, block: str) -> Exported:
    source = models.save(case.proto(), folder / "m.onnx")
    (folder / "quant.cfg").write_text(f"common_config {{ {block} }}")
    feeds = [{"x": case.feed(seed)} for seed in range(3)]
    run = calibrant.run(source, feeds, run=folder / "m.run", config=folder / "quant.cfg", prefix=folder / "out" / "m")
    return Exported(run, export_files(folder / "out" / "m"), source)


def initializer(path: Path, name: str) -> np.ndarray:
    model = onnx.load(path)
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == name))


def change(path: Path, name: str, place: int, value: int) -> None:
    model = onnx.load(path)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[place] = value
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    path.write_bytes(model.SerializeToString())


def verified(found: Exported, case: Case) -> list[str]:
    return verify_export(found.files, [{"x": case.feed(9)}]).failures()


def rebuilt(found: Exported, folder: Path) -> None:
    again = export_record(found.files.record, found.source, folder / "again" / "m")
    assert again.fake_quant.read_bytes() == found.files.fake_quant.read_bytes()
    assert again.deploy.read_bytes() == found.files.deploy.read_bytes()
    assert again.record.read_bytes() == found.files.record.read_bytes()


# Bits


@pytest.mark.parametrize(("name", "bits"), [*((name, 4) for name in CASES), ("Conv", 6), ("Conv", 7)])
def test_narrow_codes_and_outputs_are_those_of_the_record(name: str, bits: int, tmp_path: Path) -> None:
    case = CASES[name]
    found = quantize(case, tmp_path, BITS.format(bits))
    entry = exporting.read_record(found.files.record)["layer"]
    assert f'wts_type: "INT{bits}"' in found.files.record.read_text()
    codes = exporting.weight_codes(case.arrays()["w"], case.op_type, 1, entry["scale_w"], bits=bits)
    low, high = naive.code_range(bits)
    assert codes.min() >= low
    assert codes.max() <= high
    stored = naive.pack_nibbles(codes, INPUT_AXIS[case.op_type]) if bits == 4 else codes
    assert initializer(found.files.fake_quant, "w").tolist() == codes.tolist()
    assert initializer(found.files.deploy, "w").tolist() == stored.tolist()
    x = case.feed(9)
    expected = exporting.expected_output(case, entry, x, weight_bits=bits)
    np.testing.assert_array_equal(models.run(found.files.fake_quant, {"x": x})[0], expected)
    assert verified(found, case) == []
    rebuilt(found, tmp_path)


@pytest.mark.parametrize("bits", [4, 6, 7])
def test_scales_of_narrow_weights_are_the_naive_ones(bits: int, tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = quantize(case, tmp_path, BITS.format(bits))
    rows = found.run.read("quant_params").filter(role="weight")
    assert set(rows["bits"]) == {bits}
    expected = [one.scale for one in naive.arq(case.arrays()["w"], bits, channel_wise=True, asymmetric=False)]
    assert rows["scale"].to_list() == expected


@pytest.mark.parametrize("wide", [{"group": 2}, {}])
def test_four_bits_fall_back_with_groups_and_with_odd_channels(wide: dict[str, Any], tmp_path: Path) -> None:
    case = Case("Conv", (1, 4 if wide else 3, 6, 6), (4, 2 if wide else 3, 3, 3), None, wide)
    found = quantize(case, tmp_path, BITS.format(4))
    assert 'wts_type: "INT8"' in found.files.record.read_text()
    words = "in groups" if wide else "with an odd number of input channels"
    assert any(
        f"quant_bits: 4 has no effect on Conv with a 2-D kernel {words}" in text
        for text in found.run.read("events")["message"]
    )


@pytest.mark.parametrize("name", ["Conv", "Gemm"])
def test_a_changed_nibble_fails(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = quantize(case, tmp_path, BITS.format(4))
    change(found.files.deploy, "w", 3, int(initializer(found.files.deploy, "w").flat[3]) ^ 16)
    assert any("weight codes of the two models differ" in text for text in verified(found, case))


def test_codes_wider_than_the_record_says_fail(tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = quantize(case, tmp_path, BITS.format(6))
    for path in (found.files.deploy, found.files.fake_quant):
        change(path, "w", 0, 32)
    assert any("weight codes are wider than the record says" in text for text in verified(found, case))


def test_a_record_that_hides_four_bits_fails(tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = quantize(case, tmp_path, BITS.format(4))
    found.files.record.write_text(found.files.record.read_text().replace('wts_type: "INT4"', 'wts_type: "INT8"'))
    assert verified(found, case) != []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case("Conv", (1, 3, 6, 6), (4, 3, 3, 3)), "an even number of input channels"),
        (Case("AveragePool", (1, 3, 6, 6), attributes={"kernel_shape": [2, 2]}), "needs a weight of one group"),
    ],
)
def test_a_record_of_four_bits_needs_a_layer_that_can_have_them(case: Case, words: str, tmp_path: Path) -> None:
    export = exporting.export(case.proto(), tmp_path)
    text = export.files.record.read_text().replace('wts_type: "INT8"', 'wts_type: "INT4"')
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(ConfigError, match=words):
        export_record(tmp_path / "r.txt", tmp_path / "source.onnx", tmp_path / "again" / "m")


# NUQ


@pytest.mark.parametrize("name", ["Conv", "Gemm", "MatMul", "MatMul and Add"])
@pytest.mark.parametrize(("steps", "rounds"), [(16, 0), (16, 1), (32, 5)])
def test_codes_are_replaced_by_the_centres_of_the_record(name: str, steps: int, rounds: int, tmp_path: Path) -> None:
    case = CASES[name]
    found = quantize(case, tmp_path, NUQ.format(steps, rounds))
    entry = exporting.read_record(found.files.record)["layer"]
    centres = [int(centre) for centre in entry["cluster"]]
    assert len(centres) == steps
    uniform = exporting.weight_codes(case.arrays()["w"], case.op_type, 1, entry["scale_w"])
    if rounds == 0:
        assert sorted(set(centres)) == naive.nuq_seeded_centres(uniform.ravel().tolist(), steps)
    codes = exporting.weight_codes(case.arrays()["w"], case.op_type, 1, entry["scale_w"], cluster=centres)
    assert len(np.unique(codes)) <= steps
    for path in (found.files.fake_quant, found.files.deploy):
        assert initializer(path, "w").tolist() == codes.tolist()
    x = case.feed(9)
    np.testing.assert_array_equal(
        models.run(found.files.fake_quant, {"x": x})[0], exporting.expected_output(case, entry, x)
    )
    assert verified(found, case) == []
    rebuilt(found, tmp_path)


@pytest.mark.parametrize("rounds", [0, 2])
def test_search_has_both_losses_and_quant_params_the_centres(rounds: int, tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = quantize(case, tmp_path, NUQ.format(16, rounds))
    entry = exporting.read_record(found.files.record)["layer"]
    weight = case.arrays()["w"]
    uniform = exporting.weight_codes(weight, "Conv", 1, entry["scale_w"]).ravel().tolist()
    search = found.run.read("search").filter(algorithm="nuq").sort("candidate")
    assert search["is_best"].to_list() == [rounds == 0, rounds > 0]
    assert search["loss"][0] == naive.nuq_loss(uniform, naive.nuq_seeded_centres(uniform, 16))
    assert search["loss"][1] <= search["loss"][0]
    assert search["loss"][int(rounds > 0)] == naive.nuq_loss(uniform, [int(centre) for centre in entry["cluster"]])
    rows = found.run.read("quant_params")
    assert rows.filter(role="cluster").sort("channel")["offset"].to_list() == entry["cluster"]
    codes = exporting.weight_codes(weight, "Conv", 1, entry["scale_w"], cluster=entry["cluster"])
    steps = np.array(entry["scale_w"], np.float64).reshape(-1, 1, 1, 1)
    errors = ((weight - codes * steps) ** 2).reshape(len(weight), -1).mean(axis=1)
    weights = rows.filter(role="weight").sort("channel")
    np.testing.assert_allclose(weights["mse"], errors, rtol=1e-5, atol=1e-15)
    assert set(weights["algorithm"]) == {"nuq"}


def test_config_json_of_a_record_with_centres_says_nuq(tmp_path: Path) -> None:
    found = quantize(CASES["Conv"], tmp_path, NUQ.format(16, 3))
    again = export_record(found.files.record, found.source, tmp_path / "again" / "m")
    weight = json.loads(again.config.read_text())["layer"]["weight_quant_params"]
    assert (weight["wts_algo"], weight["num_steps"]) == ("nuq_quantize", 16)


def test_a_code_that_is_no_centre_fails(tmp_path: Path) -> None:
    case = CASES["Conv"]
    found = quantize(case, tmp_path, NUQ.format(16, 1))
    centres = exporting.read_record(found.files.record)["layer"]["cluster"]
    other = next(code for code in range(-100, 100) if code not in centres)
    for path in (found.files.deploy, found.files.fake_quant):
        change(path, "w", 0, other)
    assert any("not among the centres (cluster) of the record" in text for text in verified(found, case))


def test_centres_of_a_narrow_weight_are_refused(tmp_path: Path) -> None:
    found = quantize(CASES["Conv"], tmp_path, NUQ.format(16, 1))
    text = found.files.record.read_text().replace('wts_type: "INT8"', 'wts_type: "INT6"')
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(ConfigError, match=r"cluster \(non-uniform weights\) needs a layer with a weight of INT8"):
        export_record(tmp_path / "r.txt", found.source, tmp_path / "again" / "m")


MAPPING = SHARED / "cases" / "real" / "onnx_resnet101_fusion.json.gz"


@needs_shared
def test_layers_of_the_real_mapping_file_are_quantized_non_uniformly(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "map.json").write_bytes(gzip.decompress(MAPPING.read_bytes()))
    ops = json.loads((tmp_path / "map.json").read_text())["graph"][0]["op"]
    marked = [op for op in ops if {"key": "_fe_weight_compress", "value": {"b": True}} in op.get("attr", [])]
    originals = [
        pair["value"]["list"]["s"][0]
        for op in marked
        for pair in op["attr"]
        if pair["key"] == "_datadump_original_op_names"
    ]
    first = originals[0]
    nodes = [
        models.node("Conv", ["x", "w"], "h", first, pads=[1, 1, 1, 1]),
        models.node("Conv", ["h", "v"], "y", "of another model", pads=[1, 1, 1, 1]),
    ]
    weights = {"w": models.normal(4, 4, 3, 3, seed=3), "v": models.normal(4, 4, 3, 3, seed=4)}
    shapes = [models.value(name, ["N", 4, 6, 6]) for name in "xy"]
    source = models.save(models.model(nodes, shapes[:1], shapes[1:], weights), tmp_path / "m.onnx")
    (tmp_path / "quant.cfg").write_text('nuq_config { mapping_file: "map.json" nuq_quantize { num_steps: 16 } }')
    feeds = [{"x": models.normal(1, 4, 6, 6, seed=seed)} for seed in range(2)]
    run = calibrant.run(
        source, feeds, run=tmp_path / "m.run", config=tmp_path / "quant.cfg", prefix=tmp_path / "o" / "m"
    )
    record = exporting.read_record(export_files(tmp_path / "o" / "m").record)
    assert {layer: len(entry["cluster"]) for layer, entry in record.items()} == {first: 16, "of another model": 0}
    assert run.read("quant_params").filter(pl.col("role") == "cluster").height == 16


# Together with other features


@pytest.mark.parametrize("block", [BITS.format(4), NUQ.format(16, 1)])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("case", [CASES["MatMul and Add"], Case("MatMul", (1, 2, 3, 6), (2, 6, 5))])
def test_levels_of_balanced_matrices(case: Case, per_column: bool, block: str, tmp_path: Path) -> None:
    source = models.save(case.proto(), tmp_path / "m.onnx")
    (tmp_path / "quant.cfg").write_text(f"common_config {{ {block} dmq_balancer {{ }} }}")
    feeds, prefix = [{"x": case.feed(seed)} for seed in range(3)], tmp_path / "out" / "m"
    run = calibrant.run(
        source,
        feeds,
        run=tmp_path / "m.run",
        config=tmp_path / "quant.cfg",
        prefix=prefix,
        matmul_per_channel=per_column,
    )
    found = Exported(run, export_files(prefix), source)
    columns = 5 if per_column and "nuq" not in block else 1  # NUQ keeps one scale
    assert len(exporting.read_record(found.files.record)["layer"]["scale_w"]) == columns
    assert verified(found, case) == []
    rebuilt(found, tmp_path)


@pytest.mark.parametrize("block", [BITS.format(4), NUQ.format(16, 1)])
def test_levels_of_layers_that_are_quantized_jointly(block: str, tmp_path: Path) -> None:
    nodes = [
        models.node("Conv", ["x", "w"], "a", "left", pads=[1, 1, 1, 1]),
        models.node("Conv", ["x", "v"], "b", "right", pads=[1, 1, 1, 1]),
        models.node("Add", ["a", "b"], "y", "add"),
    ]
    weights = {"w": models.normal(4, 4, 3, 3, seed=3), "v": models.normal(4, 4, 3, 3, seed=4)}
    shapes = [models.value(name, ["N", 4, 6, 6]) for name in "xy"]
    source = models.save(models.model(nodes, shapes[:1], shapes[1:], weights), tmp_path / "m.onnx")
    (tmp_path / "quant.cfg").write_text(f"joint_quant: true common_config {{ {block} }}")
    feeds, prefix = [{"x": models.normal(1, 4, 6, 6, seed=seed)} for seed in range(2)], tmp_path / "out" / "m"
    run = calibrant.run(source, feeds, run=tmp_path / "m.run", config=tmp_path / "quant.cfg", prefix=prefix)
    found = Exported(run, export_files(prefix), source)
    assert "shift_bit" in found.files.record.read_text()
    assert verify_export(found.files, feeds).failures() == []
    rebuilt(found, tmp_path)
