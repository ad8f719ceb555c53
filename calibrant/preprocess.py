"""AMCT's quantize_preprocess: the balance factors of a model, found on calibration data and written into a record."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant._room import make_callable
from calibrant.errors import ConfigError
from calibrant.stats.events import Event, Progress, no_progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from calibrant.capturing import Config, FixInput
    from calibrant.ingest.data import Data
    from calibrant.ingest.model import PreparedModel
    from calibrant.proto.record import RecordEntry
    from calibrant.stats.run import Run

    Factors = dict[str, npt.NDArray[np.float32]]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """What was written.

    Attributes:
        record: the record with the factors.
        layers: how many layers it has factors for.
        modified_model: the balanced float model, or None.
        events: what a person should know.
    """

    record: Path
    layers: int
    modified_model: Path | None
    events: tuple[Event, ...]


def preprocess(
    model: PathLike,
    data: "Data",
    *,
    config: "Config",
    output: PathLike,
    modified_model: PathLike | None = None,
    batch_size: int | None = None,
    fix_input: "FixInput | None" = None,
    progress: Progress = no_progress,
) -> Preprocessed:
    """Find the factors of the layers that a configuration balances (``dmq_balancer``) and write them into a record.

    AMCT takes them from its last batch; here they come from all samples. `calibrant.run` needs no such record:
    it finds the same factors itself.

    Args:
        model: the float ONNX model.
        data: calibration samples, as for `capture`.
        config: a quant.cfg or config.json with a ``dmq_balancer``.
        output: the record; each entry has ``tensor_balance_factor`` alone.
        modified_model: where to write the float model with the factors applied: weights multiplied by them, and a Mul by 1/factor
            before each layer. It computes what the model computes.
        batch_size: samples a batch.
        fix_input: inputs to turn into constants.
        progress: called as ``progress(stage, done, total)``.

    Raises:
        ConfigError: no layer is to be balanced, or two of the paths are one file.
        RangeError: a factor leaves [2**-23, 2**23]; names the layer.
        ModelError, DataError: as `capture`.

    Example:
        >>> preprocess("model.onnx", "samples.npz", config="quant.cfg", output="record.txt")  # doctest: +SKIP
    """
    from calibrant.config_files import check_apart
    from calibrant.export.balanced_model import build_balanced
    from calibrant.export.files import write_model
    from calibrant.ingest.model import load_prepared
    from calibrant.proto.record import write_record

    copy = None if modified_model is None else Path(modified_model)
    check_apart(model=Path(model), output=Path(output), modified_model=copy)
    with tempfile.TemporaryDirectory(prefix="calibrant-preprocess-") as folder:
        run, factors = _factors(model, data, config, Path(folder), batch_size, fix_input, progress)
        prepared = load_prepared(run.model_folder)
        if copy is not None:
            write_model(build_balanced(prepared, factors), copy)
        write_record(Path(output), _entries(prepared, factors))
        events = run.read("events").select("stage", "severity", "message", "layer", "sample").rows(named=True)
    return Preprocessed(Path(output), len(factors), copy, tuple(Event(**row) for row in events))


def _factors(
    model: PathLike,
    data: "Data",
    config: "Config",
    folder: Path,
    batch_size: int | None,
    fix_input: "FixInput | None",
    progress: Progress,
) -> "tuple[Run, Factors]":
    """Capture statistics alone, then read the data once more for the maxima of channels that the capture did not count."""
    from calibrant import pipeline
    from calibrant.capturing import CaptureRequest, capture_with_data, second_pass
    from calibrant.configured_model import check_plan
    from calibrant.fitting.balancing import fit_factors, is_balanced
    from calibrant.ingest.model import load_prepared
    from calibrant.ingest.parameters import Parameters
    from calibrant.proto.any_config import calibration_config
    from calibrant.stats.keep import KEEP_NONE
    from calibrant.stats.tables import layer_rows

    settings = calibration_config(config)
    rows, _ = pipeline.plan(model, config=settings, fix_input=fix_input)
    if not rows.filter(enabled=True)["migration_strength"].count():
        message = f"{settings.source or 'configuration'}: no layer has a dmq_balancer, so there are no factors to find; add one"
        raise ConfigError(message)
    request = CaptureRequest(Path(model), data, folder / "run", settings, batch_size, KEEP_NONE, fix_input)
    run, source = capture_with_data(request, progress)
    plan = check_plan(settings, load_prepared(run.model_folder))
    wanted = [row for row in plan.rows if is_balanced(row)]
    layers = {row.layer_id: row for row in layer_rows(run.read("layers"))}
    again = second_pass(run, source, progress)
    found = fit_factors(run, wanted, layers, Parameters(run.model_folder), again)
    return run, {layers[layer_id].layer: factors for layer_id, factors in found.items()}


def _entries(prepared: "PreparedModel", factors: "Factors") -> "list[RecordEntry]":
    import numpy as np

    from calibrant.export.record_layers import kept_apart
    from calibrant.proto.record import RecordEntry

    unfused = kept_apart(prepared)
    return [
        RecordEntry(
            key=layer.name,
            act_type=None,
            wts_type=None,
            op_data_type=None,
            tensor_balance_factor=tuple(np.float32(factor) for factor in factors[layer.name]),
            skip_fusion=True if layer.name in unfused else None,
        )
        for layer in prepared.layers
        if layer.name in factors
    ]


make_callable(__name__)
