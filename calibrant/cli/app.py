"""The command tree: which commands there are, and the options that hold for all of them."""

from typing import Annotated

import typer

from calibrant.cli import demo, evaluation, fallback, layers, preprocess, qat, questions, stages, suggestions
from calibrant.cli.config import config_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Quantization calibration for Ascend NPUs: ONNX and data in, statistics in SQL and Ascend-ready ONNX out.\n\n"
    "Example: calibrant run model.onnx --data samples.npz --config quant.cfg",
)


def _version(wanted: bool) -> None:
    if wanted:
        from calibrant import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error was raised; any command takes it.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that hold for every command; `main` reads --traceback itself."""


SHORT = {  # of commands whose first sentence is cut off in the list
    fallback.auto: "Quantize, with as few layers in float as a goal takes.",
    qat.convert_qat: "Turn a QDQ model from anywhere into models for Ascend.",
}

for command in (
    stages.run, stages.capture, stages.plan, preprocess.preprocess, stages.stats, stages.fit, stages.export, stages.verify,
    questions.sql, questions.report, questions.diff, layers.sensitivity, layers.explain, evaluation.evaluate, suggestions.suggest,
    fallback.auto, qat.convert_qat, demo.demo,
):  # fmt: skip
    app.command(short_help=SHORT.get(command))(command)
app.add_typer(config_app, name="config")
app.add_typer(qat.qat_app, name="qat")
