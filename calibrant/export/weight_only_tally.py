"""Compare a layer whose weight alone is quantized with the same layer in float64 on exactly reconstructed weights.

The layer is a float layer, so its outputs need not be equal bit for bit: of K products and the bias float32 rounds each product and
each addition once, so an output may differ by ``(K + 4) * 2**-24 * sum(|x| |w|)``; a float16 model rounds the result as well.
"""

from math import inf

import numpy as np

from calibrant.export.integer_layers import Array, IntegerLayer
from calibrant.export.report import LayerCheck
from calibrant.export.weight_only_graph import WeightOnlyNode
from calibrant.proto.record import RecordEntry
from calibrant.quantizers.affine import Float64Array

_MORE_ROUNDINGS = 4
_HALF_ROUNDINGS = 3 * 2.0**-11  # of the output, and of data and weight where onnxruntime leaves theirs out
_LEAST = 2.0**-140  # below it float32 has no relative precision


class WeightOnlyTally:
    """One layer's comparison over all feeds.

    Args:
        deploy: the layer of the deploy model.
        fake: the same of the fake-quant model.
        entry: its entry in the record.
    """

    def __init__(self, deploy: WeightOnlyNode, fake: WeightOnlyNode, entry: RecordEntry) -> None:
        self._node, self._layer = deploy, _as_layer(deploy)
        self._failures = dict.fromkeys((*deploy.faults(entry), *fake.faults(entry), *_differences(deploy, fake)))
        self._unequal = np.zeros(self._layer.channels_out or 1, np.bool_)
        self._greatest, self._worst, self._allowed, self._ratio = 0.0, 0.0, 0.0, 0.0

    def compare(self, data: Array, output: Array) -> None:
        """Compare one feed.

        Args:
            data: what the layer reads in the fake-quant model.
            output: what it makes of it there.
        """
        weight = self._node.weight.astype(np.float64)
        expected = self._run(data.astype(np.float64), weight, self._node.bias)
        if expected.shape != output.shape:
            self._failures[f"shape {output.shape} in the fake-quant model, {expected.shape} in float64"] = None
            return
        size = self._run(
            np.abs(data.astype(np.float64)),
            np.abs(weight),
            None if self._node.bias is None else np.abs(self._node.bias),
        )
        self._unequal = self._unequal | (self._layer.channel_maxima(expected.astype(output.dtype) != output) > 0)
        self._judge(np.abs(expected - output), size)

    def check(self) -> LayerCheck:
        """Return the row of the report: no channel is exact, since the data is float."""
        channels = self._unequal.size
        return LayerCheck(
            layer=self._node.name, op_type=self._node.op_type, terms=self._layer.terms, channels=channels, exact_channels=0,
            equal_channels=int(channels - self._unequal.sum()), greatest_sum=self._greatest, measured=True,
            worst_error=self._worst, allowed_error=self._allowed, worst_ratio=self._ratio, failures=tuple(self._failures),
        )  # fmt: skip

    def _run(self, data: Float64Array, weight: Float64Array, bias: Array | None) -> Float64Array:
        total = self._layer.multiply(data, weight)
        if bias is None:
            return total
        return total + self._layer.along_channels(bias.astype(np.float64).reshape(-1), total.ndim)

    def _judge(self, error: Float64Array, size: Float64Array) -> None:
        share = (self._layer.terms + _MORE_ROUNDINGS) * 2.0**-24 + (_HALF_ROUNDINGS if self._node.half else 0)
        allowed = share * size + _LEAST
        finite = np.isfinite(size)
        ratio = np.where(finite, np.where(np.isnan(error), inf, error) / allowed, 0.0)
        self._greatest = max(self._greatest, float(size[finite].max(initial=0)))
        self._worst = max(self._worst, float(error[finite].max(initial=0)))
        self._allowed = max(self._allowed, float(allowed[finite].max(initial=0)))
        self._ratio = max(self._ratio, float(ratio.max(initial=0)))
        if self._ratio > 1:
            self._failures["outputs are further from float64 than (K + 4) * 2^-24 * sum |x| |w|"] = None


def _as_layer(node: WeightOnlyNode) -> IntegerLayer:
    """Wrap the layer so that its products and channels are those of the interpreter's own kernels."""
    return IntegerLayer(
        name=node.name, op_type=node.op_type, attributes=node.attributes, source=node.source, output=node.output,
        weight=node.codes, bias=node.bias, bias_node=None, dequant_scale=np.ones(1, np.float32), dequantizer="",
    )  # fmt: skip


def _differences(deploy: WeightOnlyNode, fake: WeightOnlyNode) -> list[str]:
    same = deploy.weight.dtype == fake.weight.dtype and np.array_equal(deploy.weight, fake.weight)
    return [] if same and np.array_equal(deploy.codes, fake.codes) else ["the weight codes of the two models differ"]
