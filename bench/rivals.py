"""What calibrant is compared with: plain inference, a session that exposes the same tensors, quantize_static, np.save."""

import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from bench.contest import Reading

Arrays = dict[str, np.ndarray]


class Batches:
    """Samples in batches, as onnxruntime's reader of calibration data gives them."""

    def __init__(self, samples: Arrays, size: int) -> None:
        self._samples, self._size = samples, size
        self._left = iter(self)

    def __iter__(self) -> Iterator[Arrays]:
        count = len(next(iter(self._samples.values())))
        for start in range(0, count, self._size):
            yield {name: array[start : start + self._size] for name, array in self._samples.items()}

    def get_next(self) -> Arrays | None:
        return next(self._left, None)

    def rewind(self) -> None:
        self._left = iter(self)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Be called by quantize_static, which never needs it here."""

    def __len__(self) -> int:
        return -(-len(next(iter(self._samples.values()))) // self._size)


def exposing_model(prepared: Path, tensors: list[str], folder: Path) -> Path:
    """Write a model whose outputs are these tensors; inputs among them need no exposing."""
    model = onnx.load(prepared)
    inputs = {value.name for value in model.graph.input}
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in inputs)
    path = folder / f"{prepared.parent.parent.name}.exposing.onnx"
    onnx.save(model, path)
    return path


def session(path: Path) -> Any:
    """Open a session with the options that onnxruntime has by default."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def infer(path: Path, samples: Arrays, batch: int) -> None:
    """Run a model over the samples, its session made anew."""
    opened = session(path)
    for feed in Batches(samples, batch):
        opened.run(None, feed)


def save_arrays(path: Path, samples: Arrays, batch: int, folder: Path) -> Reading:
    """Return the milliseconds that np.save takes for all outputs of a model, inference apart."""
    opened, total = session(path), 0.0
    for number, feed in enumerate(Batches(samples, batch)):
        arrays = opened.run(None, feed)
        start = time.perf_counter()
        for index, array in enumerate(arrays):
            np.save(folder / f"{number}-{index}.npy", array)
        total += time.perf_counter() - start
    for file in folder.glob("*.npy"):
        file.unlink()
    return Reading(total * 1e3)


def quantize_static(model: Path, samples: Arrays, batch: int, method: str, folder: Path) -> None:
    """Calibrate and quantize with onnxruntime's own tool."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat
    from onnxruntime.quantization import quantize_static as quantize

    logging.getLogger().setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize(
            str(model),
            str(folder / "static.onnx"),
            Batches(samples, batch),
            quant_format=QuantFormat.QDQ,
            calibrate_method=CalibrationMethod[method],
        )
