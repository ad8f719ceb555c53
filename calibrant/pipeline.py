"""The stages joined: capture, stats, fit, export, verify, and run, which is all of them.

Each function is the command of the same name; each returns the `Run` whose tables it has filled.
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.byte_sizes import parse_bytes
from calibrant.capturing import (
    CaptureRequest,
    FixInput,
    PathLike,
    capture_with_data,
    read_config,
    second_pass,
    timed,
)
from calibrant.errors import ConfigError, ExportError, LayerNotFoundError, nearest
from calibrant.provenance import fusion_options
from calibrant.stats.events import Event, Notice, Progress, no_notice, no_progress
from calibrant.stats.keep import Keep
from calibrant.stats.run import FitRecord, Run, open_run

if TYPE_CHECKING:
    import polars as pl

    from calibrant.capturing import Config as Config
    from calibrant.export.report import VerifyReport
    from calibrant.export.weight_only import WeightOnlyForm
    from calibrant.fitting.balancing import Activations
    from calibrant.ingest.data import Data
    from calibrant.proto.simple_config import QuantConfig


def _with_columns(config: "QuantConfig", *, wanted: bool) -> "QuantConfig":
    return replace(config, calibrant_matmul_per_channel=True) if wanted else config


def capture(
    model: PathLike,
    data: "Data",
    *,
    run: PathLike,
    config: "Config | None" = None,
    batch_size: int | None = None,
    keep: str | Keep = "raw",
    fix_input: FixInput | None = None,
    memory: int | str | None = None,
    restart: bool = False,
    progress: Progress = no_progress,
    notice: Notice = no_notice,
) -> Run:
    """Run a float model over calibration data and fold its activations into a run's tables.

    Args:
        model: an ONNX file.
        data: a .npz file, a folder of .npy files, an iterable of name-to-array dicts, or a reader with `get_next()`.
        run: the run folder to make; a complete run of the same content is reused.
        config: a quant.cfg or config.json (its fusion options and batch_num matter here), or None for AMCT's defaults.
        batch_size: samples a batch; by default the model's fixed batch, else 8. It changes no statistic.
        keep: ``raw`` writes the activations as Parquet, ``raw:N`` those of the N samples of least content key, ``stats`` keeps the
            statistics only; they are of all samples in each case.
        fix_input: inputs to turn into constants, e.g. ``{"sr": 16000}``.
        memory: what the process may take at most, in bytes or as ``4GB``. How many samples run at once, and how many tensors are
            observed at once, follows from it; no statistic does. By default what the machine has left.
        restart: replace an existing run.
        progress: called as ``progress(stage, done, total)``.
        notice: called with the estimate of the memory before the model runs, where `memory` is given.

    Returns:
        The complete run.

    Raises:
        ModelError, DataError, ConfigError, RunError: each names what is wrong, where, and what to do.

    Example:
        >>> run = capture("model.onnx", "samples.npz", run="model.run", keep="stats")  # doctest: +SKIP
    """
    request = CaptureRequest(
        Path(model), data, Path(run), read_config(config), batch_size, Keep.parse(keep), fix_input,
        memory=_memory(memory), restart=restart,
    )  # fmt: skip
    return capture_with_data(request, progress, notice)[0]


def _memory(size: int | str | None) -> int | None:
    return None if size is None else parse_bytes(size, "--memory")


def plan(
    model: PathLike, *, config: "Config | None" = None, fix_input: FixInput | None = None
) -> "tuple[pl.DataFrame, tuple[Event, ...]]":
    """Resolve a configuration against a model, without running it.

    Args:
        model: an ONNX file.
        config: a configuration, or None for AMCT's defaults.
        fix_input: inputs to turn into constants.

    Returns:
        The `plan` table, one row a layer, and what the configuration's reader and the plan have to say.

    Raises:
        ModelError, ConfigError: as `capture`.

    Example:
        >>> rows, events = plan("model.onnx", config="quant.cfg")  # doctest: +SKIP
    """
    from calibrant.configured_model import check_plan, prepare_configured

    settings = read_config(config)
    prepared = prepare_configured(Path(model), settings, fix_input)
    resolved = check_plan(settings, prepared)
    return resolved.frame("default"), (*prepared.events, *resolved.events)


def stats(run: "PathLike | Run", *, progress: Progress = no_progress) -> Run:
    """Compute every statistics table of a run again from its Parquet files and its prepared model.

    The result equals what the capture wrote, bit for bit.

    Raises:
        RunError: the run kept only statistics, or the activations of a part of its samples.
    """
    from calibrant.ingest.model import load_prepared
    from calibrant.ingest.recompute import recompute_statistics

    opened = open_run(run)
    opened.require_all_activations("calibrant stats")
    seconds = dict(opened.info.seconds)
    with timed(seconds, "stats"):
        recompute_statistics(opened.path, load_prepared(opened.model_folder), progress)
    opened.update_info(seconds=seconds)
    return opened


def fit(
    run: "PathLike | Run",
    *,
    config: "Config | None" = None,
    name: str = "default",
    exact: bool = False,
    strict_amct: bool = False,
    matmul_per_channel: bool = False,
    progress: Progress = no_progress,
) -> Run:
    """Resolve the plan and fit scales and offsets on an existing run, without any inference.

    Args:
        run: a complete run.
        config: a quant.cfg or config.json, or None for AMCT's defaults; its batch_num is ignored (event).
        name: name of this fit; a fit of that name is replaced, others stay.
        exact: search on the raw activations instead of the histograms.
        strict_amct: refuse a bias outside int32, as AMCT does, instead of raising the weight's scale.
        matmul_per_channel: one weight scale an output column of Gemm and MatMul, as ``calibrant_matmul_per_channel: true`` in the
            configuration asks for; AMCT has one a tensor.
        progress: called as ``progress(stage, done, total)``.

    Raises:
        ConfigError: the configuration is wrong or asks for other fusion options than the run has.
        RunError: `exact`, or `dmq_balancer`, on a run that did not keep the activations of all samples.
        RangeError: `strict_amct` and a bias leaves int32; names layer and channel.

    Example:
        >>> fit("model.run", config="hfmg.cfg", name="hfmg")  # doctest: +SKIP
    """
    return _fit(
        run, config, name, exact=exact, strict_amct=strict_amct, progress=progress, again=None, matmul_per_channel=matmul_per_channel
    )  # fmt: skip


def _fit(
    run: "PathLike | Run",
    config: "Config | None",
    name: str,
    *,
    exact: bool,
    strict_amct: bool,
    progress: Progress,
    again: "Activations | None",
    matmul_per_channel: bool = False,
) -> Run:
    """Fit; `again` gives the activations of a run that kept only statistics."""
    from calibrant.calibration import calibrate
    from calibrant.proto.simple_config import canonical_text

    opened, settings = open_run(run), _with_columns(read_config(config), wanted=matmul_per_channel)
    check_new_fit_name(name)
    if exact:
        opened.require_all_activations("fit --exact")
    _check_fusion(opened, settings, given=config is not None)
    seconds = dict(opened.info.seconds)
    with timed(seconds, "fit"):
        result = calibrate(opened, settings, name, exact=exact, progress=progress, strict_amct=strict_amct, again=again)
        opened.replace_fit(name, result.frames)
    events = [
        *_replaced_event(opened, name),
        *_batch_num_event(opened, settings),
        *result.events,
    ]
    opened.replace_events(["fit", "evaluate"], name, events)
    text = settings.text or canonical_text(settings)
    record = FitRecord(
        config_source=settings.source,
        config_text=text,
        config_dialect=settings.dialect,
        config_hash=hashlib.sha256(text.encode()).hexdigest(),
        exact=exact,
        matmul_per_channel=bool(settings.calibrant_matmul_per_channel),
    )
    opened.update_info(seconds=seconds, fits={**opened.info.fits, name: record})
    return opened


def check_new_fit_name(name: str) -> None:
    """Refuse what cannot be the name of a fit.

    Raises:
        ConfigError: it is empty, or has a slash or what cannot be printed.
    """
    if not name or not name.isprintable() or "/" in name:
        message = f"--name: '{name}' is no name for a fit; use letters, digits, '-' and '_'"
        raise ConfigError(message)


def _check_fusion(run: Run, config: "QuantConfig", *, given: bool) -> None:
    asked, has = fusion_options(config), (run.info.do_fusion, tuple(run.info.skip_fusion_layers))
    if given and asked != has:
        message = (
            f"{config.source}: asks for do_fusion {asked[0]}, skip_fusion_layers {list(asked[1])}, but the run {run.path} was "
            f"captured with {has[0]}, {list(has[1])}; other fusion needs a run anew (calibrant run --restart)"
        )
        raise ConfigError(message)


def _replaced_event(run: Run, name: str) -> list[Event]:
    if name not in run.info.fits:
        return []
    old = run.info.fits[name].config_source or "AMCT's defaults"
    return [Event("fit", "info", f"fit '{name}' (of {old}) is replaced")]


def _batch_num_event(run: Run, config: "QuantConfig") -> list[Event]:
    if config.batch_num is None or config.batch_num * run.info.batch_size == run.info.samples:
        return []
    message = f"batch_num {config.batch_num} is ignored: the fit uses all {run.info.samples} samples of the run"
    return [Event("fit", "info", message)]


def _fit_record(run: Run, fit: str) -> FitRecord:
    fits = run.info.fits
    if fit not in fits:
        known = ", ".join(fits) or "none yet; use calibrant fit"
        message = f"{run.path}: no fit '{fit}'{nearest(fit, fits)}; fits: {known}"
        raise LayerNotFoundError(message)
    return fits[fit]


def export(
    run: "PathLike | Run",
    *,
    fit: str = "default",
    prefix: PathLike | None = None,
    weight_only_form: "WeightOnlyForm" = "dequantize",
    progress: Progress = no_progress,
) -> Run:
    """Write the fake-quant model, the deploy model, the record, the node map and the configuration of a fit.

    Args:
        run: a run with that fit.
        fit: name of the fit.
        prefix: path prefix of the five files, by default ``RUN/export/<model stem>``; an empty base name
            (``out/``) gives AMCT's ``out/deploy_model.onnx``.
        weight_only_form: how weights that are quantized alone become float again: ``dequantize`` (DequantizeLinear, where one scale
            holds for the weight and the opset is 10 to 15, else as for ``mul``) or ``mul`` (Cast, Sub and Mul).
        progress: called as ``progress(stage, done, total)``.

    Returns:
        The run; ``run.info.fits[fit].prefix`` is where the files are.

    Raises:
        LayerNotFoundError: no such fit.
        ExportError: the files cannot be written.
    """
    from calibrant.export.files import absolute_prefix
    from calibrant.exported_fit import write_fit
    from calibrant.ingest.model import load_prepared

    opened = open_run(run)
    record = _fit_record(opened, fit)
    place = os.fspath(prefix) if prefix is not None else _default_prefix(opened, fit)
    seconds = dict(opened.info.seconds)
    progress("export", 0, 1)
    with timed(seconds, "export"):
        prepared = load_prepared(opened.model_folder)
        alone = write_fit(opened, prepared, fit, place, weight_only_form)[1]
    progress("export", 1, 1)
    opened.replace_events(["export"], fit, _config_gaps(alone))
    fits = {
        **opened.info.fits,
        fit: replace(record, prefix=absolute_prefix(place)),
    }
    opened.update_info(seconds=seconds, fits=fits)
    return opened


def _config_gaps(alone: int) -> list[Event]:
    text = f"config.json has no key for weight_compress_only: there the {alone} layers are quantized with their data"
    return [Event("export", "warn", text)] if alone else []


def _default_prefix(run: Run, fit: str) -> str:
    base = run.info.model_name if fit == "default" else f"{run.info.model_name}_{fit}"
    return str(run.path / "export" / base)


def verify(
    run: "PathLike | Run",
    *,
    fit: str = "default",
    prefix: PathLike | None = None,
    data: "Data | None" = None,
    progress: Progress = no_progress,
) -> "VerifyReport":
    """Prove the deploy model against the fake-quant model in exact integers, layer by layer, and lint it by ATC's rules.

    Args:
        run: a run with that fit, exported.
        fit: name of the fit.
        prefix: where it was exported; by default the last place.
        data: samples to verify on; by default those that the capture kept.
        progress: called as ``progress(stage, done, total)``.

    Returns:
        The report; every layer passed.

    Raises:
        ExportError: the models differ, a rule is broken, or the export is missing; the message names the first layer.
    """
    report = verification(run, fit=fit, prefix=prefix, data=data, progress=progress)
    require_passed(report)
    return report


def require_passed(report: "VerifyReport") -> None:
    """Raise an error that names the first fault of a report that did not pass.

    Raises:
        ExportError: the report did not pass.
    """
    if failures := report.failures():
        first = failures[0].removeprefix("error: ")
        more = f" (and {len(failures) - 1} more; see calibrant verify RUN)" if len(failures) > 1 else ""
        message = f"verify fails: {first}{more}"
        raise ExportError(message)


def verification(
    run: "PathLike | Run",
    *,
    fit: str = "default",
    prefix: PathLike | None = None,
    data: "Data | None" = None,
    progress: Progress = no_progress,
) -> "VerifyReport":
    """Return the report of `verify` whether or not every layer passed; the arguments are those of `verify`.

    Raises:
        LayerNotFoundError: no such fit.
        ExportError: the fit was not exported, or the files there are of another fit.
    """
    from calibrant.evaluation import score_fit
    from calibrant.export.files import export_files
    from calibrant.export.verify import verify_export
    from calibrant.scores import check_fit

    opened = open_run(run)
    record = _fit_record(opened, fit)
    place = os.fspath(prefix) if prefix is not None else record.prefix
    if place is None:
        message = f"{opened.path}: fit '{fit}' has not been exported; run calibrant export first"
        raise ExportError(message)
    seconds = dict(opened.info.seconds)
    with timed(seconds, "verify"):
        files, feeds = export_files(place), _verify_inputs(opened, data)
        check_fit(opened, fit, files)
        report = verify_export(files, feeds, progress)
        score_fit(opened, fit, files.fake_quant, feeds)
    opened.replace_events(["verify"], fit, _verify_events(report))
    opened.update_info(seconds=seconds)
    return report


def _verify_events(report: "VerifyReport") -> list[Event]:
    found = [Event("verify", finding.severity, finding.message, layer=finding.where) for finding in report.findings]
    failed = [
        Event("verify", "error", failure, layer=check.layer) for check in report.layers for failure in check.failures
    ]
    return [*found, *failed, Event("verify", "info", report.summary())]


def _verify_inputs(run: Run, data: "Data | None") -> "list[dict[str, Any]]":
    from calibrant.ingest.batches import model_feeds
    from calibrant.ingest.data import open_data
    from calibrant.ingest.model import load_prepared
    from calibrant.ingest.verify_inputs import load_verify_inputs

    if data is None:
        return load_verify_inputs(run.path)
    inputs = load_prepared(run.model_folder).inputs
    return list(model_feeds(open_data(data, inputs), inputs))


def run(
    model: PathLike,
    data: "Data",
    *,
    run: PathLike | None = None,
    config: "Config | None" = None,
    batch_size: int | None = None,
    keep: str | Keep = "raw",
    fix_input: FixInput | None = None,
    memory: int | str | None = None,
    prefix: PathLike | None = None,
    fit: str = "default",
    restart: bool = False,
    strict_amct: bool = False,
    matmul_per_channel: bool = False,
    weight_only_form: "WeightOnlyForm" = "dequantize",
    progress: Progress = no_progress,
    notice: Notice = no_notice,
) -> Run:
    """Capture, fit, export and verify in one go.

    Args:
        model: an ONNX file.
        data: calibration samples, as for `capture`.
        run: the run folder, by default ``<model stem>.run`` in the working folder.
        config: a quant.cfg or config.json, or None for AMCT's defaults.
        batch_size: samples a batch.
        keep: ``raw``, ``raw:N`` or ``stats``, as for `capture`.
        fix_input: inputs to turn into constants.
        memory: as for `capture`.
        prefix: path prefix of the exported files, by default ``RUN/export/<model stem>``.
        fit: name of the fit.
        restart: replace an existing run.
        strict_amct: as for `fit`.
        matmul_per_channel: as for `fit`.
        weight_only_form: as for `export`.
        progress: called as ``progress(stage, done, total)``.
        notice: as for `capture`.

    Returns:
        The complete, exported and verified run.

    Raises:
        CalibrantError: one of its kinds; the message names what is wrong, where, and what to do.

    Example:
        >>> done = run("model.onnx", "samples.npz", config="quant.cfg", prefix="out/model")  # doctest: +SKIP
        >>> done.sql("select * from events")  # doctest: +SKIP
    """
    folder = Path(run) if run is not None else Path(f"{Path(model).stem}.run")
    settings = _with_columns(read_config(config), wanted=matmul_per_channel)
    check_new_fit_name(fit)
    request = CaptureRequest(
        Path(model), data, folder, settings, batch_size, Keep.parse(keep), fix_input,
        memory=_memory(memory), restart=restart, fits_too=True,
    )  # fmt: skip
    fitted = capture_and_fit(request, fit, strict_amct=strict_amct, progress=progress, notice=notice)
    exported = export(fitted, fit=fit, prefix=prefix, weight_only_form=weight_only_form, progress=progress)
    verify(exported, fit=fit, progress=progress)
    _tell_peak(_memory(memory), notice)
    return exported


def capture_and_fit(
    request: CaptureRequest,
    fit: str,
    *,
    strict_amct: bool = False,
    progress: Progress = no_progress,
    notice: Notice = no_notice,
) -> Run:
    """Capture, or reuse a complete run of the same content, and fit; the data are read again where layers are balanced without captures.

    Args:
        request: what to capture, and the configuration of the fit.
        fit: name of the fit.
        strict_amct: as for `fit`.
        progress: called as ``progress(stage, done, total)``.
        notice: as for `capture`.

    Raises:
        CalibrantError: as `capture` and `fit`.
    """
    captured, source = capture_with_data(request, progress, notice)
    again = second_pass(captured, source, progress)
    return _fit(captured, request.config, fit, exact=False, strict_amct=strict_amct, progress=progress, again=again)


def _tell_peak(limit: int | None, notice: Notice) -> None:
    """Say so where the stages after the capture took more than was allowed."""
    from calibrant.ingest.capture_plan import memory_events

    for event in memory_events(limit):
        notice(event)


__all__ = [
    "capture",
    "capture_and_fit",
    "check_new_fit_name",
    "export",
    "fit",
    "plan",
    "run",
    "stats",
    "verification",
    "verify",
]
