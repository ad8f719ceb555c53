"""The command that judges models on data: evaluate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import Fail, Output, RunFolder, TableFormat
from calibrant.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

_DUMPS = "device"  # the name of dumps that are given without one
_SHOWN = ("fit", "variant", "output", "metric", "value", "low", "high", "samples")
_SHOWN_CLASSES = ("fit", "variant", "output", "class_id", "samples", "agreement", "low", "high", "confused_with")


def evaluate(
    run: RunFolder,
    data: Annotated[Path, typer.Option(help="Evaluation samples: a .npz file or a folder of .npy files.")],
    labels: Annotated[
        str | None,
        typer.Option(help="Labels: a .npy or .npz file, FILE.npz:KEY, or an array's name in the data's .npz."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="top1, top5, agreement, cosine, amct_similarity, sqnr, kl, mse, max_abs, or module:function of your own; "
            "may be repeated. [default: sqnr, cosine, agreement for scores of classes, top1 with labels]",
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME=ONNX", help="Another ONNX model beside them; may be repeated.")
    ] = None,
    fit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of a fit; may be repeated. [default: all exported, else all]"),
    ] = None,
    output_name: Annotated[
        str | None,
        typer.Option(
            "--output-name", help="The only output to compare; labels belong to it. [default: all; labels to the first]"
        ),
    ] = None,
    fused: Annotated[
        bool,
        typer.Option("--fused", help="Compare each model also with graph optimizations on: what this CPU makes of it."),
    ] = False,
    dumps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR",
            help="Outputs dumped from the device, .npy or .bin (docs/evaluation.md); may be repeated.",
        ),
    ] = None,
    dumps_type: Annotated[
        str, typer.Option(help="Type of .bin dumps that say nothing themselves, e.g. float16.")
    ] = "float32",
    classes: Annotated[
        bool, typer.Option("--classes", help="Print the agreement within each class of the float model instead.")
    ] = False,
    fail_on: Fail = None,
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Compare fits, other models and dumps with the float model.

    All are measured on the same samples, with intervals.

    Example: calibrant evaluate model.run --data eval.npz --labels y.npy --metric top1 --metric sqnr
    """
    from calibrant.console import check_form, print_frame, print_note, progress_bar
    from calibrant.evaluation import evaluation, optimizations_note

    check_form(form, output)
    print_note("info", None, optimizations_note())
    with progress_bar() as progress:
        found = evaluation(
            run, data, labels=labels, metrics=metric or (), models=_named(model, "--model"), fits=fit or (),
            output=output_name, fused=fused, dumps=_named(dumps, "--dumps"), dumps_type=dumps_type, progress=progress,
        )  # fmt: skip
    for _, event in found.events:
        print_note(event.severity, None, event.message)
    rows = found.classes.select(*_SHOWN_CLASSES) if classes else found.scores.select(*_SHOWN)
    print_frame(_without_idle_columns(rows) if form == "table" else rows, form, output)
    if classes and rows.is_empty():
        print_note("info", None, "no output is one vector of scores a sample, so there are no classes to agree on")
    _refuse([event.message for _, event in found.events if event.severity in _severe(fail_on)])


def _named(given: list[str] | None, option: str) -> dict[str, Path]:
    """Return the paths of NAME=PATH by name; without a name a dump is the device's and a model is called by its file."""
    found: dict[str, Path] = {}
    for text in given or []:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = (_DUMPS if option == "--dumps" else Path(text).stem), text
        if name in found or not path:
            what = f"the name '{name}' is given twice" if path else "has no path"
            message = f"{option} {text}: {what}; expected NAME=PATH, each name once"
            raise ConfigError(message)
        found[name] = Path(path)
    return found


def _without_idle_columns(rows: "pl.DataFrame") -> "pl.DataFrame":
    """Leave out the output where there is one only."""
    return rows.drop("output") if rows["output"].drop_nulls().n_unique() <= 1 else rows


def _severe(fail_on: object) -> tuple[str, ...]:
    return () if fail_on is None else ("error",) if fail_on == "error" else ("warn", "error")


def _refuse(messages: list[str]) -> None:
    if messages:
        from calibrant.errors import CalibrantError

        message = f"{len(messages)} outputs collapsed at --fail-on, the first: {messages[0]}"
        raise CalibrantError(message)
