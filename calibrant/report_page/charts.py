"""The charts of the page as Vega-Lite specifications without data: the page puts a layer's rows in when its sheet opens."""

from collections.abc import Mapping
from typing import Any, Final

import altair as alt
from altair.typing import ChartType

_SERIES: Final = ("this run", "other run")


def chart_specifications() -> Mapping[str, dict[str, Any]]:
    """Return the charts by name: ranking, pareto, histogram, loss and channels.

    Each takes its rows under the data name ``rows`` (the histogram's clip lines under ``clips``); widths follow the page.
    """
    charts = {
        "ranking": _ranking(), "pareto": _pareto(), "histogram": _histogram(), "loss": _loss(), "channels": _channels(),
    }  # fmt: skip
    return {name: _bare(chart) for name, chart in charts.items()}


def _bare(chart: ChartType) -> dict[str, Any]:
    """Leave out what altair adds for notebooks: its own theme, data sets, and a version that the page's library need not share."""
    fitted = alt.AutoSizeParams(type="fit-x", contains="padding")
    specification = chart.properties(width="container", autosize=fitted).to_dict()
    return {name: part for name, part in specification.items() if name not in ("config", "datasets", "$schema")}


def _rows(name: str = "rows") -> alt.NamedData:
    return alt.NamedData(name=name)


def _series(domain: tuple[str, ...] = _SERIES) -> alt.Color:
    """Colours come from the page, which knows whether it is light or dark."""
    return alt.Color("series:N", scale=alt.Scale(domain=list(domain)), legend=None)


def _ranking() -> ChartType:
    base = alt.Chart(_rows()).encode(
        y=alt.Y("label:N", sort=None, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
        tooltip=[
            alt.Tooltip("layer:N", title="layer"),
            alt.Tooltip("value:Q", title="noise, % of the signal", format=".3~f"),
            alt.Tooltip("other:Q", title="in the other run", format=".3~f"),
        ],
    )
    bars = base.mark_bar(height={"band": 0.62}, cornerRadiusEnd=2, cursor="pointer").encode(
        x=alt.X("value:Q", title="noise, % of the signal", axis=alt.Axis(tickCount=5))
    )
    other = base.mark_tick(thickness=2, size=14, cursor="pointer").encode(x="other:Q", color=alt.value("#888"))
    return alt.layer(bars, other)  # the page sets the height by the number of bars


def _pareto() -> ChartType:
    base = alt.Chart(_rows()).encode(
        x=alt.X("int8:Q", title="MACs in int8, %", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
        color=_series(("front", "beaten")),
        tooltip=[
            alt.Tooltip("step:N", title="step"),
            alt.Tooltip("layers:N", title="layers in float"),
            alt.Tooltip("int8:Q", title="MACs in int8, %", format=".4~g"),
            alt.Tooltip("value:Q", title="measured", format=".4~g"),
        ],
    )
    line = base.transform_filter("datum.series == 'front'").mark_line(strokeWidth=1.5)
    size = alt.condition("datum.chosen", alt.value(170), alt.value(60))
    points = base.mark_point(filled=True, opacity=1).encode(size=size)
    return alt.layer(line, points).properties(height=200)


def _histogram() -> ChartType:
    x = alt.X("x0:Q", title="value", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=7))
    bars = (
        alt.Chart(_rows())
        .mark_bar(binSpacing=0, stroke=None)
        .encode(
            x=x,
            x2="x1:Q",
            y=alt.Y(
                "count:Q",
                title="values a bin (log)",
                scale=alt.Scale(type="log", domainMin=0.5, nice=False, clamp=True),
                axis=alt.Axis(format="~s", tickCount=5),
            ),
            y2=alt.Y2(datum=0.5),
            color=_series(("inside", "clipped", "other run")),
            opacity=alt.condition("datum.series == 'other run'", alt.value(0.45), alt.value(1)),
            tooltip=[
                alt.Tooltip("x0:Q", title="from", format=".4~g"),
                alt.Tooltip("x1:Q", title="to", format=".4~g"),
                alt.Tooltip("count:Q", title="values", format=",.4~g"),
            ],
        )
    )
    clips = (
        alt.Chart(_rows("clips"))
        .mark_rule(strokeWidth=1.5, strokeDash=[5, 3])
        .encode(
            x="at:Q", color=_series(), tooltip=[alt.Tooltip("what:N", title="clip"), alt.Tooltip("at:Q", format=".5~g")]
        )
    )
    layered: ChartType = alt.layer(bars, clips).resolve_scale(color="independent").properties(height=220)
    return layered


def _loss() -> ChartType:
    base = alt.Chart(_rows()).encode(
        x=alt.X(
            "share:Q",
            title="width of the clip range, share of the tensor's range",
            scale=alt.Scale(zero=False, nice=False),
            axis=alt.Axis(tickCount=8),
        ),
        y=alt.Y(
            "ratio:Q",
            title="loss over the least (log)",
            scale=alt.Scale(type="log", nice=False, domainMin=0.95),
            axis=alt.Axis(tickCount=4, format=".3~g"),
        ),
        color=_series(),
        tooltip=[
            alt.Tooltip("share:Q", title="share of the range", format=".4~g"),
            alt.Tooltip("ratio:Q", title="loss over the least", format=".4~g"),
        ],
    )
    line = base.mark_line(strokeWidth=1.5, interpolate="linear")
    best = base.transform_filter("datum.best").mark_point(size=70, filled=True, opacity=1)
    return alt.layer(line, best).properties(height=180)


def _channels() -> ChartType:
    chart: ChartType = (
        alt.Chart(_rows())
        .mark_bar(binSpacing=0, minBandSize=1)
        .encode(
            x=alt.X("from:Q", title="channel", scale=alt.Scale(nice=False), axis=alt.Axis(format="d", tickMinStep=1)),
            x2="to:Q",
            y=alt.Y("min:Q", title="least to greatest value"),
            y2="max:Q",
            color=_series(),
            opacity=alt.condition("datum.series == 'other run'", alt.value(0.5), alt.value(0.9)),
            tooltip=[
                alt.Tooltip("what:N", title="channel"),
                alt.Tooltip("min:Q", format=".4~g"),
                alt.Tooltip("max:Q", format=".4~g"),
            ],
        )
        .properties(height=160)
    )
    return chart
