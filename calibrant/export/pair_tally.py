"""Compare one quantized input's AscendQuant and AscendAntiQuant with its chain in the fake-quant model.

Codes are small whole numbers and one product rounds in both models alike, so the values must be equal bit for bit.
"""

import numpy as np

from calibrant.export.antiquantizer import AntiQuantizer
from calibrant.export.fake_graph import FakePair
from calibrant.export.integer_layers import Array, Quantizer
from calibrant.export.report import LayerCheck
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.affine import code_range


class PairTally:
    """One pair's comparison over all feeds.

    Args:
        quantizer: the AscendQuant.
        antiquantizer: the AscendAntiQuant.
        fake: the same in the fake-quant model.
        entry: its entry in the record, or None.
    """

    def __init__(
        self, quantizer: Quantizer, antiquantizer: AntiQuantizer, fake: FakePair, entry: RecordEntry | None
    ) -> None:
        self._quantizer, self._antiquantizer, self._fake = quantizer, antiquantizer, fake
        self._failures = dict.fromkeys(_constant_faults(quantizer, antiquantizer, fake, entry))
        self._greatest, self._worst = 0.0, 0.0

    def compare(self, source: Array, data: Array, output: Array) -> None:
        """Compare one feed.

        Args:
            source: float data in the fake-quant model.
            data: its codes there, without offset.
            output: the float value that the node reads there.
        """
        if not np.array_equal(self._quantizer.codes(source), data):
            self._failures["the fake-quant codes are not clip(rint(x * scale) + offset) - offset"] = None
        exact = self._antiquantizer.values(data)
        if not np.array_equal(exact, output):
            self._failures["the fake-quant values are not (q - offset) * scale"] = None
            self._worst = max(self._worst, float(np.abs(exact.astype(np.float64) - output).max(initial=0)))
        self._greatest = max(self._greatest, float(np.abs(data).max(initial=0)))

    def check(self) -> LayerCheck:
        """Return the row of the report: one channel, one product."""
        return LayerCheck(
            layer=self._antiquantizer.key, op_type="AscendAntiQuant", terms=1, channels=1, exact_channels=1,
            equal_channels=int(self._worst == 0), greatest_sum=self._greatest, measured=True,
            worst_error=self._worst, allowed_error=0.0, worst_ratio=np.inf if self._worst else 0.0,
            failures=tuple(self._failures),
        )  # fmt: skip


def _constant_faults(
    quantizer: Quantizer, antiquantizer: AntiQuantizer, fake: FakePair, entry: RecordEntry | None
) -> list[str]:
    """Compare the constants of a pair in the deploy model, the fake-quant model and the record."""
    if entry is None or entry.scale_d is None or entry.offset_d is None:
        return ["the record has no scale_d and offset_d for it"]
    scale, offset = np.float32(entry.scale_d), entry.offset_d
    checks = [
        (quantizer.scale == np.float32(1) / scale, "AscendQuant's scale is not float32(1 / scale_d) of the record"),
        (quantizer.offset == offset, "AscendQuant's offset is not that of the record"),
        (antiquantizer.scale == scale, "AscendAntiQuant's scale is not scale_d of the record"),
        (antiquantizer.offset == offset, "AscendAntiQuant's offset is not that of the record"),
        (f"INT{quantizer.bits}" == (entry.act_type or "INT8"), "the data width is not that of the record"),
        (fake.scale == quantizer.scale, "the data scales of the two models differ"),
        (fake.offset == quantizer.offset, "the data offsets of the two models differ"),
        (fake.limits == code_range(quantizer.bits), "the code ranges of the two models differ"),
        (fake.factor == antiquantizer.scale, "the steps of the two models differ"),
    ]
    return [fault for holds, fault in checks if not holds]
