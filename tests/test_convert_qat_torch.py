"""Models that PyTorch exported with its fake quantizers: as its tracing exporter writes them, and as its newer one does."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
import numpy as np
import onnx
import pytest

import calibrant

if TYPE_CHECKING:
    from calibrant.qat_conversion import ConvertedModel

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra calibrant[qat] brings it)")
nn, functional = torch.nn, torch.nn.functional
LEAST_DB = 60.0


class Network(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions with a sum, a mean and a Linear, each between fake quantizers of fixed scales."""

    def __init__(self, *, per_channel: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.depthwise = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=8, padding=1)
        self.linear = nn.Linear(8, 10)
        self.per_channel = per_channel
        for name, layer in (("first", self.first), ("depthwise", self.depthwise)):
            peaks = layer.weight.detach().abs().amax((1, 2, 3)) / 127
            self.register_buffer(f"{name}_scale", peaks)
        self.round_biases()

    def round_biases(self) -> None:
        """Round biases to what int32 holds, as AMCT advises, so that nothing else differs."""
        steps = (
            (self.first, self.first_scale, 0.031),
            (self.depthwise, self.depthwise_scale, 0.013),
            (self.linear, 0.003, 0.011),
        )
        for layer, scale, data in steps:
            unit = (scale if self.per_channel or layer is self.linear else 0.0031) * data
            layer.bias.data = torch.round(layer.bias.data / unit) * unit

    def weight(self, weight: Any, scale: Any) -> Any:
        if not self.per_channel:
            return torch.fake_quantize_per_tensor_affine(weight, 0.0031, 0, -128, 127)
        zero = torch.zeros(weight.shape[0], dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -128, 127)

    def forward(self, x: Any) -> Any:
        fake = torch.fake_quantize_per_tensor_affine
        x = fake(x, 0.031, 120, 0, 255)
        first = self.weight(self.first.weight, self.first_scale)
        y = fake(functional.relu(functional.conv2d(x, first, self.first.bias, padding=1)), 0.013, 0, 0, 255)
        second = self.weight(self.depthwise.weight, self.depthwise_scale)
        z = functional.conv2d(y, second, self.depthwise.bias, padding=1, groups=8)
        z = fake(functional.relu(z + y), 0.017, 0, 0, 127)
        return functional.linear(
            fake(z.mean((2, 3)), 0.011, 3, 0, 255), fake(self.linear.weight, 0.003, 0, -128, 127), self.linear.bias
        )


def exported(folder: Path, *, per_channel: bool, dynamo: bool) -> Path:
    network = Network(per_channel=per_channel).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters' own
        torch.onnx.export(
            network, (torch.randn(1, 1, 12, 12),), folder / "qdq.onnx", opset_version=18 if dynamo else 17, dynamo=dynamo,
            input_names=["x"], output_names=["y"], verbose=False,
        )  # fmt: skip
    return folder / "qdq.onnx"


def assert_converted(done: "ConvertedModel", source: Path) -> None:
    rows = done.layers.filter(becomes="int8").select("op_type", "scale_d", "offset_d").rows()
    steps = [np.float32(step) for step in (0.031, 0.013, 0.011)]
    assert rows == [("Conv", steps[0], -8), ("Conv", steps[1], -128), ("Gemm", steps[2], 3 - 128)]
    assert done.report is not None
    assert done.report.passed
    signal = noise = 0.0
    for seed in range(4):
        feed = {"x": models.normal(1, 1, 12, 12, seed=seed, scale=1.0)}
        wanted, got = models.run(source, feed)[0].astype(np.float64), models.run(done.files.fake_quant, feed)[0]
        signal, noise = signal + float((wanted**2).sum()), noise + float(((wanted - got) ** 2).sum())
    assert noise == 0 or 10 * np.log10(signal / noise) >= LEAST_DB


@pytest.mark.parametrize("per_channel", [False, True])
def test_tracing_exporter(tmp_path: Path, per_channel: bool) -> None:
    source = exported(tmp_path, per_channel=per_channel, dynamo=False)
    done = calibrant.convert_qat(source, prefix=tmp_path / "m")
    assert_converted(done, source)
    clips = [node for node in onnx.load(done.files.deploy).graph.node if node.op_type == "Clip"]
    assert len(clips) == 1  # of the data that uses codes 0 to 127
    weights = done.layers.filter(becomes="int8")["weight_scales"].to_list()
    assert weights == ([8, 8, 1] if per_channel else [1, 1, 1])


@pytest.mark.slow
def test_exporter_of_captured_programs(tmp_path: Path) -> None:
    source = exported(tmp_path, per_channel=True, dynamo=True)
    done = calibrant.convert_qat(source, prefix=tmp_path / "m")
    assert_converted(done, source)
    assert done.layers.filter(becomes="int8")["weight_scales"].to_list() == [8, 8, 1]


class Trained(nn.Module):  # type: ignore[misc, name-defined]
    """Convolutions with BatchNormalization, as they are before PyTorch's own quantization-aware training."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.ao.quantization.QuantStub()
        self.first, self.first_norm, self.relu = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.depthwise, self.norm = nn.Conv2d(8, 8, 3, groups=8, padding=1, bias=False), nn.BatchNorm2d(8)
        self.pool, self.linear = nn.MaxPool2d(4), nn.Linear(72, 10)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.first_norm(self.first(self.enter(x))))
        return self.linear(self.pool(self.norm(self.depthwise(y))).flatten(1))


def trained(folder: Path) -> Path:
    """Ten steps of training with fake quantizers, exported by tracing."""
    quantization = torch.ao.quantization
    torch.manual_seed(1)
    network = Trained().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch announces that it moves these functions
        network = quantization.fuse_modules_qat(network, [["first", "first_norm", "relu"], ["depthwise", "norm"]])
        data = quantization.FakeQuantize.with_args(
            observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8
        )
        weight = quantization.default_weight_fake_quant
        network.qconfig = quantization.QConfig(activation=data, weight=weight)
        quantization.prepare_qat(network, inplace=True)
        optimizer = torch.optim.SGD(network.parameters(), 1e-3)
        for _ in range(10):
            optimizer.zero_grad()
            network(torch.randn(8, 1, 12, 12)).pow(2).mean().backward()
            optimizer.step()
        network.eval().apply(quantization.disable_observer)
        torch.onnx.export(
            network, (torch.randn(1, 1, 12, 12),), folder / "qdq.onnx", opset_version=17, dynamo=False,
            input_names=["x"], output_names=["y"],
        )  # fmt: skip
    return folder / "qdq.onnx"


def test_trained_network_with_its_batch_norms_fused(tmp_path: Path) -> None:
    source = trained(tmp_path)
    done = calibrant.convert_qat(source, prefix=tmp_path / "m", do_fusion=True)
    rows = done.layers.filter(becomes="int8")
    assert rows["op_type"].to_list() == [
        "Conv",
        "Conv",
        "Gemm",
    ]  # the Gemm keeps the scale from before MaxPool and Flatten
    assert rows["weight_scales"].to_list() == [8, 8, 1]
    assert rows["source_sqnr_db"].min() >= LEAST_DB
    kinds = [node.op_type for node in onnx.load(done.files.deploy).graph.node]
    assert not {"Div", "Mul", "BatchNormalization"} & set(kinds)
    assert done.report is not None
    assert done.report.passed
