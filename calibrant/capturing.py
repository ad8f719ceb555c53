"""The stage that captures: a model and its data in, a run folder with its tables out; or a run that stands already, reused."""

import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.errors import RunError
from calibrant.provenance import differences, wanted_info
from calibrant.stats.events import Event, Notice, Progress, no_notice
from calibrant.stats.keep import KEEP_ALL, Keep
from calibrant.stats.run import Run, RunInfo, create_run, is_run, open_run, remove_run

if TYPE_CHECKING:
    from calibrant.fitting.balancing import Activations
    from calibrant.ingest.data import Data, DataSource
    from calibrant.ingest.model import PreparedModel
    from calibrant.proto.json_config import JsonConfig
    from calibrant.proto.simple_config import QuantConfig

    Config = str | os.PathLike[str] | QuantConfig | JsonConfig

PathLike = str | os.PathLike[str]
FixInput = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What a caller wants captured.

    Attributes:
        model: an ONNX file.
        data: calibration samples.
        run: the run folder to make, or to reuse.
        config: its fusion options, batch_num and the tensors that it names matter.
        batch_size: samples a batch; None for the model's fixed batch, else 8.
        keep: which activations are kept beside the statistics.
        fix_input: inputs to turn into constants.
        memory: bytes that the process may take; None for what the machine has left.
        restart: replace an existing run.
        fits_too: a fit follows, for which the data may have to be read twice.
    """

    model: Path
    data: "Data"
    run: Path
    config: "QuantConfig"
    batch_size: int | None = None
    keep: Keep = KEEP_ALL
    fix_input: FixInput | None = None
    memory: int | None = None
    restart: bool = False
    fits_too: bool = False


def read_config(config: "Config | None") -> "QuantConfig":
    """Return a configuration of any form as calibration reads it; AMCT's defaults for None.

    Raises:
        ConfigError: it cannot be read; says file, line and column.
    """
    from calibrant.proto.any_config import calibration_config
    from calibrant.proto.simple_config import QuantConfig

    return QuantConfig() if config is None else calibration_config(config)


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Note how long a stage took."""
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start


def capture_with_data(
    request: CaptureRequest, progress: Progress, notice: Notice = no_notice
) -> "tuple[Run, DataSource]":
    """Capture, or reuse a complete run of the same content; return the data as well, for a second pass.

    Args:
        request: what to capture.
        progress: called as ``progress(stage, done, total)``.
        notice: told what memory the capture will take, before the model runs.

    Raises:
        ModelError, DataError, ConfigError, RunError: as `calibrant.capture`; DataError also where data that can be read once
            would be read twice.
    """
    from calibrant.configured_model import check_plan, prepare_configured
    from calibrant.fitting.balancing import check_second_pass
    from calibrant.fitting.captured_tensors import tensor_ids
    from calibrant.ingest.data import open_data
    from calibrant.ingest.model import observe

    _refuse_foreign_folder(request.run)
    seconds: dict[str, float] = {}
    with timed(seconds, "ingest"):
        prepared = prepare_configured(request.model, request.config, request.fix_input)
        source = open_data(request.data, prepared.inputs)
    plan = check_plan(request.config, prepared)
    products = [tensor for row in plan.enabled for tensor in row.tensors]
    prepared = observe(prepared, [*(one.tensor for one in plan.enabled_tensors), *products])
    if request.fits_too and not request.keep.has_all:
        check_second_pass(plan.rows, source)
    if is_run(request.run) and not request.restart:
        reused = _reuse(request, prepared, source)
        tensor_ids(reused, plan.enabled_tensors)
        return reused, source
    return _capture_anew(request, prepared, source, seconds, progress, notice), source


def _wanted(request: CaptureRequest, prepared: "PreparedModel") -> RunInfo:
    return wanted_info(request.model, prepared, request.data, request.config, request.keep, request.fix_input)


def _reuse(request: CaptureRequest, prepared: "PreparedModel", source: "DataSource") -> Run:
    """Open an existing run that has the content asked for, or say what differs."""
    from calibrant.ingest.data import fingerprint

    path, wanted = request.run, _wanted(request, prepared)
    run = open_run(path)
    if wanted.model_hash == run.info.model_hash:
        limit = _sample_limit(request.config, prepared, request.batch_size)
        wanted = replace(wanted, data_fingerprint=fingerprint(source, limit))
    else:
        wanted = replace(wanted, data_fingerprint=run.info.data_fingerprint)
    if found := differences(run.info, wanted):
        message = f"{path}: {'; '.join(found)}; pass --restart to replace this run, or another --run folder"
        raise RunError(message)
    text = f"capture skipped: {path} holds {run.info.samples} samples of the same model and data"
    run.replace_events(["capture"], None, [*_events_of(run, "capture"), Event("capture", "info", text)])
    return run


def _events_of(run: Run, stage: str) -> list[Event]:
    rows = run.read("events").filter(stage=stage).drop("fit").unique(maintain_order=True)
    kept = [Event(**row) for row in rows.iter_rows(named=True)]
    return [event for event in kept if not event.message.startswith("capture skipped")]


def _refuse_foreign_folder(folder: Path) -> None:
    if folder.exists() and not is_run(folder) and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder}: exists and is not a run of calibrant; it is left untouched, choose another --run folder"
        raise RunError(message)


def _sample_limit(config: "QuantConfig", prepared: "PreparedModel", batch_size: int | None) -> int | None:
    from calibrant.ingest.batches import resolve_batch_size

    return None if config.batch_num is None else config.batch_num * resolve_batch_size(prepared.inputs, batch_size)


@contextmanager
def _new_run(folder: Path, info: RunInfo, *, restart: bool) -> Iterator[Run]:
    """Make a run beside an old one and put it in its place when it is complete; on an error nothing new stays.

    Where the folder is a link, its target is replaced and the link stays.
    """
    place = folder.resolve() if folder.is_symlink() else folder
    building = place.with_name(f".{place.name}.{os.getpid()}.partial") if restart and is_run(folder) else folder
    made = [parent for parent in [folder, *folder.parents] if not parent.exists()]
    run = create_run(building, info)
    try:
        yield run
        if building != folder:
            _replace(place, building)
            run.path = folder
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        with suppress(OSError):  # what somebody else put there stays, and the first error is the one to tell
            for parent in made[1:]:
                parent.rmdir()
        raise


def _replace(place: Path, building: Path) -> None:
    """Put a complete run in the place of an old one; whenever an error or an interrupt comes, one of the two stands there.

    Raises:
        RunError: what stands there now is no run; it is left alone.
    """
    if not is_run(place):
        message = f"{place}: is no run any more, and stays as it is; choose another --run folder"
        raise RunError(message)
    old = place.with_name(f".{place.name}.{os.getpid()}.old")
    try:
        place.rename(old)
        building.rename(place)
        remove_run(old)
    finally:
        if not place.exists():
            old.rename(place)
        shutil.rmtree(old, ignore_errors=True)


def _capture_anew(
    request: CaptureRequest,
    prepared: "PreparedModel",
    source: "DataSource",
    seconds: dict[str, float],
    progress: Progress,
    notice: Notice,
) -> Run:
    from calibrant.ingest.capture import CaptureOptions, capture_activations
    from calibrant.ingest.saving import saved_beside

    with _new_run(request.run, _wanted(request, prepared), restart=request.restart) as run:
        progress("capture", 0, 0)
        options = CaptureOptions(
            request.batch_size, request.keep, request.config.batch_num, request.memory, request.fits_too
        )
        saved = saved_beside(prepared, run.path, progress, alone=request.memory is not None)
        with timed(seconds, "capture"), saved as report:
            result = capture_activations(prepared, source, run.path, options, report, notice)
        run.replace_events(["ingest", "capture", "stats"], None, [*prepared.events, *result.events])
        run.update_info(
            data_fingerprint=result.data_fingerprint,
            samples=result.samples,
            batch_size=result.batch_size,
            one_by_one=result.one_by_one,
            seconds={**seconds, **result.seconds},
            complete=True,
        )
    return run


def second_pass(run: Run, source: "DataSource", progress: Progress) -> "Activations":
    """Return what runs the model over the data once more; it loads nothing before it is called."""

    def again(tensor_ids: Collection[int]) -> Iterator[tuple[int, Any]]:
        from calibrant.ingest.model import load_prepared
        from calibrant.ingest.second_pass import SecondPass

        prepared, info = load_prepared(run.model_folder), run.info
        found = SecondPass(run.path, prepared, source, info.samples, info.batch_size, info.data_fingerprint, progress)
        return found(tensor_ids)

    return again
