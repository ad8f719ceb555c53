"""What a page on a layer holds, free of how it is shown."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """A group of a plan's parameters.

    Attributes:
        group: what they are about.
        settings: the parameters, e.g. ``data_algorithm ifmr, data_bits 8``.
        decided_by: the rule that decided, as in the table `plan`.
    """

    group: str
    settings: str
    decided_by: str


@dataclass(frozen=True, slots=True)
class DataRange:
    """The data of a layer and what its quantizer makes of it.

    Attributes:
        tensor: name of the value.
        values: how many were seen.
        minimum, maximum: of the finite ones; None where there are none.
        zero_share: share of zeros.
        scale, offset, bits, clip_min, clip_max, clip_rate, sqnr_db: the chosen quantizer; None where the data stays in float.
        balanced: whether it is divided by balance factors first; then scale and clip ends are of the divided data.
    """

    tensor: str
    values: int
    minimum: float | None
    maximum: float | None
    zero_share: float
    scale: float | None = None
    offset: int | None = None
    bits: int | None = None
    clip_min: float | None = None
    clip_max: float | None = None
    clip_rate: float | None = None
    sqnr_db: float | None = None
    balanced: bool = False


@dataclass(frozen=True, slots=True)
class WeightRange:
    """The weight of a layer and its scales.

    Attributes:
        channels_out, channels_in: over all groups.
        minimum, maximum: over all channels.
        scales: how many; 1 per tensor.
        least_scale, greatest_scale: of them.
        bits: of a code.
        sqnr_db: over all channels.
        decided_by: what decided the scales.
    """

    channels_out: int | None
    channels_in: int | None
    minimum: float | None
    maximum: float | None
    scales: int
    least_scale: float | None
    greatest_scale: float | None
    bits: int | None
    sqnr_db: float | None
    decided_by: str | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of the data in bins of equal width.

    Attributes:
        low, high: ends of the first and the last bin.
        counts: values in each; a bin of the run's statistics that an edge cuts gives its part by proportion.
    """

    low: float
    high: float
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate of a search.

    Attributes:
        clip_min, clip_max: ends of its range; None for levels (NUQ).
        loss: what the search compares.
    """

    clip_min: float | None
    clip_max: float | None
    loss: float


@dataclass(frozen=True, slots=True)
class Search:
    """The losses of a search, in the order of its candidates.

    Attributes:
        algorithm: ifmr, hfmg or nuq.
        candidates: thinned to at most 120 in a long search, the best one kept.
        best: which of them was chosen.
        tried: how many there were.
    """

    algorithm: str
    candidates: tuple[Candidate, ...]
    best: int
    tried: int


@dataclass(frozen=True, slots=True)
class SampleNote:
    """Why a sample matters to the layer.

    Attributes:
        sample: its number.
        source: file and place that it came from.
        why: e.g. ``lowest SQNR 31.2 dB`` or ``sets the maximum 6.1; without it 5.8``.
    """

    sample: int
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class ChannelNote:
    """Why a channel matters.

    Attributes:
        side: data (an input channel) or weight (an output channel).
        channel: its number.
        why: what stands out.
    """

    side: str
    channel: int
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of `sensitivity`, with the layer's place among all that were measured.

    Attributes:
        view, metric, value, low, high, samples: as in the table.
        rank: 1 is the worst; equal values share a place.
        of: how many layers were measured.
    """

    view: str
    metric: str
    value: float
    low: float | None
    high: float | None
    samples: int
    rank: int
    of: int


@dataclass(frozen=True, slots=True)
class Note:
    """An event about the layer, as in the table `events`."""

    stage: str
    severity: str
    message: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to try.

    Attributes:
        action: what.
        evidence: the figures that speak for it.
        config: lines for quant.cfg, or a command; empty where it needs none.
    """

    action: str
    evidence: str
    config: str = ""


@dataclass(frozen=True, slots=True)
class LayerPage:
    """Everything that a run knows of one layer in one fit.

    Attributes:
        fit, layer, op_type, layer_id: which layer.
        macs, parameters, groups: its size; macs of one sample.
        quantized: whether the fit quantizes it.
        reason: why not, or None.
        decisions: the plan.
        data, weight: ranges and scales; None where there is none.
        histogram: of the data, before balancing.
        search: of the data's range (or of the weight's levels), or None.
        samples, channels: those that stand out.
        exact_samples: whether SQNRs of samples are computed from raw activations rather than estimated.
        measured: what `calibrant sensitivity` measured.
        events: about the layer, its tensor or its weight.
        advice: what to try.
    """

    fit: str
    layer: str
    op_type: str
    layer_id: int
    macs: int | None
    parameters: int
    groups: int
    quantized: bool
    reason: str | None
    decisions: tuple[Decision, ...]
    data: DataRange | None
    weight: WeightRange | None
    histogram: Histogram | None
    search: Search | None
    samples: tuple[SampleNote, ...]
    exact_samples: bool
    channels: tuple[ChannelNote, ...]
    measured: tuple[Measured, ...]
    events: tuple[Note, ...]
    advice: tuple[Advice, ...]
