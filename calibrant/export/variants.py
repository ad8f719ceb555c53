"""What can stand beside the float model: any ONNX model that takes the same data, and outputs dumped elsewhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from calibrant.errors import ModelError, nearest
from calibrant.export.dumps import Dumps
from calibrant.export.outputs import OutputRunner
from calibrant.ingest.model import ModelInput
from calibrant.ingest.passes.fix_input import parse_value
from calibrant.ingest.samples import Sample
from calibrant.ingest.source import read_model

Array = npt.NDArray[Any]
References = Iterable[Mapping[str, Array]]


@dataclass(frozen=True)
class Variant:
    """Something whose outputs are compared with those of the float model.

    Attributes:
        name: as in the table `evaluation`.
        fit: the fit that it belongs to, or None.
        outputs: (samples, outputs of the float model, chosen output names, all output names) -> the chosen outputs of each sample.
    """

    name: str
    fit: str | None
    outputs: Callable[[Iterable[Sample], References, Sequence[str], Sequence[str]], Iterator[dict[str, Array]]]

    def __str__(self) -> str:
        """Name the variant and its fit."""
        return self.name if self.fit is None else f"{self.name} of fit '{self.fit}'"


def model_variant(
    name: str,
    model: Path,
    inputs: Sequence[ModelInput],
    *,
    fit: str | None = None,
    fused: bool = False,
    fixed: Mapping[str, str] | None = None,
) -> Variant:
    """Return an ONNX model as a variant; its session is open while its outputs are read and no longer.

    Its outputs are found by name, or by position where the names differ and there are as many. An input that `fixed` names and
    that is none of the data's is fed that value, as text.
    """

    def outputs(
        samples: Iterable[Sample], references: References, chosen: Sequence[str], every: Sequence[str]
    ) -> Iterator[dict[str, Array]]:
        del references
        constants = _constants(model, fixed) if fixed and model.is_file() else {}
        runner = OutputRunner(model, inputs, fused=fused, name=f"'{name}' ({model})", constants=constants)
        own = _matched(runner, name, chosen, every)
        for found in runner.each(samples):
            yield {output: found[own[output]] for output in chosen}

    return Variant(f"{name}_fused" if fused else name, fit, outputs)


def _constants(model: Path, fixed: Mapping[str, str]) -> dict[str, Array]:
    """Return the values of a model's inputs that the run's model has no more."""
    values = {str(value.name): value for value in read_model(model).graph.inputs}
    return {name: parse_value(values[name], text) for name, text in fixed.items() if name in values}


def dump_variant(name: str, dumps: Dumps) -> Variant:
    """Return dumped outputs as a variant."""
    return Variant(name, None, dumps.each)


def _matched(runner: OutputRunner, name: str, chosen: Sequence[str], every: Sequence[str]) -> dict[str, str]:
    """Return the model's own name of each chosen output."""
    if set(chosen) <= set(runner.outputs):
        return {output: output for output in chosen}
    if len(runner.outputs) == len(every):
        return {output: runner.outputs[list(every).index(output)] for output in chosen}
    missing = next(output for output in chosen if output not in runner.outputs)
    listed = ", ".join(f"'{output}'" for output in runner.outputs)
    message = f"'{name}': no output '{missing}'{nearest(missing, runner.outputs)}; its outputs are {listed}; choose --output-name"
    raise ModelError(message)
