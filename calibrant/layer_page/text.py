"""A page on a layer as plain text."""

from collections.abc import Iterator, Sequence
from math import log10
from typing import Final

from calibrant.layer_page.page import DataRange, Histogram, LayerPage, Measured, Search, WeightRange
from calibrant.text_charts import columns

_ROWS: Final = 7  # lines of a histogram
_SEARCH_ROWS: Final = 4


def page_lines(page: LayerPage) -> list[str]:
    """Return the lines of a page; headings have no indentation, everything else has.

    Example:
        >>> page_lines(page)[0]  # doctest: +SKIP
        '/fc/Gemm: Gemm, 12800 MACs a sample, 12900 parameters (fit default)'
    """
    sections = (
        ("Why it stays in float", [page.reason] if page.reason else []),
        ("What to try", _advice(page)),
        ("Plan", _plan(page)),
        ("Data", _data(page.data)),
        ("Weight", _weight(page.weight)),
        (_histogram_title(page.data), _histogram(page.histogram, page.data)),
        ("Loss of the search", _search(page.search)),
        ("Samples", [f"{note.sample:>6}  {note.source}: {note.why}" for note in page.samples]),
        ("Channels", [f"{note.side:<6} {note.channel:>4}: {note.why}" for note in page.channels]),
        ("Sensitivity", [_measured(one) for one in page.measured]),
        ("Events", [f"{note.severity} ({note.stage}): {note.message}" for note in page.events]),
    )
    lines = [_title(page)]
    for heading, body in sections:
        if body:
            lines += ["", heading, *(f"  {line}".rstrip() for line in body)]
    return lines


def _title(page: LayerPage) -> str:
    groups = f" in {page.groups} groups" if page.groups > 1 else ""
    macs = f", {page.macs:,} MACs a sample" if page.macs is not None else ""
    return f"{page.layer}: {page.op_type}{groups}{macs}, {page.parameters:,} parameters (fit {page.fit})"


def _advice(page: LayerPage) -> list[str]:
    found = []
    for number, advice in enumerate(page.advice, 1):
        found.append(f"{number}. {advice.action}: {advice.evidence}")
        found += [f"     {line}" for line in advice.config.splitlines()]
    return found or (["nothing stands out"] if page.quantized else [])


def _plan(page: LayerPage) -> list[str]:
    groups = max((len(one.group) for one in page.decisions), default=0)
    return [
        f"{one.group:<{groups}}  {one.settings}  (decided by {one.decided_by or 'nothing'})" for one in page.decisions
    ]


def _data(data: DataRange | None) -> list[str]:
    if data is None:
        return []
    seen = "no finite value" if data.minimum is None else f"from {data.minimum:.6g} to {data.maximum:.6g}"
    lines = [f"tensor '{data.tensor}': {data.values:,} values {seen}, {100 * data.zero_share:.1f} % zeros"]
    if data.scale is not None:
        ends = f"represents {data.clip_min:.6g} to {data.clip_max:.6g}" + (" after balancing" if data.balanced else "")
        lines.append(f"scale {data.scale:.6g}, offset {data.offset}, {data.bits} bits: {ends}")
        lines.append(f"SQNR {data.sqnr_db:.2f} dB, {100 * (data.clip_rate or 0):.4g} % clipped")
    return lines


def _weight(weight: WeightRange | None) -> list[str]:
    if weight is None:
        return []
    lines = []
    if weight.minimum is not None:
        lines.append(
            f"{weight.channels_out} x {weight.channels_in} channels from {weight.minimum:.6g} to {weight.maximum:.6g}"
        )
    if weight.scales:
        least, greatest = f"{weight.least_scale:.6g}", f"{weight.greatest_scale:.6g}"
        scales = f"scale {least}" if weight.scales == 1 else f"{weight.scales} scales from {least} to {greatest}"
        sqnr = "" if weight.sqnr_db is None else f", SQNR {weight.sqnr_db:.2f} dB"
        lines.append(f"{scales}, {weight.bits} bits{sqnr} (decided by {weight.decided_by or 'nothing'})")
    return lines


def _histogram_title(data: DataRange | None) -> str:
    return "Histogram of the data (log scale)" + (", before balancing" if data is not None and data.balanced else "")


def _histogram(histogram: Histogram | None, data: DataRange | None) -> list[str]:
    """Draw columns of log counts over an axis with the clip lines."""
    if histogram is None:
        return []
    heights = [log10(1 + count) for count in histogram.counts]
    top = max(heights) or 1.0
    chart = columns([height / top for height in heights], _ROWS)
    width = len(heights)
    lines = [f"{max(histogram.counts):>8,.0f} ┤{chart[0]}", *(f"{'':>8} │{line}" for line in chart[1:])]
    lines.append(f"{'':>8} └{'─' * width}")
    clips = [] if data is None or data.balanced else [end for end in (data.clip_min, data.clip_max) if end is not None]
    if clips:
        places = [_place(end, histogram.low, histogram.high, width) for end in clips]
        lines.append(f"{'':>9} {_marks(places, width)}  ▲ clip {clips[0]:.6g} and {clips[-1]:.6g}")
    low, high = f"{histogram.low:.6g}", f"{histogram.high:.6g}"
    lines.append(f"{'':>9} {low}{high:>{max(width - len(low), len(high) + 1)}}")
    return lines


def _place(value: float, low: float, high: float, width: int) -> int:
    return min(width - 1, max(0, int((value - low) / (high - low) * width)))


def _marks(places: Sequence[int], width: int) -> str:
    return "".join("▲" if place in places else " " for place in range(width))


def _search(search: Search | None) -> list[str]:
    """Draw the losses of the candidates, the chosen one marked."""
    if search is None:
        return []
    losses = [candidate.loss for candidate in search.candidates]
    low, span = min(losses), (max(losses) - min(losses)) or 1.0
    chart = columns([0.02 + 0.98 * (loss - low) / span for loss in losses], _SEARCH_ROWS)
    best = search.candidates[search.best]
    lines = [
        f"{max(losses):>9.3g} ┤{chart[0]}",
        *(f"{'':>9} │{line}" for line in chart[1:-1]),
        f"{low:>9.3g} ┤{chart[-1]}",
    ]
    clip = "" if best.clip_max is None else f": {best.clip_min:.6g} to {best.clip_max:.6g}"
    marked = _marks([search.best], len(losses))
    lines.append(f"{'':>10} {marked}  ▲ chosen of {search.tried} ({search.algorithm}){clip}, loss {best.loss:.6g}")
    return lines + list(_ends(search))


def _ends(search: Search) -> Iterator[str]:
    first, last = search.candidates[0].clip_max, search.candidates[-1].clip_max
    if first is not None and last is not None:
        yield f"{'':>10} upper end from {first:.6g} to {last:.6g}"


def _measured(one: Measured) -> str:
    interval = "" if one.low is None or one.high is None else f" [{one.low:.6g} to {one.high:.6g}]"
    rank = f"place {one.rank} of {one.of}"
    return f"{one.view:<10} {one.metric:<15} {one.value:.6g}{interval}  ({rank}, {one.samples} samples)"
