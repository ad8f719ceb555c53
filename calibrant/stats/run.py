"""The run directory: a folder of Parquet tables with its provenance in run.json.

A folder is a run when it holds a run.json that this module wrote; any other folder is never touched.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import LayerNotFoundError, RunError, nearest
from calibrant.stats.events import Event, Stage
from calibrant.stats.keep import Keep
from calibrant.stats.run_lock import sole_writer
from calibrant.stats.scales_hash import scales_hashes
from calibrant.stats.tables import FIT_TABLES, SCHEMA_VERSION, SCHEMAS, conform, empty_frame, write_frame
from calibrant.whole_files import whole_file

RUN_FILE: Final = "run.json"
MODEL_FOLDER: Final = "model"
_DERIVED: Final = frozenset({"sensitivity", "evaluation", "class_agreement"})  # tables that a command makes again
PREPARED_FILE: Final = "prepared.onnx"  # in the folder above; large weights lie beside it


@dataclass(frozen=True)
class FitRecord:
    """What a named fit was made from.

    Attributes:
        config_source: path of the configuration file, or None for AMCT's defaults.
        config_text: its text as read.
        config_hash: sha256 of the text.
        exact: whether the search evaluated raw values.
        prefix: where this fit was exported last, or None.
        config_dialect: whose type names the text uses: onnx, atc or pytorch.
        matmul_per_channel: whether an option asked for one weight scale an output column of Gemm and MatMul, besides the text.
    """

    config_source: str | None
    config_text: str
    config_hash: str
    exact: bool
    prefix: str | None = None
    config_dialect: str | None = None
    matmul_per_channel: bool = False


@dataclass(frozen=True)
class RunInfo:
    """Provenance and state of a run, as kept in run.json.

    Attributes:
        model: path of the source model.
        model_name: its file name without extension.
        model_hash: sha256 of the source model.
        data: what the samples were read from.
        data_fingerprint: hash of the sorted sample keys, or None until captured.
        samples: number of samples captured.
        batch_size: samples a batch.
        one_by_one: whether the model ran one sample at a time because its bits depend on the batch.
        keep: ``raw``, ``raw:N`` or ``stats``, as `Keep` reads it.
        do_fusion: whether BatchNormalization was fused.
        skip_fusion_layers: layers left out of fusion.
        fix_input: inputs turned into constants.
        versions: versions of calibrant and of the libraries that decide numbers.
        cpu: processor name; onnxruntime's bits depend on it.
        complete: whether capture finished.
        seconds: how long each stage took.
        fits: the named fits.
        schema_version: version of the tables.
        key_hash: what the content keys of the samples are made with; runs that do not say used blake2b (decision 0007).
    """

    model: str
    model_name: str
    model_hash: str
    data: str
    keep: str
    do_fusion: bool
    skip_fusion_layers: tuple[str, ...]
    fix_input: Mapping[str, str]
    versions: Mapping[str, str]
    cpu: str
    data_fingerprint: str | None = None
    samples: int = 0
    batch_size: int = 0
    one_by_one: bool = False
    complete: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    fits: Mapping[str, FitRecord] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    key_hash: str = "blake2b"

    @property
    def kept(self) -> Keep:
        """What the capture was asked to keep."""
        return Keep.parse(self.keep)

    @property
    def has_all_activations(self) -> bool:
        """Whether the activations of all samples are kept: with ``raw``, or with ``raw:N`` of at most N samples."""
        kept = self.kept.samples
        return kept is None or 0 < self.samples <= kept

    @property
    def kept_text(self) -> str:
        """Say what is kept of the activations, for messages."""
        if not self.kept.has_raw:
            return "only statistics were kept"
        return f"only the activations of {self.kept.samples} of {self.samples} samples were kept (--keep {self.keep})"


def _info_from_json(text: str, path: Path) -> RunInfo:
    try:
        raw: dict[str, Any] = json.loads(text)
        version = raw.get("schema_version")
        if version != SCHEMA_VERSION:
            message = f"{path}: schema version {version}, this calibrant reads {SCHEMA_VERSION}; capture the run again with it"
            raise RunError(message)
        raw["fits"] = {name: FitRecord(**record) for name, record in raw.get("fits", {}).items()}
        raw["skip_fusion_layers"] = tuple(raw["skip_fusion_layers"])
        return RunInfo(**raw)
    except (json.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
        message = f"{path}: not a run description of calibrant ({error}); pass the folder of a run"
        raise RunError(message) from error


def _merged(before: Any, after: Any, now: Any) -> Any:
    """Return a field after a change from `before` to `after`, where it is `now` already; of a dict only the changed keys change."""
    if not isinstance(before, dict) or not isinstance(after, dict) or not isinstance(now, dict):
        return after
    stays = {key: value for key, value in now.items() if key in after or key not in before}
    return stays | {key: value for key, value in after.items() if key not in before or before[key] != value}


def _write_atomically(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def prepared_file(folder: Path) -> Path:
    """Return where the prepared model of a run folder lies."""
    return folder / MODEL_FOLDER / PREPARED_FILE


def is_run(path: Path) -> bool:
    """Return whether the folder is a run, complete or not."""
    return (path / RUN_FILE).is_file()


def create_run(path: Path, info: RunInfo) -> "Run":
    """Make a new run folder (parents too) whose capture has not finished.

    Raises:
        RunError: something else stands there, or the place is not writable.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "a run" if is_run(path) else "not a run of calibrant"
        message = f"{path}: exists and is {what}; choose another --run folder"
        raise RunError(message)
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for folder in ("model", "captures", "tables"):
            (path / folder).mkdir()
        run = Run(path, info)
        run.update_info()
    except OSError as error:
        _unmake(path, made)
        message = f"{path}: cannot make the run folder ({error.strerror}); choose a writable --run folder"
        raise RunError(message) from error
    except BaseException:  # an interrupt
        (path / RUN_FILE).unlink(missing_ok=True)
        _unmake(path, made)
        raise
    return run


def _unmake(path: Path, made: list[Path]) -> None:
    """Take back what a failed `create_run` put into an empty place."""
    for name in ("model", "captures", "tables"):
        shutil.rmtree(path / name, ignore_errors=True)
    for folder in made:
        with suppress(OSError):
            folder.rmdir()


def remove_run(path: Path) -> None:
    """Delete a run folder; any other folder is left alone.

    Raises:
        RunError: the folder is not a run.
    """
    if not is_run(path):
        message = f"{path}: not a run of calibrant; it is not deleted"
        raise RunError(message)
    shutil.rmtree(path)


def open_run(path: "str | os.PathLike[str] | Run", *, complete: bool = True) -> "Run":
    """Open a run folder.

    Args:
        path: the folder, or a run that is open already.
        complete: refuse a run whose capture has not finished.

    Raises:
        RunError: no such folder, not a run, or an incomplete one.
    """
    if isinstance(path, Run):
        return path
    folder = Path(path)
    if not is_run(folder):
        what = "no such folder" if not folder.exists() else "not a run of calibrant (no run.json)"
        message = f"{folder}: {what}; pass the folder that `calibrant run` or `calibrant capture` made"
        raise RunError(message)
    try:
        text = (folder / RUN_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{folder / RUN_FILE}: cannot be read ({error})"
        raise RunError(message) from error
    run = Run(folder, _info_from_json(text, folder / RUN_FILE))
    if complete and not run.info.complete:
        message = f"{folder}: the run is incomplete, its capture did not finish; run again with --restart"
        raise RunError(message)
    return run


class Run:
    """A calibration run: statistics, fits and provenance of one model on one set of samples.

    Every table is a file of `path` / tables and a view in SQL; see docs/tables.md.

    Attributes:
        path: the run folder.
        info: provenance and state.

    Example:
        >>> run = open_run("model.run")  # doctest: +SKIP
        >>> run.sql("select layer, sqnr_db from layers join quant_params using (layer_id) where role = 'data'")  # doctest: +SKIP
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path = path
        self.info = info

    def __repr__(self) -> str:
        """Name the folder, the model and the samples."""
        return f"Run('{self.path}', model='{self.info.model_name}', samples={self.info.samples})"

    @property
    def model_folder(self) -> Path:
        """Folder of the prepared model."""
        return self.path / MODEL_FOLDER

    @property
    def prepared_file(self) -> Path:
        """The prepared model, which every name in the tables refers to."""
        return prepared_file(self.path)

    def update_info(self, **changes: Any) -> None:
        """Change fields of `info` and write run.json, whole or not at all; what another process has written meanwhile stays."""
        with sole_writer(self.path):
            now = self._info_now()
            merged = {
                name: _merged(getattr(self.info, name), value, getattr(now, name)) for name, value in changes.items()
            }
            self.info = replace(now, **merged)
            text = json.dumps(asdict(self.info), indent=2, ensure_ascii=False)
            _write_atomically(self.path / RUN_FILE, text + "\n")

    def _info_now(self) -> RunInfo:
        """Return what run.json says, or what it is to say first."""
        file = self.path / RUN_FILE
        return _info_from_json(file.read_text(encoding="utf-8"), file) if file.is_file() else self.info

    def table_files(self, table: str) -> list[Path]:
        """Return the Parquet files of a table: one file, or parts where it was written in shards.

        Raises:
            LayerNotFoundError: no table has that name.
        """
        if table not in SCHEMAS:
            message = f"no table '{table}'{nearest(table, SCHEMAS)}; tables: {', '.join(SCHEMAS)}"
            raise LayerNotFoundError(message)
        single = self.path / "tables" / f"{table}.parquet"
        return [single] if single.is_file() else sorted((self.path / "tables" / table).glob("part-*.parquet"))

    def scan(self, table: str) -> pl.LazyFrame:
        """Return a table as a lazy frame; a table without rows yet is empty.

        Raises:
            LayerNotFoundError: no table has that name.
        """
        files = self.table_files(table)
        return pl.scan_parquet(files, glob=False) if files else empty_frame(table).lazy()

    def read(self, table: str) -> pl.DataFrame:
        """Return a table as a frame.

        Raises:
            LayerNotFoundError: no table has that name.
            RunError: its file is damaged.
        """
        try:
            return self.scan(table).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            advice = "delete its file" if table in _DERIVED else "capture the run again with --restart"
            message = f"{self.path}: table '{table}' cannot be read ({error}); {advice}"
            raise RunError(message) from error

    def write(self, table: str, frame: pl.DataFrame) -> None:
        """Replace a table, whole or not at all."""
        write_frame(table, frame, self.path / "tables" / f"{table}.parquet")

    def replace_fit(self, fit: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Replace the rows of one fit in `plan`, `search`, `quant_params` and `balance`; other fits stay as they are.

        What was measured of the old fit is dropped: its evaluation, and the sensitivity of layers that have other scales now.
        """
        with sole_writer(self.path):
            for table in FIT_TABLES:
                others = self.read(table).filter(pl.col("fit") != fit)
                new = conform(table, frames[table])
                self.write(table, pl.concat([others, new]).sort("fit", maintain_order=True))
            self._drop_stale_sensitivity(fit, frames)
            for table in ("evaluation", "class_agreement"):
                if self.table_files(table):
                    self.write(table, self._completed(table).filter(pl.col("fit").ne_missing(fit)))

    def drop_fit(self, fit: str, stages: Iterable[Stage]) -> None:
        """Take a fit out of the run, with what was measured of it and the events of these stages."""
        self.replace_fit(fit, {table: empty_frame(table) for table in FIT_TABLES})
        self.replace_events(stages, fit, [])
        self.update_info(fits={name: record for name, record in self.info.fits.items() if name != fit})

    def _drop_stale_sensitivity(self, fit: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Drop measurements of layers that a new fit of this name gives other scales."""
        if not self.table_files("sensitivity"):
            return
        hashes = scales_hashes(frames["quant_params"], frames["balance"], frames["plan"])
        current = pl.DataFrame(
            list(hashes.items()), schema={"layer_id": pl.Int32, "scales_hash": pl.String}, orient="row"
        )
        rows = self.read("sensitivity")
        kept = rows.filter(pl.col("fit") == fit).join(current, on=["layer_id", "scales_hash"], how="semi")
        self.write("sensitivity", pl.concat([rows.filter(pl.col("fit") != fit), kept]))

    def replace_sensitivity(self, frame: pl.DataFrame) -> None:
        """Add rows to `sensitivity`; they replace older ones of the same layer and view."""
        new = conform("sensitivity", frame)
        with sole_writer(self.path):
            old = self.read("sensitivity").join(new, on=["fit", "layer_id", "view"], how="anti")
            self.write("sensitivity", pl.concat([old, new]).sort("fit", "layer_id", "view", maintain_order=True))

    def fit_record(self, fit: str) -> FitRecord:
        """Return what a fit was made from.

        Raises:
            LayerNotFoundError: no fit has that name; the message has the nearest.
        """
        fits = self.info.fits
        if fit not in fits:
            known = ", ".join(fits) or "none yet; use calibrant fit"
            message = f"{self.path}: no fit '{fit}'{nearest(fit, fits)}; fits: {known}"
            raise LayerNotFoundError(message)
        return fits[fit]

    def sql(self, query: str) -> pl.DataFrame:
        """Answer a DuckDB query over the tables of this run.

        Args:
            query: SQL; each table is a view of its name, and `captures` joins the raw activations.

        Raises:
            SchemaError: DuckDB refuses the query; the message is DuckDB's.
        """
        from calibrant.stats.catalog import query_run

        return query_run(self, query)

    def captures(self, tensor: str) -> Iterator[tuple[int, npt.NDArray[np.generic]]]:
        """Yield (sample, activation) of a captured tensor, in the order of the samples.

        Args:
            tensor: its name in the `tensors` table.

        Raises:
            LayerNotFoundError: no captured tensor has that name.
            RunError: the run kept only statistics.
        """
        from calibrant.stats.captures import read_captures

        tensors = self.read("tensors").select("tensor", "tensor_id")
        found = dict(tensors.iter_rows())
        if tensor not in found:
            message = f"{self.path}: no captured tensor '{tensor}'{nearest(tensor, found)}; see the table tensors"
            raise LayerNotFoundError(message)
        if not self.info.kept.has_raw:
            message = f"{self.path}: {self.info.kept_text}; capture again with --keep raw"
            raise RunError(message)
        return read_captures(self.path, found[tensor])

    def require_writable(self) -> None:
        """Refuse to measure what could not be kept afterwards.

        Raises:
            RunError: the folder of the tables cannot be written to.
        """
        if not os.access(self.path / "tables", os.W_OK):
            message = f"{self.path}: cannot be written to, and its tables take what is measured; copy the run, or mend its permissions"
            raise RunError(message)

    def require_all_activations(self, what: str) -> None:
        """Refuse what cannot be had from a part of the samples.

        Args:
            what: what needs the activations, for the message.

        Raises:
            RunError: the run kept only statistics, or the activations of chosen samples.
        """
        if not self.info.has_all_activations:
            message = f"{self.path}: {what} needs the activations of all samples, and {self.info.kept_text}; capture again with --keep raw"
            raise RunError(message)

    def replace_events(self, stages: Iterable[Stage], fit: str | None, events: Iterable[Event]) -> None:
        """Put the events of these stages (of one fit) in the place of those that an earlier pass left."""
        same_fit = pl.col("fit").is_null() if fit is None else pl.col("fit") == fit
        replaced = pl.col("stage").is_in(list(stages)) & same_fit
        rows = [{"fit": fit, **asdict(event)} for event in events]
        new = (
            conform("events", pl.DataFrame(rows, schema_overrides=SCHEMAS["events"])) if rows else empty_frame("events")
        )
        with sole_writer(self.path):
            self.write("events", pl.concat([self.read("events").filter(~replaced), new]))

    def replace_evaluation(self, frame: pl.DataFrame) -> None:
        """Add rows to `evaluation`; they replace older ones of the same fit, variant, output and metric.

        Rows of a verify replace those of a verify only, others those of others.
        """
        keys = ["fit", "variant", "output", "metric"]
        of_verify = (pl.col("data") == "verify").fill_null(value=False).alias("of_verify")
        self._replace_rows("evaluation", frame, keys, of_verify)

    def replace_class_agreement(self, frame: pl.DataFrame) -> None:
        """Add rows to `class_agreement`; they replace all older ones of the same fit, variant and output."""
        self._replace_rows("class_agreement", frame, ["fit", "variant", "output"])

    def _completed(self, table: str) -> pl.DataFrame:
        """Return a table with all its columns; that of an older run may lack some."""
        return pl.concat([empty_frame(table), self.read(table)], how="diagonal")

    def _replace_rows(self, table: str, frame: pl.DataFrame, keys: list[str], *more: pl.Expr) -> None:
        new = conform(table, frame)
        names = [*keys, *(expression.meta.output_name() for expression in more)]
        taken = new.with_columns(*more).select(names).unique()
        with sole_writer(self.path):
            old = self._completed(table).with_columns(*more).join(taken, on=names, how="anti", nulls_equal=True)
            self.write(table, pl.concat([old.select(*SCHEMAS[table]), new]).sort(keys, maintain_order=True))
