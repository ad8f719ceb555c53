"""The `calibrant config` commands: make, convert and check configuration files.

stdout carries data, stderr notes and errors.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.options import DialectName, FixInput, TableFormat, fixed_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calibrant.stats.events import Event

config_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, convert and check AMCT's configuration files.\n\nExample: calibrant config create model.onnx -o config.json",
)


File = Annotated[Path, typer.Argument(metavar="FILE", help="A configuration of any kind.", show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)]
ModelOption = Annotated[Path | None, typer.Option(help="The float ONNX model.", show_default=False)]
Dialect = Annotated[
    DialectName | None,
    typer.Option(help="Whose type names a simple configuration uses. [default: told by the file]", show_default=False),
]


def _print_events(events: "Iterable[Event]") -> None:
    from calibrant.console import print_note

    for event in events:
        print_note(event.severity, event.layer, event.message)


@config_app.command()
def create(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The float ONNX model.", show_default=False)],
    output: Output,
    config: Annotated[
        Path | None, typer.Option(help="What to write instead of AMCT's defaults (quant.cfg).", show_default=False)
    ] = None,
    updated_model: Annotated[
        Path | None, typer.Option(help="Write a copy of the model with a name for every node.", show_default=False)
    ] = None,
    fix_input: FixInput = None,
) -> None:
    """Write the config.json of a model, with every value of every layer.

    Example: calibrant config create model.onnx --config quant.cfg -o config.json
    """
    from calibrant import config_files
    from calibrant.console import print_line

    done = config_files.create_config(
        model, config=config, output=output, updated_model=updated_model, fix_input=fixed_inputs(fix_input)
    )
    _print_events(done.events)
    print_line("config", done.path.resolve())
    if done.updated_model is not None:
        print_line("updated_model", done.updated_model.resolve())


@config_app.command()
def convert(
    file: File, output: Output, model: ModelOption = None, dialect: Dialect = None, fix_input: FixInput = None
) -> None:
    """Turn a quant.cfg into the config.json of a model, or a config.json into a quant.cfg; retrain files likewise.

    Example: calibrant config convert config.json -o quant.cfg
    """
    from calibrant import config_files
    from calibrant.console import print_line

    done = config_files.convert_config(
        file, output, model=model, dialect=dialect.value if dialect else None, fix_input=fixed_inputs(fix_input)
    )
    _print_events(done.events)
    print_line("config", done.path.resolve())


@config_app.command()
def check(
    file: File,
    model: ModelOption = None,
    dialect: Dialect = None,
    fix_input: FixInput = None,
    form: TableFormat = "table",
) -> None:
    """Say what a file is and what is odd in it; with a model, print the plan of its layers.

    Example: calibrant config check quant.cfg --model model.onnx
    """
    from calibrant import config_files
    from calibrant.cli.plan_table import print_plan

    checked = config_files.check_config(
        file, model=model, dialect=dialect.value if dialect else None, fix_input=fixed_inputs(fix_input)
    )
    _print_events(checked.events)
    if checked.plan is not None:
        print_plan(checked.plan, form, None)
