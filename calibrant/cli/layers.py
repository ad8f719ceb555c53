"""The commands about single layers: which ones hurt, and why."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import Fit, Output, RunFolder, TableFormat

if TYPE_CHECKING:
    from calibrant.stats.run import Run


class ViewName(StrEnum):
    """In which views layers are measured."""

    statistics = "statistics"
    isolated = "isolated"
    whole = "whole"
    all = "all"


class PageForm(StrEnum):
    """How a page is given out."""

    text = "text"
    json = "json"


def sensitivity(
    run: RunFolder,
    fit: Fit = "default",
    view: Annotated[
        list[ViewName] | None,
        typer.Option(
            metavar="statistics|isolated|whole|all",
            help="statistics: from the tables, no inference; isolated: each layer alone on its captured data; whole: each layer alone "
            "quantized in the whole model; all. May be repeated. [default: all]",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Evaluation samples: a .npz file or a folder of .npy files. [default: those kept for verify]"
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, metavar="N", help="Measure on so many samples at most, those of least content key.")
    ] = 16,
    layer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure this layer only; may be repeated. [default: all]")
    ] = None,
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Measure how much each quantized layer hurts, worst first.

    What was measured before on the same samples is not measured again.

    Example: calibrant sensitivity model.run --data eval.npz
    """
    from calibrant.console import check_form, print_frame, print_table, progress_bar
    from calibrant.layer_views.bars import bar_frame
    from calibrant.sensitivity import VIEWS, best_view, sensitivity, worst_first
    from calibrant.stats.run import open_run

    check_form(form, output)
    opened = open_run(run)
    views = VIEWS if not view or ViewName.all in view else [one.value for one in view]
    with progress_bar() as progress:
        rows = sensitivity(opened, fit=fit, views=views, data=data, samples=samples, layers=layer, progress=progress)
    _show_notes(opened, fit)
    if form != "table" or output is not None or rows.is_empty():
        print_frame(rows, form, output)
        return
    best = best_view(rows)
    ranked = worst_first(rows.filter(view=best), "sqnr_db")
    title = f"fit {fit}: {ranked.height} layers by their SQNR in the view '{best}', worst first"
    print_table(bar_frame(ranked, rows), title)


def explain(
    run: RunFolder,
    layer: Annotated[
        str, typer.Argument(metavar="LAYER", help="Name of a layer, quantized or not.", show_default=False)
    ],
    fit: Fit = "default",
    form: Annotated[
        PageForm, typer.Option("--format", help="text: for people; json: one object for machines.")
    ] = PageForm.text,
    output: Output = None,
) -> None:
    """Show one page on a layer, and what to try.

    The page has its plan and who decided it, ranges, histogram, search, worst samples and channels.

    Example: calibrant explain model.run /backbone/conv1
    """
    from calibrant.console import print_text
    from calibrant.explain import explain
    from calibrant.layer_page.as_json import page_json
    from calibrant.layer_page.text import page_lines

    page = explain(run, layer, fit)
    print_text([page_json(page)] if form is PageForm.json else page_lines(page), output)


def _show_notes(run: "Run", fit: str) -> None:
    """Print on stderr what the samples were."""
    from calibrant.console import print_note

    for row in run.read("events").filter(stage="sensitivity", fit=fit).iter_rows(named=True):
        print_note(row["severity"], row["layer"], row["message"])
