"""Every kind of layer, symmetric and asymmetric, per tensor and per channel, with and without bias, through the whole pipeline.

Each model is captured once; every fit of it is exported, verified, and compared with whole numbers computed from its record.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import exporting
import models
import numpy as np
import pytest
from exporting import Case

import calibrant

POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
KINDS = {
    "Conv 1-D": Case("Conv", (1, 3, 9), (4, 3, 3), (4,), {"pads": [1, 1]}),
    "Conv 2-D": Case("Conv", (1, 3, 5, 6), (4, 3, 3, 2), (4,), {"pads": [1, 0, 1, 1]}),
    "Conv 3-D": Case("Conv", (1, 2, 4, 4, 5), (3, 2, 2, 2, 3), (3,), {"pads": [0, 1, 0, 1, 0, 1]}),
    "Conv grouped": Case("Conv", (1, 4, 5, 5), (6, 2, 3, 3), (6,), {"group": 2, "pads": [1, 1, 1, 1]}),
    "Conv depthwise": Case("Conv", (1, 4, 5, 5), (4, 1, 3, 3), (4,), {"group": 4, "strides": [2, 2]}),
    "ConvTranspose": Case("ConvTranspose", (1, 3, 3, 4), (3, 4, 2, 3), (4,), {"strides": [2, 1], "pads": [1, 0, 0, 1]}),
    "ConvTranspose grouped": Case("ConvTranspose", (1, 4, 3, 3), (4, 3, 2, 2), (6,), {"group": 2, "strides": [2, 2]}),
    "Gemm": Case("Gemm", (1, 6), (6, 5), (5,)),
    "Gemm transposed": Case("Gemm", (1, 6), (5, 6), (5,), {"transB": 1}),
    "MatMul": Case("MatMul", (1, 3, 6), (6, 5), (5,)),
    "AveragePool": Case("AveragePool", (1, 3, 6, 5), attributes=POOL),
    "AveragePool counting pads": Case("AveragePool", (1, 3, 6, 5), attributes={**POOL, "count_include_pad": 1}),
}  # fmt: skip


class Fit(NamedTuple):
    """How a layer is fitted."""

    asymmetric: bool
    per_channel: bool

    @property
    def name(self) -> str:
        return f"{'asymmetric' if self.asymmetric else 'symmetric'}-{'channel' if self.per_channel else 'tensor'}"

    @property
    def text(self) -> str:
        offset, channels = str(self.asymmetric).lower(), str(self.per_channel).lower()
        columns = (
            "calibrant_matmul_per_channel: true " if self.per_channel else ""
        )  # Gemm and MatMul need it for one a channel
        return f"{columns}activation_offset: {offset} common_config {{ arq_quantize {{ channel_wise: {channels} }} }}"


def model_cases() -> Iterator[tuple[str, Case]]:
    for name, case in KINDS.items():
        if case.bias is not None:
            yield f"{name}, bias", case
        yield f"{name}, none", case._replace(bias=None)


MODELS = dict(model_cases())


def fits_of(case: Case) -> list[Fit]:
    """Every layer with a weight can have one scale a channel."""
    channels = (False, True) if case.weight is not None else (False,)
    return [Fit(asymmetric, per_channel) for asymmetric in (False, True) for per_channel in channels]


def feeds_of(case: Case) -> list[dict[str, np.ndarray]]:
    """Data with a mean, so that an offset differs from 0 clearly."""
    return [{"x": case.feed(seed) + np.float32(2)} for seed in range(3)]


@pytest.fixture(scope="module", params=MODELS)
def captured(request, tmp_path_factory) -> tuple[Case, calibrant.Run]:
    case, folder = MODELS[request.param], tmp_path_factory.mktemp("matrix")
    path = models.save(case.proto(), folder / "m.onnx")
    return case, calibrant.capture(path, feeds_of(case), run=folder / "r", keep="stats")


def test_every_fit_is_exact_and_what_its_record_says(captured, tmp_path):
    case, run = captured
    for fit in fits_of(case):
        config = tmp_path / f"{fit.name}.cfg"
        config.write_text(fit.text)
        calibrant.fit(run, config=config, name=fit.name)
        calibrant.export(run, fit=fit.name, prefix=tmp_path / fit.name)
        report = calibrant.verify(run, fit=fit.name)
        assert [(check.layer, check.exact, check.bit_equal) for check in report.layers] == [("layer", True, True)]
        check_outputs(case, fit, tmp_path / fit.name)


def channels_out(case: Case) -> int:
    if case.weight is None:
        return 1
    first = case.op_type == "Conv" or bool(case.attributes.get("transB"))
    return case.weight[0] if first else case.weight[1] * case.groups


def check_outputs(case: Case, fit: Fit, prefix: Path) -> None:
    """Compare the fake-quant model with the record, on the calibration data and on data that leaves its range."""
    entry = exporting.read_record(Path(f"{prefix}_record.txt"))["layer"]
    channels = channels_out(case)
    assert len(entry["scale_w"]) == (channels if fit.per_channel else 1)
    only_symmetric = case.op_type == "Conv" and len(case.x) == 5  # AMCT takes no offset with 3-D kernels
    assert (entry["offset_d"][0] != 0) == (fit.asymmetric and not only_symmetric)
    for feed in [*feeds_of(case), {"x": case.feed(9) * np.float32(3)}]:
        got = models.run(Path(f"{prefix}_fake_quant_model.onnx"), feed)[0]
        np.testing.assert_array_equal(got, exporting.expected_output(case, entry, feed["x"]))


def test_the_matrix_holds_every_combination():
    seen = {(name, fit.name) for name, case in MODELS.items() for fit in fits_of(case)}
    weighted = sum(case.weight is not None for case in KINDS.values())
    assert len(seen) == weighted * 2 * 4 + (len(KINDS) - weighted) * 2


def test_one_scale_a_channel_is_nearer_to_the_float_model(tmp_path):
    """Channels of unlike size: 1, 1/10, 1/100, 1/1000 of one weight."""
    case = KINDS["Conv 2-D"]
    proto = case.proto()
    weight = models.normal(4, 3, 3, 2, seed=3) * np.float32([1, 0.1, 0.01, 0.001])[:, None, None, None]
    proto.graph.initializer[0].CopyFrom(models.numpy_helper.from_array(weight, "w"))
    run = calibrant.capture(models.save(proto, tmp_path / "m.onnx"), feeds_of(case), run=tmp_path / "r", keep="stats")
    errors = {}
    for fit in (Fit(asymmetric=True, per_channel=False), Fit(asymmetric=True, per_channel=True)):
        config = tmp_path / f"{fit.name}.cfg"
        config.write_text(fit.text)
        calibrant.fit(run, config=config, name=fit.name)
        calibrant.export(run, fit=fit.name, prefix=tmp_path / fit.name)
        both = (tmp_path / "m.onnx", Path(f"{tmp_path / fit.name}_fake_quant_model.onnx"))
        pairs = [[models.run(path, feed)[0] for path in both] for feed in feeds_of(case)]
        errors[fit.per_channel] = max(float(np.abs(a - b)[:, 3].max()) for a, b in pairs)
    assert errors[True] < errors[False] / 10
