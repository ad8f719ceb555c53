"""The models that captures are measured on: real ones where a folder has them, and one made here, so that the bench runs anywhere."""

from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MOST: Final = 4  # real models
INPUT_BYTES: Final = 40_000_000  # of the samples of a capture
SAMPLES: Final = 256
MADE_SAMPLES: Final = 64
WIDTHS: Final = (3, 16, 24, 32, 48, 64, 96, 128)

Arrays = dict[str, np.ndarray]


def find_models(models: Path | None, data: Path | None) -> tuple[tuple[Path, Path], ...]:
    """Return up to four models, the largest first, that have an .npz of the same name in `data` (default: beside them)."""
    if models is None:
        return ()
    pairs = [(path, (data or models) / f"{path.stem}.npz") for path in models.glob("*.onnx")]
    found = sorted((pair for pair in pairs if pair[1].is_file()), key=lambda pair: -pair[0].stat().st_size)
    return tuple(found[:MOST])


def read_samples(path: Path, share: float) -> Arrays:
    """Return the samples of a file, repeated or cut to at most SAMPLES and INPUT_BYTES, in whole batches of eight where they fill one."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if file[name].ndim}
    each = sum(array[:1].nbytes for array in arrays.values())
    count = max(int(min(SAMPLES, INPUT_BYTES // each) * share), 1)
    count = count // 8 * 8 or count  # quantize_static refuses a short last batch
    return {name: np.resize(array, (count, *array.shape[1:])) for name, array in arrays.items()}


def _layer(layer: int, value: str) -> list[onnx.NodeProto]:
    taken, given = [value, f"weight_{layer}"], [f"conv_{layer}"]
    strides = [1 + layer % 2] * 2
    convolution = helper.make_node("Conv", taken, given, f"layer_{layer}", pads=[1] * 4, strides=strides)
    return [convolution, helper.make_node("Relu", given, [f"relu_{layer}"], f"activation_{layer}")]


def write_made_model(folder: Path, share: float) -> tuple[Path, Path]:
    """Write a convolutional network of seven layers and ReLU, and samples for it."""
    draw, side = np.random.default_rng(1), max(int(96 * share**0.5), 16)
    nodes, weights, value = [], [], "image"
    for layer, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        weight = draw.standard_normal((outputs, inputs, 3, 3), dtype=np.float32) * np.float32((inputs * 9) ** -0.5)
        weights.append(numpy_helper.from_array(weight, f"weight_{layer}"))
        nodes += _layer(layer, value)
        value = f"relu_{layer}"
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, side, side])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "made.onnx")
    np.savez(folder / "made.npz", image=draw.standard_normal((MADE_SAMPLES, 3, side, side), dtype=np.float32))
    return folder / "made.onnx", folder / "made.npz"
