"""Compare one quantized layer's fake-quant output with exact integers, output channel by output channel.

For a channel c, B[c] is the greatest sum of ``|x'| |w_q| + |b_q|``. Where B[c] <= 2**24 float32 holds every partial sum exactly and
the outputs must be equal bit for bit; where it is larger, within ``(K + 4) * 2**-24 * B[c] * deq[c]``: K - 1 additions and at most
five other steps round, each by at most 2**-24 of B[c]. A float16 model rounds both results once more, by 2**-11. Channels are judged
apart because one huge bias or tiny scale says nothing about its neighbours.
"""

from math import inf

import numpy as np
import numpy.typing as npt

from calibrant.export.integer_kernels import EXACT_FLOAT32
from calibrant.export.integer_layers import Array, IntegerLayer
from calibrant.export.interpreter import LayerRun
from calibrant.export.report import LayerCheck
from calibrant.quantizers.affine import Float64Array

Mask = npt.NDArray[np.bool_]
# K - 1 additions, the exact sum to float32, both products with deq, and the bias to float32 or both quotients of an AveragePool
_MORE_ROUNDINGS = 4
_HALF_ROUNDINGS = 2.0**-10  # both results to float16, 2**-11 each
_NAMED_CHANNELS = 3  # a message names so many


class LayerTally:
    """One layer's comparison over all feeds.

    Args:
        layer: the layer of the deploy model.
    """

    def __init__(self, layer: IntegerLayer) -> None:
        self._layer = layer
        self._failures: dict[str, None] = {}
        self._measured = False
        # one entry a channel from the first feed on: how many an AveragePool has is known only then
        self._greatest: Float64Array = np.zeros(1)
        self._unequal, self._broken, self._too_far = (np.zeros(1, np.bool_) for _ in range(3))
        self._worst, self._allowed, self._ratio = 0.0, 0.0, 0.0

    def fail(self, *failures: str) -> None:
        """Note what is wrong, each thing once."""
        self._failures.update(dict.fromkeys(failures))

    def compare(self, exact: LayerRun, output: Array) -> None:
        """Compare exact integers with the fake-quant output on the same codes.

        Args:
            exact: the layer run in exact integers.
            output: what the fake-quant model makes of the same codes.
        """
        self._layer = exact.layer  # a product holds the codes of its second input
        if not exact.fits_int32:
            self.fail("an accumulator leaves int32")
        sums = self._greatest_sums(exact.data)
        if exact.output.shape != output.shape:
            self._unequal = np.ones(sums.shape, np.bool_)
            self.fail(f"shape {output.shape} in the fake-quant model, {exact.output.shape} in exact integers")
            return
        differs = exact.output != output
        unequal = self._layer.channel_maxima(differs) > 0
        self._unequal = self._unequal | unequal
        allowed = self._allowed_errors(sums)
        if unequal.any():
            self._judge(self._errors(exact.output, output, differs), allowed, sums <= EXACT_FLOAT32)

    def check(self) -> LayerCheck:
        """Return the row of the report."""
        exact = self._greatest <= EXACT_FLOAT32
        return LayerCheck(
            layer=self._layer.name, op_type=self._layer.op_type, terms=self._layer.terms, channels=exact.size,
            exact_channels=int(exact.sum()), equal_channels=int(exact.size - self._unequal.sum()),
            greatest_sum=float(self._greatest.max(initial=0)), measured=self._measured,
            worst_error=self._worst, allowed_error=self._allowed, worst_ratio=self._ratio,
            failures=(*self._failures, *self._channel_failures()),
        )  # fmt: skip

    def _greatest_sums(self, data: Array) -> Float64Array:
        """Return B of each channel: bounded, and measured only where a bound leaves 2**24."""
        sums = self._layer.greatest_sum_bounds(data)
        if sums.max(initial=0) > EXACT_FLOAT32:
            sums, self._measured = self._layer.greatest_sums(data), True
        self._greatest = np.maximum(self._greatest, sums)
        self._unequal = np.broadcast_to(self._unequal, self._greatest.shape)
        return sums

    def _errors(self, expected: Array, output: Array, differs: Array) -> Float64Array:
        error = np.zeros(expected.shape)
        np.subtract(expected, output, out=error, where=differs, dtype=np.float64)  # equal infinities have no difference
        greatest = self._layer.channel_maxima(np.abs(error, out=error))
        return np.where(np.isnan(greatest), inf, greatest)

    def _allowed_errors(self, sums: Float64Array) -> Float64Array:
        scale = self._layer.dequant_scale.astype(np.float64)
        share = (self._layer.terms + _MORE_ROUNDINGS) * 2.0**-24 + (_HALF_ROUNDINGS if self._layer.half else 0)
        step = (
            0.0 if self._layer.shift is None else np.exp2(self._layer.shift.astype(np.float64))
        )  # floor may fall the other way
        allowed = np.where(sums > EXACT_FLOAT32, (share * sums + step) * scale, 0.0)
        self._allowed = max(self._allowed, float(allowed.max(initial=0)))
        return allowed

    def _judge(self, errors: Float64Array, allowed: Float64Array, exact: Mask) -> None:
        failed = ~(errors <= allowed)  # so that a NaN fails
        self._broken = self._broken | (failed & exact)
        self._too_far = self._too_far | (failed & ~exact)
        ratios = np.where(errors > 0, inf, 0.0)
        np.divide(errors, allowed, out=ratios, where=allowed > 0)
        self._worst = max(self._worst, float(errors.max(initial=0)))
        self._ratio = max(self._ratio, float(ratios.max(initial=0)))

    def _channel_failures(self) -> list[str]:
        failures = []
        if self._broken.any():
            failures.append(f"outputs differ although float32 is exact (B <= 2^24) in {_named(self._broken)}")
        if self._too_far.any():
            far = "outputs are further from exact integers than (K + 4) * 2^-24 * B * deq"
            failures.append(f"{far} in {_named(self._too_far)}")
        return failures


def _named(mask: Mask) -> str:
    """Name the channels of a mask, e.g. ``channels 3, 7, 8 and 2 more of 96``."""
    channels = np.flatnonzero(mask).tolist()
    named = ", ".join(map(str, channels[:_NAMED_CHANNELS]))
    more = f" and {len(channels) - _NAMED_CHANNELS} more" if len(channels) > _NAMED_CHANNELS else ""
    return f"channel{'s' if len(channels) > 1 else ''} {named}{more} of {mask.size}"
