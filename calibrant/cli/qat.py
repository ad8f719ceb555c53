"""The commands of models that were trained for quantization: convert-qat, and qat advise.

stdout carries data, stderr notes and errors.
"""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import Fit, FixInput, MatmulPerChannel, Output, TableFormat, fixed_inputs
from calibrant.cli.results import print_paths

qat_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Quantization-aware training.\n\nExample: calibrant qat advise config.json --run model.run -o next.json",
)


@qat_app.callback()
def qat() -> None:
    """Keep `advise` a command of its own while it is the only one."""


def convert_qat(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX model with QuantizeLinear and DequantizeLinear.", show_default=False
        ),
    ],
    prefix: Annotated[str, typer.Option(help="Path prefix of the exported files.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(help="Samples to verify on: a .npz file or a folder of .npy files. [default: random ones]"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many samples to verify on.")] = 4,
    fix_input: FixInput = None,
    do_fusion: Annotated[
        bool,
        typer.Option("--do-fusion", help="Fuse BatchNormalization; it moves the weight scales. [default: leave it]"),
    ] = False,
    matmul_per_channel: MatmulPerChannel = False,
    form: TableFormat = "table",
    output: Output = None,
) -> None:
    """Turn a QDQ model from anywhere into both models for Ascend, with its own scales, and verify them.

    Example: calibrant convert-qat qat.onnx --prefix out/qat --data samples.npz
    """
    from calibrant import qat_conversion
    from calibrant.console import print_frame, print_line, print_note, progress_bar

    with progress_bar() as progress:
        done = qat_conversion.convert_qat(
            model, prefix=prefix, data=data, samples=samples, fix_input=fixed_inputs(fix_input),
            do_fusion=do_fusion, matmul_per_channel=matmul_per_channel, progress=progress,
            notice=lambda event: print_note(event.severity, event.layer, event.message),
        )  # fmt: skip
    print_frame(done.layers, form, output)
    if form != "table" and output is None:
        return  # stdout is a file of rows, which other lines would spoil
    print_paths(done.files)
    if done.report is not None:
        print_line("verified", done.report.summary())
    if done.source_sqnr_db is not None:
        print_line("source_sqnr_db", f"{done.source_sqnr_db:.1f}")
        if near := done.layers["source_sqnr_db"].drop_nulls().to_list():
            print_line("least_layer_sqnr_db", f"{min(near):.1f}")


@qat_app.command()
def advise(
    config: Annotated[Path, typer.Argument(help="A retrain config.json or .cfg.", show_default=False)],
    run: Annotated[Path, typer.Option(help="A run of the float model.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the edited configuration here.", show_default=False)
    ] = None,
    fit: Fit = "default",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples of a training batch. [default: the run's]")
    ] = None,
    disable: Annotated[int, typer.Option(min=0, help="How many of the worst layers to leave in float.")] = 1,
    findings: Annotated[bool, typer.Option("--findings", help="Show only what should be looked at.")] = False,
    form: TableFormat = "table",
) -> None:
    """Walk AMCT's tuning path over a retrain configuration: a table of advice, and an edited file.

    Example: calibrant qat advise config.json --run model.run -o next.json
    """
    from calibrant import qat_advice
    from calibrant.console import print_frame, print_line, print_note

    advice = qat_advice.advise_qat(config, run, fit=fit, batch_size=batch_size, disable=disable, output=output)
    for event in advice.events:
        print_note(event.severity, event.layer, event.message)
    rows = advice.table
    print_frame(rows.filter(rows["severity"] != "info") if findings else rows, form, None)
    if advice.output is not None and form == "table":
        print_line("config", advice.output.resolve())
