"""What verify found: one row a layer, the end-to-end distance, and everything that is wrong."""

from dataclasses import asdict, dataclass
from math import inf

import polars as pl

from calibrant.export.lint import Finding

LEAST_SQNR_DB = 60.0  # end to end, interpreter against fake-quant model

_SCHEMA = pl.Schema(
    {
        "layer": pl.String(), "op_type": pl.String(), "terms": pl.Int64(), "greatest_sum": pl.Float64(),
        "measured": pl.Boolean(), "exact": pl.Boolean(), "bit_equal": pl.Boolean(), "worst_error": pl.Float64(),
        "allowed_error": pl.Float64(), "passed": pl.Boolean(), "failure": pl.String(),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """How one layer's fake-quant output compares with exact integers, over all feeds.

    Attributes:
        layer: node name.
        op_type: Conv, ConvTranspose, Gemm, MatMul or AveragePool.
        terms: K, how many products one accumulator adds up, the bias included.
        greatest_sum: B, the greatest sum of |x'| |w_q| + |b_q|.
        measured: whether B was measured; else it is a bound from max|x'| and the weights.
        exact: whether B <= 2**24, so that float32 is exact and the outputs must be equal bit for bit.
        bit_equal: whether they are.
        worst_error: greatest absolute difference.
        allowed_error: 0 where exact, else the greatest ``K * 2**-24 * B * scale_d * scale_w``.
        failures: what is wrong; empty where the layer passed.
    """

    layer: str
    op_type: str
    terms: int
    greatest_sum: float
    measured: bool
    exact: bool
    bit_equal: bool
    worst_error: float
    allowed_error: float
    failures: tuple[str, ...]

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
            {**asdict(check), "passed": check.passed, "failure": "; ".join(check.failures) or None}
            for check in self.layers
        ]
        return pl.DataFrame([{name: row[name] for name in _SCHEMA} for row in rows], schema=_SCHEMA)

    def summary(self) -> str:
        """Return one line: how many layers are bit-equal, the SQNR, and the number of faults and warnings."""
        equal = sum(check.bit_equal for check in self.layers)
        sqnr = "identical outputs" if self.sqnr_db == inf else f"SQNR {self.sqnr_db:.1f} dB"
        warnings = sum(finding.severity == "warn" for finding in self.findings)
        return (
            f"{len(self.layers)} layers on {self.samples} samples: {equal} bit-equal; end to end {sqnr}; "
            f"{len(self.failures())} faults, {warnings} warnings"
        )
