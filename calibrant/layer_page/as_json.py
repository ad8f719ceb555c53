"""A page on a layer as one JSON object."""

import json
from dataclasses import asdict
from math import isfinite
from typing import Any

from calibrant.layer_page.page import LayerPage


def page_json(page: LayerPage) -> str:
    """Return the page as JSON on one line: its fields by name; numbers that JSON has not (infinite, NaN) are null."""
    return json.dumps(_finite(asdict(page)), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
