"""What to try for a layer, each with the figures that speak for it (docs/sensitivity.md, "What to try").

These are readings of the tables, not measurements: `calibrant fit --name` with the lines and `calibrant sensitivity` tell.
"""

from collections.abc import Callable, Iterator
from typing import Final

from calibrant.fitting.run_statistics import RunStatistics
from calibrant.layer_page.page import Advice, DataRange, LayerPage, WeightRange
from calibrant.layer_page.rows import LayerRows
from calibrant.layer_views.bars import noise_shares
from calibrant.layer_views.statistics import channel_spread, magnitude_quantile
from calibrant.proto._canonical import quoted
from calibrant.sensitivity import measurements

CLIPS: Final = 1e-4  # share of values whose clipping is worth a word
TAIL: Final = 2.0  # end of the range over the 99.9 % quantile: one bit of the range for 0.1 % of the values
UNEVEN: Final = 8.0  # greatest channel over the median one: three bits that the median channel lacks
LARGER: Final = 64.0  # from here on less migration, or the weight takes the outlier over
APART_DB: Final = 6.0  # one bit
SHARE: Final = 0.05  # of the summed noise
FEW: Final = 32  # samples
ONE_SAMPLE: Final = 1.25  # how much further one sample reaches than all others
WIDE_DB: Final = 3.0  # width of an interval
_ONE_SIDED: Final = 0.5  # the smaller side of the range over the larger: below, a quarter of symmetric codes is unused
_EVEN: Final = 0.9  # the same: above, an offset gains less than a tenth of the step
_BALANCED_TYPES: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

Rule = Callable[[LayerPage, LayerRows], Iterator[Advice]]


def advice_for(page: LayerPage, rows: LayerRows) -> tuple[Advice, ...]:
    """Return what to try for a quantized layer: first what mends it where it is, then leaving it out, then more data."""
    if not page.quantized:
        return ()
    return tuple(advice for rule in _RULES for advice in rule(page, rows))


def _balance(page: LayerPage, rows: LayerRows) -> Iterator[Advice]:
    spread = channel_spread(rows.channels["abs_max"].fill_null(0).to_numpy(), rows.factors)
    possible = page.op_type in _BALANCED_TYPES and rows.layer["weight"] is not None and rows.data is not None
    if spread is None or spread < UNEVEN or rows.factors.size or not possible:
        return
    strength = 0.5 if spread < LARGER else 0.3
    largest = next((one.channel for one in page.channels if one.side == "data"), 0)
    evidence = f"input channel {largest} reaches {spread:.1f} times the median channel, and one scale serves all"
    lines = f"dmq_balancer {{ migration_strength: {strength} }}"
    yield Advice("balance data and weight (DMQ)", evidence, _override(page, lines))


def _tail(page: LayerPage, rows: LayerRows) -> Iterator[Advice]:
    data, quantile = page.data, _quantile(rows)
    if data is None or data.balanced or data.clip_min is None or data.clip_max is None or not quantile:
        return
    end = max(abs(data.clip_min), abs(data.clip_max))
    if end < TAIL * quantile or _algorithm(rows) != "ifmr":
        return
    evidence = f"the range reaches {end:.4g}, but 99.9 % of the values other than 0 stay within {quantile:.4g}"
    yield Advice("search the range by HFMG", evidence, _override(page, "hfmg_quantize { }"))
    lines = "ifmr_quantize { max_percentile: 0.9999 min_percentile: 0.9999 }"
    yield Advice("start the search at a lower percentile", evidence, _override(page, lines))


def _clipping(page: LayerPage, rows: LayerRows) -> Iterator[Advice]:
    rate = 0.0 if page.data is None else page.data.clip_rate or 0.0
    if rate < CLIPS:
        return
    evidence = f"the range clips {100 * rate:.3g} % of the values"
    if _algorithm(rows) == "ifmr":
        lines = "ifmr_quantize { max_percentile: 1.0 min_percentile: 1.0 }"
        yield Advice("start the search at the whole range", evidence, _override(page, lines))
    else:
        yield Advice("search the range by IFMR", evidence, _override(page, "ifmr_quantize { }"))


def _offset(page: LayerPage, rows: LayerRows) -> Iterator[Advice]:
    data, plan = page.data, rows.plan
    if data is None or data.scale is None or data.minimum is None or data.maximum is None or plan is None:
        return
    smaller, larger = sorted((abs(min(data.minimum, 0.0)), max(data.maximum, 0.0)))
    ends, kind = f"the data goes from {data.minimum:.4g} to {data.maximum:.4g}", f"{plan['data_algorithm']}_quantize"
    if plan["asymmetric"] is False and smaller < _ONE_SIDED * larger:
        unused = f"a symmetric range leaves {50 * (1 - smaller / larger):.0f} % of the codes unused"
        yield Advice("give the data an offset", f"{ends}: {unused}", _override(page, f"{kind} {{ asymmetric: true }}"))
    if plan["asymmetric"] is True and smaller > _EVEN * larger:
        evidence = f"{ends}: a symmetric range is as good, and spares the offset"
        yield Advice("quantize symmetrically", evidence, _override(page, f"{kind} {{ asymmetric: false }}"))


def _bits(page: LayerPage, rows: LayerRows) -> Iterator[Advice]:
    data, weight = page.data, page.weight
    if data is None or weight is None or data.sqnr_db is None or weight.sqnr_db is None:
        return
    figures = f"data {data.sqnr_db:.1f} dB, weight {weight.sqnr_db:.1f} dB"
    if data.sqnr_db + APART_DB < weight.sqnr_db:
        yield from _finer_data(page, data, rows, f"{figures}: the data is what limits it")
    if weight.sqnr_db + APART_DB < data.sqnr_db and rows.layer["weight"] is not None:
        yield from _finer_weight(page, weight, f"{figures}: the weight is what limits it")


def _finer_data(page: LayerPage, data: DataRange, rows: LayerRows, evidence: str) -> Iterator[Advice]:
    if data.bits == 8:
        lines = f"{_algorithm(rows)}_quantize {{ dst_type: INT16 }}"
        yield Advice("16 bits for the data", evidence, _override(page, lines))


def _finer_weight(page: LayerPage, weight: WeightRange, evidence: str) -> Iterator[Advice]:
    if weight.bits is not None and weight.bits < 8:
        yield Advice("8 bits for the weight", evidence, _override(page, "arq_quantize { quant_bits: 8 }"))
    elif weight.scales == 1 and page.op_type in {"Gemm", "MatMul"}:
        command = "calibrant fit RUN --matmul-per-channel --name per_channel"
        yield Advice("a weight scale for each output column", evidence, command)
    elif weight.scales == 1:
        lines = "arq_quantize { channel_wise: true }"
        yield Advice("a weight scale for each output channel", evidence, _override(page, lines))


def _skip(page: LayerPage, rows: LayerRows) -> Iterator[Advice]:
    view = next((view for view in ("whole", "isolated") if any(one.view == view for one in page.measured)), None)
    if view is None:
        return
    ranked = measurements(rows.run, rows.fit).filter(view=view, metric="sqnr_db")
    shares = dict(zip(ranked["layer_id"], noise_shares(ranked["value"].to_list()), strict=True))
    share, macs = shares.get(page.layer_id, 0.0), sum(rows.run.read("layers")["macs"].drop_nulls())
    if share >= SHARE and len(shares) > 1:
        cost = f", for {100 * page.macs / macs:.1f} % of the MACs" if page.macs and macs else ""
        evidence = f"it makes {100 * share:.0f} % of the noise of {len(shares)} layers in the view '{view}'{cost}"
        yield Advice("leave it in float", evidence, f"skip_layers: {quoted(page.layer)}")


def _more_data(page: LayerPage, rows: LayerRows) -> Iterator[Advice]:
    count, reach = rows.run.info.samples, _reaches(rows)
    if len(reach) > 1 and reach[0] > ONE_SAMPLE * reach[1]:
        evidence = f"one sample alone reaches {reach[0]:.4g}, all others at most {reach[1]:.4g}"
        yield Advice("see whether the sample that sets the range belongs there, or take more", evidence)
    elif count < FEW:
        yield Advice("calibrate with more samples", f"the range comes from {count} of them")
    for one in page.measured:
        if one.metric == "sqnr_db" and one.low is not None and one.high is not None and one.high - one.low > WIDE_DB:
            ends = f"{one.low:.1f} to {one.high:.1f} dB in the view '{one.view}' on {one.samples} samples"
            yield Advice(
                "measure on more samples", f"the interval is {ends}", "calibrant sensitivity RUN --data eval.npz"
            )
            return


def _reaches(rows: LayerRows) -> list[float]:
    """Return the greatest magnitude of each sample, greatest first."""
    found = rows.samples.drop_nulls(["min", "max"]).select("min", "max").iter_rows()
    return sorted((max(abs(low), abs(high)) for low, high in found), reverse=True)


def _quantile(rows: LayerRows) -> float | None:
    if rows.tensor is None or not rows.tensor["n"]:
        return None
    return magnitude_quantile(RunStatistics(rows.run, {}, {}).histogram(rows.tensor["tensor_id"]).bins())


def _algorithm(rows: LayerRows) -> str:
    return "" if rows.plan is None else str(rows.plan["data_algorithm"])


def _override(page: LayerPage, settings: str) -> str:
    return f"override_layer_configs {{ layer_name: {quoted(page.layer)} calibration_config {{ {settings} }} }}"


_RULES: Final[tuple[Rule, ...]] = (_balance, _tail, _clipping, _bits, _offset, _skip, _more_data)
