"""One page on one layer of a fit: the command `calibrant explain`, and the data behind it."""

from typing import TYPE_CHECKING

from calibrant._room import make_callable
from calibrant.stats.run import Run, open_run

if TYPE_CHECKING:
    import os

    from calibrant.layer_page.page import LayerPage


def explain(run: "str | os.PathLike[str] | Run", layer: str, fit: str = "default") -> "LayerPage":
    """Return what a run knows of one layer in one fit: nothing is run.

    Args:
        run: a run with that fit.
        layer: name of a layer, quantized or not.
        fit: name of the fit.

    Returns:
        The page; `calibrant.layer_page.text.page_lines` shows it as text, `dataclasses.asdict` as data.

    Raises:
        LayerNotFoundError: no such fit or layer; the message has the nearest name.

    Example:
        >>> page = explain("model.run", "/backbone/conv1")  # doctest: +SKIP
        >>> [advice.action for advice in page.advice]  # doctest: +SKIP
        ['balance data and weight (DMQ)']
    """
    from calibrant.layer_page.gather import layer_page

    opened = open_run(run)
    opened.fit_record(fit)
    return layer_page(opened, fit, layer)


make_callable(__name__)
