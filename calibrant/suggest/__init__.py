"""What to change in a configuration: overrides chosen from the tables of a run, each proved on the model before it is made.

A suggestion promises that its layer, quantized alone in the whole model, moves the outputs less than before; one that does not keep
the promise is not made (docs/suggest.md).
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibrant._room import make_callable
from calibrant.errors import ConfigError, ExportError, nearest
from calibrant.stats.events import Progress, no_progress
from calibrant.stats.run import Run, open_run
from calibrant.whole_files import whole_file

if TYPE_CHECKING:
    import os

    from calibrant.ingest.data import Data
    from calibrant.suggest.suggestion import Suggestions

NAME: Final = "suggested"
SAMPLES: Final = 16
OPTIONAL: Final = ("int16",)


def suggest(
    run: "str | os.PathLike[str] | Run",
    *,
    fit: str = "default",
    name: str = NAME,
    data: "Data | None" = None,
    samples: int = SAMPLES,
    also: Collection[str] = (),
    max_float_macs: float = 0.15,
    output: "str | os.PathLike[str] | None" = None,
    progress: Progress = no_progress,
) -> "Suggestions":
    """Find overrides that make a fit better, prove each of them, and write them as a quant.cfg.

    Tried are, in this order: one weight scale a channel, the other data algorithm, the other symmetry, balancing (where the
    activations were kept), and, for what is left, float. The proved configuration is a fit of the run.

    Args:
        run: a run with that fit.
        fit: the fit to improve.
        name: name of the improved fit; one of that name is replaced.
        data: samples to measure outputs on; by default those that the capture kept for verify.
        samples: how many of them at most, those of least content key.
        also: what is tried besides: ``int16`` (data of 16 bits, which ATC refuses today).
        max_float_macs: the greatest share of the multiply-accumulates, 0 to 1, that may be left in float by suggestions.
        output: the quant.cfg to write, or None.
        progress: called as ``progress(stage, done, total)``.

    Returns:
        The suggestions, the output SQNR before and after, and the text of the quant.cfg.

    Raises:
        LayerNotFoundError: no such fit.
        ConfigError: `name` is the name of `fit`, or no name, a wrong option, no place for `output`, or the fit is of a trained model.
        DataError: `data` does not fit the model.
        ExportError: `output` cannot be written.
        RunError: the run cannot be written to.

    Example:
        >>> found = suggest("model.run", data="eval.npz", output="better.cfg")  # doctest: +SKIP
        >>> found.before_db, found.after_db  # doctest: +SKIP
        (13.8, 31.2)
    """
    from calibrant.pipeline import check_new_fit_name
    from calibrant.suggest.course import Course, Limits

    opened = open_run(run)
    opened.fit_record(fit)
    check_new_fit_name(name)
    _check(fit, name, samples, also, max_float_macs)
    _check_output(output)
    opened.require_writable()
    limits = Limits(samples=samples, int16="int16" in also, max_float_macs=max_float_macs)
    found = Course(opened, fit, name, data, limits, progress).suggestions()
    if output is not None:
        _write(found.text, Path(output), name)
    return found


def _check(fit: str, name: str, samples: int, also: Collection[str], max_float_macs: float) -> None:
    if name == fit:
        message = f"--name: '{name}' is the fit to improve, and would be replaced; choose another name"
        raise ConfigError(message)
    if samples < 1:
        message = f"--samples: {samples} is no number of samples; expected at least 1"
        raise ConfigError(message)
    if not 0 <= max_float_macs <= 1:
        message = f"--max-float-macs: {max_float_macs} is no share; expected 0 to 1 (or 0% to 100%)"
        raise ConfigError(message)
    for one in also:
        if one not in OPTIONAL:
            message = (
                f"--also: '{one}' is nothing to try{nearest(one, OPTIONAL)}; expected one of {', '.join(OPTIONAL)}"
            )
            raise ConfigError(message)


def _write(text: str, output: Path, name: str) -> None:
    try:
        with whole_file(output) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{output}: cannot be written ({error.strerror or error}); the fit '{name}' stands in the run, choose a writable file"
        raise ExportError(message) from error


def _check_output(output: "str | os.PathLike[str] | None") -> None:
    """Refuse a place that could not be written to, before anything is measured."""
    if output is not None and (not Path(output).absolute().parent.is_dir() or Path(output).is_dir()):
        message = f"--output {output}: is a folder, or in none that exists; expected a file such as better.cfg"
        raise ConfigError(message)


make_callable(__name__)
