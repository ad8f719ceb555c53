"""The command `calibrant preprocess`.

stdout carries data, stderr notes and errors.
"""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.options import FixInput, fixed_inputs


def preprocess(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The float ONNX model.", show_default=False)],
    data: Annotated[Path, typer.Option(help="Calibration samples: a .npz file or a folder of .npy files.")],
    config: Annotated[Path, typer.Option(help="quant.cfg or config.json with a dmq_balancer.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The record to write.", show_default=False)],
    modified_model: Annotated[
        Path | None, typer.Option(help="Write the float model with the factors applied.", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples a batch; it changes no factor. [default: the model's, else 8]")
    ] = None,
    fix_input: FixInput = None,
) -> None:
    """Write balance factors into a record (quantize_preprocess).

    Example: calibrant preprocess model.onnx --data samples.npz --config quant.cfg -o record.txt
    """
    from calibrant.console import print_line, print_note, progress_bar
    from calibrant.preprocess import preprocess as find_factors

    with progress_bar() as progress:
        done = find_factors(
            model, data, config=config, output=output, modified_model=modified_model, batch_size=batch_size,
            fix_input=fixed_inputs(fix_input), progress=progress,
        )  # fmt: skip
    for event in done.events:
        if event.severity != "info":
            print_note(event.severity, event.layer, event.message)
    print_line("record", done.record.resolve())
    print_line("balanced_layers", done.layers)
    if done.modified_model is not None:
        print_line("modified_model", done.modified_model.resolve())
