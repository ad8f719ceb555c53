"""Capture and statistics of whole models, against the inference that they ride on and against other tools."""

import contextlib
import io
import math
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

import calibrant
from bench import bars, rivals
from bench.contest import Case, Contest, Figure, Medians, Setting, over
from bench.models import read_samples, write_made_model
from calibrant.ingest.process_memory import available_bytes

BATCH: Final = 8
RIVAL_COPIES: Final = 6  # of all activations, that quantize_static may hold: 24 GB were too few for 4.8
METHODS: Final = ("MinMax", "Entropy", "Percentile")


class Subject(NamedTuple):
    """A model, its samples, a run of it, and the model that exposes what the run captures."""

    model: Path
    samples: Path
    arrays: dict[str, np.ndarray]
    exposing: Path
    folder: Path
    moved: int


@lru_cache(maxsize=8)
def subject(name: str, model: Path, data: Path, folder: Path, share: float) -> Subject:
    """Prepare a model: cut its samples, capture it once, and expose the same tensors."""
    folder = folder / name
    folder.mkdir()
    arrays = read_samples(data, share)
    np.savez(folder / "samples.npz", **arrays)
    run = calibrant.capture(model, folder / "samples.npz", run=folder / "first.run", batch_size=BATCH, keep="stats")
    tensors = run.read("tensors")
    exposing = rivals.exposing_model(run.prepared_file, tensors["tensor"].to_list(), folder)
    return Subject(model, folder / "samples.npz", arrays, exposing, folder, 4 * int(tensors["n"].sum()))


def subjects(setting: Setting) -> dict[str, Callable[[], Subject]]:
    """Return the models by name, each prepared when asked for."""
    pairs = setting.models or (None,)

    def prepared(pair: tuple[Path, Path] | None) -> Subject:
        model, data = pair or _made(setting.folder, setting.size)
        return subject(model.stem, model, data, setting.folder, setting.size)

    return {"made" if pair is None else pair[0].stem: (lambda pair=pair: prepared(pair)) for pair in pairs}


@lru_cache(maxsize=1)
def _made(folder: Path, size: float) -> tuple[Path, Path]:
    return write_made_model(folder, size)


def captured(one: Subject, keep: str, samples: Path | None = None) -> Path:
    """Capture anew."""
    run = one.folder / f"{keep.replace(':', '_')}.run"
    shutil.rmtree(run, ignore_errors=True)
    calibrant.capture(one.model, samples or one.samples, run=run, batch_size=BATCH, keep=keep)
    return run


def against_inference(one: Subject) -> Contest:
    saved = one.folder / "saved"
    saved.mkdir(exist_ok=True)
    first = {name: array[:BATCH] for name, array in one.arrays.items()}
    np.savez(one.folder / "first.npz", **first)
    works = {
        "stats": lambda: captured(one, "stats"),
        "raw:8": lambda: captured(one, "raw:8"),
        "raw": lambda: captured(one, "raw"),
        "exposing": lambda: rivals.infer(one.exposing, one.arrays, BATCH),
        "inference": lambda: rivals.infer(one.model, one.arrays, BATCH),
        "np.save": lambda: rivals.save_arrays(one.exposing, one.arrays, BATCH, saved),
        "stats one batch": lambda: captured(one, "stats", one.folder / "first.npz"),
        "exposing one batch": lambda: rivals.infer(one.exposing, first, BATCH),
    }
    return Contest(works, one.moved, threads=2)


def against_quantize_static(one: Subject) -> Contest:
    _require_memory(one)
    import_module("onnxruntime.quantization")  # half a second that is not the first method's

    def rival(method: str) -> Callable[[], None]:
        def work() -> None:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                rivals.quantize_static(one.model, one.arrays, BATCH, method, one.folder)

        return work

    works = {"calibrant": lambda: captured(one, "stats"), **{method: rival(method) for method in METHODS}}
    return Contest(works, one.moved, threads=2)


def _require_memory(one: Subject) -> None:
    """Refuse what would end the whole bench: the rivals hold all activations, several times.

    Raises:
        MemoryError: the machine has too little left.
    """
    left = available_bytes()
    if left is not None and RIVAL_COPIES * one.moved > left:
        message = f"quantize_static would hold {RIVAL_COPIES} times {one.moved >> 20} MB of activations, {left >> 20} MB are left"
        raise MemoryError(message)


def added_by_raw(readings: Medians) -> float:
    return (readings["raw"] - readings["stats"]) / readings["np.save"]


def beyond_the_first_batch(readings: Medians) -> float:
    """Return the ratio without what each process pays once: reading, normalising and checking the model, and sessions."""
    ours, theirs = (readings[name] - readings[f"{name} one batch"] for name in ("stats", "exposing"))
    return ours / theirs if min(ours, theirs) > 0 else math.nan  # a busy machine may say nothing


FIGURES: Final = (
    Figure("--keep stats, times the exposing session", over("stats", "exposing"), bar=bars.CAPTURE),
    Figure("the same, beyond the first batch", beyond_the_first_batch),
    Figure("--keep stats, times plain inference", over("stats", "inference")),
    Figure("--keep raw:8, times the exposing session", over("raw:8", "exposing")),
    Figure("--keep raw, times the exposing session", over("raw", "exposing")),
    Figure("what --keep raw adds, times np.save", added_by_raw, bar=bars.RAW),
)
RIVAL_FIGURES: Final = (
    Figure("times faster than quantize_static MinMax", over("MinMax", "calibrant"), bar=bars.CAPTURE_MINMAX),
    Figure("times faster than quantize_static Entropy", over("Entropy", "calibrant"), bar=bars.CAPTURE_ENTROPY),
    Figure("times faster than quantize_static Percentile", over("Percentile", "calibrant")),
)


def cases(setting: Setting) -> Iterator[Case]:
    for name, one in subjects(setting).items():
        yield Case(f"captures/{name}", lambda _, one=one: against_inference(one()), FIGURES, rounds=3)
        yield Case(
            f"captures/{name}/quantize_static",
            lambda _, one=one: against_quantize_static(one()),
            RIVAL_FIGURES,
            rounds=3,
            warm=False,
        )
