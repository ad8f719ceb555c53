"""The command `calibrant demo`."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder to make; an earlier demo's is replaced.")] = Path("calibrant-demo"),
) -> None:
    """Quantize a real model on drawn pages; show the result.

    Example: calibrant demo --out /tmp/calibrant-demo
    """
    from calibrant.console import progress_bar
    from calibrant.demo import run_demo, show_demo

    with progress_bar() as progress:
        result = run_demo(out, progress)
    show_demo(result)
