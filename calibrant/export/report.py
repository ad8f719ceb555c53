"""What verify found: one row a layer, the end-to-end distance, and everything that is wrong."""

from dataclasses import dataclass
from math import inf

import polars as pl

from calibrant.export.lint_graph import Finding

LEAST_SQNR_DB = 60.0  # end to end, interpreter against fake-quant model

_SCHEMA = pl.Schema(
    {
        "layer": pl.String(), "op_type": pl.String(), "terms": pl.Int64(), "channels": pl.Int64(),
        "exact_channels": pl.Int64(), "equal_channels": pl.Int64(), "greatest_sum": pl.Float64(),
        "measured": pl.Boolean(), "exact": pl.Boolean(), "bit_equal": pl.Boolean(), "worst_error": pl.Float64(),
        "allowed_error": pl.Float64(), "worst_ratio": pl.Float64(), "passed": pl.Boolean(), "failure": pl.String(),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """How one layer's fake-quant output compares with exact integers, over all feeds.

    B of an output channel is the greatest sum of ``|x'| |w_q| + |b_q|``; the channel is exact where B <= 2**24. An output of an exact
    channel may not differ at all, one of another channel by ``(K + 4) * 2**-24 * B * scale_d * scale_w``.

    Attributes:
        layer: node name.
        op_type: Conv, ConvTranspose, Gemm, MatMul or AveragePool.
        terms: K, how many products one accumulator adds up, the bias included.
        channels: output channels.
        exact_channels: how many of them are exact.
        equal_channels: how many of them are equal bit for bit.
        greatest_sum: greatest B of a channel.
        measured: whether B was measured; else it is a bound from max|x'| and the weights.
        worst_error: greatest absolute difference of an output.
        allowed_error: 0 where all channels are exact, else the most that one of the others is allowed, by its own B and scale.
        worst_ratio: greatest error of a channel by what that very channel is allowed: above 1 fails; infinite where an exact
            channel differs, 0 where nothing does.
        failures: what is wrong; empty where the layer passed.
    """

    layer: str
    op_type: str
    terms: int
    channels: int
    exact_channels: int
    equal_channels: int
    greatest_sum: float
    measured: bool
    worst_error: float
    allowed_error: float
    worst_ratio: float
    failures: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether every channel is exact, so that all outputs must be equal bit for bit."""
        return self.exact_channels == self.channels

    @property
    def bit_equal(self) -> bool:
        """Whether every output is equal bit for bit."""
        return self.equal_channels == self.channels

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failures


@dataclass(frozen=True)
class VerifyReport:
    """Whether both exported models compute the same numbers, and whether ATC would read the deploy model as meant.

    Attributes:
        layers: one check a quantized layer, in the order of execution.
        sqnr_db: least SQNR of a float output, interpreter against fake-quant model over all feeds; infinite where identical,
            NaN where it could not be computed.
        samples: number of feeds.
        findings: lint findings and everything that is wrong outside a single layer.
    """

    layers: tuple[LayerCheck, ...]
    sqnr_db: float
    samples: int
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every layer passed, the SQNR reaches 60 dB and no finding is an error."""
        return not self.failures()

    def failures(self) -> list[str]:
        """Return everything that is wrong, one line each; warnings are not among them."""
        lines = [str(finding) for finding in self.findings if finding.severity == "error"]
        lines += [f"error: {check.layer}: {failure}" for check in self.layers for failure in check.failures]
        if not self.sqnr_db >= LEAST_SQNR_DB:
            lines.append(
                f"error: end to end: SQNR {self.sqnr_db:.1f} dB; at least {LEAST_SQNR_DB:.0f} dB were expected"
            )
        return lines

    def frame(self) -> pl.DataFrame:
        """Return the checks as a table, one row a layer."""
        rows = [
            {name: getattr(check, name) for name in _SCHEMA if name != "failure"}
            | {"failure": "; ".join(check.failures) or None}
            for check in self.layers
        ]
        return pl.DataFrame(rows, schema=_SCHEMA)

    def summary(self) -> str:
        """Return one line: how many layers are bit-equal, the SQNR, and the number of faults and warnings."""
        equal = sum(check.bit_equal for check in self.layers)
        sqnr = "identical outputs" if self.sqnr_db == inf else f"SQNR {self.sqnr_db:.1f} dB"
        warnings = sum(finding.severity == "warn" for finding in self.findings)
        return (
            f"{len(self.layers)} layers on {self.samples} samples: {equal} bit-equal; end to end {sqnr}; "
            f"{len(self.failures())} faults, {warnings} warnings"
        )
