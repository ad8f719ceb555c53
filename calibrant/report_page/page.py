"""The page put together: one HTML file that asks no network and runs no script but its own."""

import base64
import hashlib
import html
import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from calibrant.errors import ExportError
from calibrant.report_page.charts import chart_specifications
from calibrant.report_page.content import layer_sheets, page_content
from calibrant.stats.run import Run
from calibrant.whole_files import whole_file

# Only scripts of these contents run, so that a name which became markup after all could do nothing; styles are the charts' own.
_POLICY: Final = "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def write_page(run: Run, output: Path, against: Run | None = None) -> None:
    """Write the page of a run, whole or not at all.

    Args:
        run: a complete run.
        output: the file.
        against: a run to compare it with.

    Raises:
        ExportError: the file cannot be written.
        RunError: a table of the run is damaged.
    """
    text = page_text(run, against)
    if output.is_dir():
        message = f"{output}: is a folder; pass -o FILE.html"
        raise ExportError(message)
    try:
        with whole_file(output) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{output}: cannot be written ({error.strerror or error}); choose a writable file"
        raise ExportError(message) from error


def page_text(run: Run, against: Run | None = None) -> str:
    """Return the page of a run as text."""
    scripts = [_library(), _asset("page.js")]
    parts = {
        "{{policy}}": _POLICY.format(scripts=" ".join(map(_hash_source, scripts))),
        "{{title}}": html.escape(_title(run, against)),
        "{{style}}": _asset("page.css"),
        "{{content}}": _json({**page_content(run, against), "charts": chart_specifications()}),
        "{{sheets}}": "\n".join(_sheet_elements(run, against)),
        "{{library}}": scripts[0],
        "{{script}}": scripts[1],
    }
    return _filled(_asset("page.html"), parts)


def _filled(template: str, parts: dict[str, str]) -> str:
    """Put each part in its place in one pass, so that a part which looks like a place stays what it is."""
    filled = []
    for piece in template.split("{{"):
        name, end, rest = piece.partition("}}")
        filled.append(parts["{{" + name + end] + rest if end else piece)
    return "".join(filled)


def _title(run: Run, against: Run | None) -> str:
    name = f"{run.info.model_name} · calibrant"
    return name if against is None else f"{run.info.model_name} against {against.path.name} · calibrant"


def _sheet_elements(run: Run, against: Run | None) -> Iterator[str]:
    """One block of data a layer, which the page reads when that layer is opened."""
    for name, sheet in layer_sheets(run, against):
        yield f'<script type="application/json" data-layer="{html.escape(name)}">{_json(sheet)}</script>'


def _json(value: Any) -> str:
    """Return JSON in which nothing can end the element that holds it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return resources.files("calibrant.report_page").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and their embedding as one script without dependencies."""
    from vl_convert import javascript_bundle

    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _hash_source(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
