"""The command that proposes a better configuration: suggest."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import Fit, RunFolder, share

if TYPE_CHECKING:
    from calibrant.suggest.suggestion import Suggestions


def suggest(
    run: RunFolder,
    fit: Fit = "default",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the improved fit; one of that name is replaced.")
    ] = "suggested",
    data: Annotated[
        Path | None,
        typer.Option(help="Samples to prove suggestions on. [default: those that the capture kept for verify]"),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many of them, those of least content key.")
    ] = 16,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="int16", help="Try this too: int16 (data of 16 bits, which ATC refuses today)."),
    ] = None,
    max_float_macs: Annotated[
        str, typer.Option(metavar="SHARE", help="The greatest share of the MACs that suggestions may leave in float.")
    ] = "15%",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The quant.cfg to write. [default: stdout]")
    ] = None,
) -> None:
    """Write a quant.cfg with overrides that are proved to help.

    Example: calibrant suggest model.run --data eval.npz -o better.cfg
    """
    from calibrant.console import print_note, progress_bar
    from calibrant.suggest import suggest as find_suggestions

    with progress_bar() as progress:
        found = find_suggestions(
            run, fit=fit, name=name, data=data, samples=samples, also=also or (),
            max_float_macs=share(max_float_macs, "--max-float-macs"), output=output, progress=progress,
        )  # fmt: skip
    for note in found.notes:
        print_note("info", None, note)
    if output is None:
        typer.echo(found.text, nl=False)
    else:
        _show(found, name, output)


def _show(found: "Suggestions", name: str, output: Path) -> None:
    from calibrant.console import print_line, print_table

    if found.items:
        print_table(found.frame().select("layer", "change", "before_db", "after_db"))
    print_line("config", output.resolve())
    print_line("fit", name)
    print_line("samples", found.samples)
    print_line("output_sqnr_db_before", f"{found.before_db:.1f}")
    print_line("output_sqnr_db", f"{found.after_db:.1f}")
