"""Outputs of a model sample by sample, as the file says or as this CPU would compute them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from calibrant.errors import DataError, ModelError, first_line, nearest
from calibrant.ingest.batches import Batch, fixed_batch, join, make_batches
from calibrant.ingest.model import ModelInput
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

    Attributes:
        outputs: names of the outputs that hold numbers, in order.

    Raises:
        ModelError: onnxruntime refuses the model, its inputs are others than the data's, or it has no output of numbers.

    Example:
        >>> runner = OutputRunner(run.prepared_file, prepared.inputs)  # doctest: +SKIP
        >>> [outputs["y"].argmax() for outputs in runner.each(open_data("x.npz", prepared.inputs))]  # doctest: +SKIP
    """

    def __init__(
        self, model: Path | bytes, inputs: Sequence[ModelInput], *, fused: bool = False, name: str | None = None
    ) -> None:
        self._name = name or (f"model {model}" if isinstance(model, Path) else "the model")
        self._session = self._open(model, fused_options() if fused else plain_options())
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
        for batch in make_batches(samples, self._inputs_given(), self._size or 1):
            found = self._run(batch)
            count = self._size or 1
            for index in range(len(batch.samples)):
                yield {name: self._own(name, array, index, count) for name, array in found.items()}

    def _open(self, model: Path | bytes, options: Any) -> Any:
        if isinstance(model, Path) and not model.is_file():
            message = f"{self._name}: no such file"
            raise ModelError(message)
        try:
            source = str(model) if isinstance(model, Path) else model
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except SESSION_ERRORS as error:
            message = f"{self._name}: onnxruntime refuses it: {first_line(error)}; check it with onnx.checker"
            raise ModelError(message) from error

    def _own_inputs(self, inputs: Sequence[ModelInput]) -> list[ModelInput]:
        """Return the data's inputs by this model's names and sizes."""
        own = {value.name: value.shape for value in self._session.get_inputs()}
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

    def _run(self, batch: Batch) -> dict[str, Array]:
        feed = join(batch.samples, self._inputs_given(), self._size)
        named = {spec.name: feed[given] for spec, given in zip(self._inputs, self._given, strict=True)}
        try:
            arrays = self._session.run(list(self.outputs), named)
        except SESSION_ERRORS as error:
            first = batch.samples[0].place
            message = f"sample {batch.first} ({first}): {self._name} does not take it: {first_line(error)}"
            raise DataError(message) from error
        return dict(zip(self.outputs, map(np.asarray, arrays), strict=True))

    def _own(self, name: str, array: Array, index: int, count: int) -> Array:
        """Return one sample's part of an output of a batch."""
        if count == 1:
            return array
        axes = [axis for axis, size in enumerate(array.shape) if size == count] or [
            axis for axis, size in enumerate(array.shape[:1]) if size % count == 0
        ]
        if not axes:
            message = (
                f"{self._name}: output '{name}' of shape {list(array.shape)} cannot be split into its {count} samples; "
                "export the model with a batch of 1 or a free one"
            )
            raise ModelError(message)
        return np.split(array, count, axis=axes[0])[index]


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
