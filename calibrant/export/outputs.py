"""Outputs of a model sample by sample, as the file says or as this CPU would compute them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from calibrant.errors import DataError, ModelError, first_line, nearest
from calibrant.ingest.batches import Batch, fixed_batch, join, make_batches
from calibrant.ingest.model import ModelInput
from calibrant.ingest.sample_axis import ROUNDING
from calibrant.ingest.samples import Sample
from calibrant.ingest.session import QUIET, SESSION_ERRORS, plain_options

Array = npt.NDArray[Any]


def fused_options() -> Any:
    """Return the options of a session with every graph optimization on: what a user of onnxruntime gets on this CPU."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = QUIET
    return options


class OutputRunner:
    """Runs a model one sample at a time, or in its own batches where their size is fixed, so that no sample moves another's bits.

    Args:
        model: an ONNX file, or the bytes of a model.
        inputs: what the samples were checked against; a model with one input takes the one input whatever its name.
        fused: leave graph optimizations on. Off is the default: onnxruntime's fused int8 kernels saturate on CPUs without VNNI.
        name: how messages call the model; by default its path.
        constants: values of inputs that the data has none for, where the model has such inputs.

    Attributes:
        outputs: names of the outputs that hold numbers, in order.

    Raises:
        ModelError: onnxruntime refuses the model, its inputs are others than the data's, or it has no output of numbers.

    Example:
        >>> runner = OutputRunner(run.prepared_file, prepared.inputs)  # doctest: +SKIP
        >>> [outputs["y"].argmax() for outputs in runner.each(open_data("x.npz", prepared.inputs))]  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Path | bytes,
        inputs: Sequence[ModelInput],
        *,
        fused: bool = False,
        name: str | None = None,
        constants: Mapping[str, Array] | None = None,
    ) -> None:
        self._name = name or (f"model {model}" if isinstance(model, Path) else "the model")
        self._session = self._open(model, fused_options() if fused else plain_options())
        inner = {value.name for value in self._session.get_inputs()} - {spec.name for spec in inputs}
        self._constants = {name: array for name, array in (constants or {}).items() if name in inner}
        self._given = [spec.name for spec in inputs]
        self._inputs = self._own_inputs(inputs)
        self._size = fixed_batch(self._inputs)
        kinds = {value.name: value.type for value in self._session.get_outputs()}
        self.outputs = tuple(
            name for name, kind in kinds.items() if kind.startswith("tensor(") and "string" not in kind
        )
        if not self.outputs:
            message = f"{self._name}: none of its outputs holds numbers; there is nothing to compare"
            raise ModelError(message)

    def each(self, samples: Iterable[Sample]) -> Iterator[dict[str, Array]]:
        """Yield the outputs of each sample: output name -> array as the model gives it for that sample alone.

        Raises:
            DataError: onnxruntime refuses a sample; the message names it.
            ModelError: an output of a model of fixed batch size cannot be split into samples.
        """
        axes: dict[str, int] = {}
        for batch in make_batches(samples, self._inputs_given(), self._size or 1):
            found = self._run(batch)
            if self._size in (None, 1):
                yield found
                continue
            axes = axes or self._sample_axes(batch, found)
            parts = {name: np.split(array, self._size, axis=axes[name]) for name, array in found.items()}
            yield from ({name: part[index] for name, part in parts.items()} for index in range(len(batch.samples)))

    def _open(self, model: Path | bytes, options: Any) -> Any:
        if isinstance(model, Path) and not model.is_file():
            message = f"{self._name}: no such file"
            raise ModelError(message)
        try:
            source = str(model) if isinstance(model, Path) else model
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except SESSION_ERRORS as error:
            advice = (
                "Ascend operators run on the NPU: dump their outputs there"
                if "Ascend" in str(error)
                else "check it with onnx.checker"
            )
            message = f"{self._name}: onnxruntime refuses it: {first_line(error)}; {advice}"
            raise ModelError(message) from error

    def _own_inputs(self, inputs: Sequence[ModelInput]) -> list[ModelInput]:
        """Return the data's inputs by this model's names and sizes."""
        own = {value.name: value.shape for value in self._session.get_inputs() if value.name not in self._constants}
        given = [spec.name for spec in inputs]
        if len(own) == len(given) == 1:
            given = list(own)
        listed = ", ".join(f"'{name}'" for name in own)
        for name in [*own, *given]:
            if name not in own or name not in given:
                side = "the data has no values for it" if name in own else f"not among its inputs {listed}"
                message = f"{self._name}: input '{name}': {side}{nearest(name, given if name in own else own)}"
                raise ModelError(message)
        return [_resized(spec, name, own[name]) for spec, name in zip(inputs, given, strict=True)]

    def _inputs_given(self) -> list[ModelInput]:
        return [replace(spec, name=name) for spec, name in zip(self._inputs, self._given, strict=True)]

    def _run(self, batch: Batch, turn: int = 0) -> dict[str, Array]:
        """Return the outputs of a batch, whose samples are moved on by `turn` places."""
        feed = join(batch.samples, self._inputs_given(), self._size)
        named = {
            spec.name: _turned(feed[given], spec, turn) for spec, given in zip(self._inputs, self._given, strict=True)
        }
        try:
            arrays = self._session.run(list(self.outputs), {**self._constants, **named})
        except SESSION_ERRORS as error:
            first = batch.samples[0].place
            message = f"sample {batch.first} ({first}): {self._name} does not take it: {first_line(error)}"
            raise DataError(message) from error
        return dict(zip(self.outputs, map(np.asarray, arrays), strict=True))

    def _sample_axes(self, batch: Batch, found: Mapping[str, Array]) -> dict[str, int]:
        """Return the axis of each output along which the samples move on when they are moved on in the batch."""
        turned, count = self._run(batch, 1), self._size or 1
        axes = {}
        for name, array in found.items():
            misses = {
                axis: _distance(np.roll(array, size // count, axis), turned[name])
                for axis, size in enumerate(array.shape)
                if size and size % count == 0
            }
            axes[name] = min(misses, key=misses.__getitem__, default=-1)
            if misses.get(axes[name], inf) > ROUNDING:
                message = (
                    f"{self._name}: output '{name}' of shape {list(array.shape)} cannot be split into its {count} samples; "
                    "export the model with a batch of 1 or a free one"
                )
                raise ModelError(message)
        return axes


def _turned(array: Array, spec: ModelInput, turn: int) -> Array:
    return array if spec.batch_axis is None or not turn else np.roll(array, turn, axis=spec.batch_axis)


def _distance(one: Array, other: Array) -> float:
    """Return the greatest difference, relative to the greatest value; what is not finite counts as zero."""
    x, y = (np.nan_to_num(array.astype(np.float64), nan=0, posinf=0, neginf=0) for array in (one, other))
    return float(np.abs(x - y).max(initial=0)) / max(float(np.abs(x).max(initial=0)), float(np.finfo(np.float32).tiny))


def _resized(spec: ModelInput, name: str, shape: Sequence[int | str | None]) -> ModelInput:
    """Return a spec with another model's name and sizes, where the ranks are equal."""
    sizes = tuple(shape) if len(shape) == len(spec.shape) else spec.shape
    return replace(spec, name=name, shape=sizes)


def joined(arrays: Mapping[str, Sequence[Array]]) -> dict[str, Array | list[Array]]:
    """Return each output of all samples as one array of shape (N, ...), or as a list where their shapes differ.

    Arrays that start with an axis of 1 (the batch of one sample) are joined along it, others on a new first axis.

    Example:
        >>> joined({"y": [np.zeros((1, 3)), np.ones((1, 3))], "s": [np.zeros(()), np.ones(())]})["y"].shape
        (2, 3)
    """
    return {name: _stack(list(parts)) for name, parts in arrays.items()}


def _stack(parts: list[Array]) -> Array | list[Array]:
    if len({part.shape for part in parts}) > 1:
        return parts
    return np.concatenate(parts) if parts[0].ndim and parts[0].shape[0] == 1 else np.stack(parts)
