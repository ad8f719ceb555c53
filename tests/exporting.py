"""Small exports for tests: scales chosen here, the record read back with regular expressions, layers computed by the naive twins."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import models
import naive
import numpy as np
import onnx

from calibrant.export.files import ExportedFiles, write_export
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.ingest.model import PreparedModel, initializer_value, prepare_model

F32 = np.float32


@dataclass(frozen=True)
class Export:
    """A written export and the prepared model that it came from."""

    prepared: PreparedModel
    files: ExportedFiles

    @property
    def deploy(self) -> onnx.ModelProto:
        return onnx.load(self.files.deploy)

    @property
    def fake_quant(self) -> onnx.ModelProto:
        return onnx.load(self.files.fake_quant)

    @property
    def record(self) -> dict[str, dict[str, list[float]]]:
        return read_record(self.files.record)


def prepare(proto: onnx.ModelProto, folder: Path) -> PreparedModel:
    return prepare_model(models.save(proto, folder / "source.onnx"))


def weight_scales(weight: np.ndarray, op_type: str, groups: int) -> np.ndarray:
    """One scale a channel for convolutions, one for matrices; channels without weights have scale 1."""
    rows = naive.channels_first(weight, op_type, groups)
    peaks = np.abs(rows).max(axis=1) if op_type.startswith("Conv") else np.abs(rows).max(keepdims=True).reshape(-1)
    scales = (peaks / 127).astype(F32)
    return np.where(scales < 1.2e-7, F32(1), scales)


def choose_scales(
    prepared: PreparedModel,
    *,
    scale_d: float = 0.02,
    offset: int = -17,
    bits: int = 8,
    data: Mapping[str, tuple[float, int]] | None = None,
    skip: Sequence[str] = (),
) -> list[QuantizedLayer]:
    """Quantize every layer with one data scale, or with that of its name in `data`."""
    chosen = []
    for layer in prepared.layers:
        if not layer.quantizable or layer.name in skip:
            continue
        scales = np.ones(1, F32)
        if layer.weight is not None:
            scales = weight_scales(initializer_value(prepared, layer.weight), layer.op_type, layer.groups)
        step, zero = (data or {}).get(layer.name, (scale_d, offset))
        chosen.append(QuantizedLayer(layer, F32(step), zero, bits, scales, 8))
    return chosen


def export(proto: onnx.ModelProto, folder: Path, **choices: Any) -> Export:
    prepared = prepare(proto, folder)
    return Export(prepared, write_export(prepared, choose_scales(prepared, **choices), folder / "out" / "m", "{}\n"))


def read_record(path: Path) -> dict[str, dict[str, list[float]]]:
    """The record, read without calibrant: layer -> field -> values in float32."""
    record = {}
    for block in re.split(r"(?m)^record \{", path.read_text())[1:]:
        key = re.search(r'key: "([^"]*)"', block)
        assert key is not None
        record[key.group(1)] = {
            field: [F32(value) for value in re.findall(rf"\b{field}: (\S+)", block)]
            for field in ("scale_d", "offset_d", "scale_w", "offset_w", "cluster")
        }
    return record


class Case(NamedTuple):
    """One layer: operator, shapes and attributes as ONNX names them."""

    op_type: str
    x: tuple[int, ...]
    weight: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None
    attributes: Mapping[str, Any] = {}
    bias_first: bool = False
    opset: int = 17

    @property
    def groups(self) -> int:
        return int(self.attributes.get("group", 1))

    def arrays(self) -> dict[str, np.ndarray]:
        """Weight and bias; the weight's second channel is all zero where there is one a channel."""
        found = {}
        if self.weight is not None:
            found["w"] = models.normal(*self.weight, seed=3)
            if self.op_type == "Conv" and self.weight[0] > 1:
                found["w"][1] = 0
        if self.bias is not None:
            found["b"] = models.normal(*self.bias, seed=4)
        return found

    def proto(self) -> onnx.ModelProto:
        """x -> the operator 'layer' (for a MatMul with bias: and the Add 'add') -> y."""
        arrays = self.arrays()
        inputs = ["x", *(["w"] if "w" in arrays else [])]
        if self.op_type == "MatMul" and "b" in arrays:
            operands = ["b", "m"] if self.bias_first else ["m", "b"]
            nodes = [models.node("MatMul", inputs, "m", "layer"), models.node("Add", operands, "y", "add")]
        else:
            inputs += ["b"] if "b" in arrays else []
            nodes = [models.node(self.op_type, inputs, "y", "layer", **self.attributes)]
        shape = ["N", *self.x[1:]]
        return models.model(nodes, [models.value("x", shape)], [models.value("y", self._y())], arrays, opset=self.opset)

    def _y(self) -> list[Any]:
        return ["N", *[None] * (len(self.x) - 1)]

    def feed(self, seed: int = 5) -> np.ndarray:
        """Data that reaches beyond both ends of the codes."""
        return models.normal(1, *self.x[1:], seed=seed, scale=2.0)


def weight_codes(
    weight: np.ndarray,
    op_type: str,
    groups: int,
    scales: Sequence[float],
    *,
    offsets: Sequence[int] = (),
    bits: int = 8,
    cluster: Sequence[int] = (),
) -> np.ndarray:
    """Codes of every element by its own output channel's scale and offset, element by element; NUQ's centres for them."""
    codes = np.zeros(weight.shape, np.int64)
    for place, value in np.ndenumerate(weight):
        channel = 0
        if len(scales) > 1:
            channel = place[-1] if op_type in {"Gemm", "MatMul"} else place[0]
            if op_type == "ConvTranspose":
                channel = place[0] // (weight.shape[0] // groups) * weight.shape[1] + place[1]
        offset = int(offsets[channel]) if len(offsets) else 0
        codes[place] = naive.quantize(np.array([value]), scales[channel], offset, bits)[0]
        if len(cluster):
            codes[place] = naive.nearest_centre(int(codes[place]), [int(centre) for centre in cluster])
    return codes


def expected_output(
    case: Case, entry: Mapping[str, list[float]], x: np.ndarray, bits: int = 8, *, weight_bits: int = 8
) -> np.ndarray:
    """What the record says that the layer computes, in whole numbers and then float32."""
    scale_d, offset = entry["scale_d"][0], int(entry["offset_d"][0])
    data = np.array(naive.deploy_codes(x, scale_d, offset, bits)).reshape(x.shape) - offset
    if case.op_type == "AveragePool":
        return _expected_pool(case, data, scale_d)
    arrays, scales = case.arrays(), entry["scale_w"]
    levels = {"bits": weight_bits, "cluster": [int(centre) for centre in entry["cluster"]]}
    weight = arrays["w"].T if case.attributes.get("transB") else arrays["w"]
    codes = weight_codes(weight, case.op_type, case.groups, scales, **levels)
    total = _multiply(case, data, codes)
    spread = (1, -1, *[1] * (total.ndim - 2)) if case.op_type.startswith("Conv") else (1,) * (total.ndim - 1) + (-1,)
    if "b" in arrays:
        bias = np.array(naive.bias_codes(arrays["b"].ravel(), scale_d, np.array(scales)))
        total = total + bias.reshape(spread)
    steps = np.array([F32(scale_d) * F32(scale) for scale in scales], F32).reshape(spread)
    return total.astype(F32) * steps


def _multiply(case: Case, data: np.ndarray, codes: np.ndarray) -> np.ndarray:
    attributes = {key: value for key, value in case.attributes.items() if key != "group"}
    mode = attributes.pop("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        view = naive.window(codes.shape[2:], attributes.get("strides"), None, attributes.get("dilations"))
        attributes["pads"] = naive.same_pads(view, data.shape[2:], lower=mode == "SAME_LOWER")
    if case.op_type == "Conv":
        return naive.convolution(data, codes, case.groups, **attributes)
    if case.op_type == "ConvTranspose":
        return naive.transposed_convolution(data, codes, case.groups, **attributes)
    return naive.matrix_product(data, codes)


def _expected_pool(case: Case, data: np.ndarray, scale_d: float) -> np.ndarray:
    attributes = dict(case.attributes)
    kernel = attributes.pop("kernel_shape")
    flags = {key: bool(attributes.pop(key, 0)) for key in ("count_include_pad", "ceil_mode")}
    sums, counts = naive.average_pool(data, kernel, **flags, **attributes)
    return sums.astype(F32) / counts.astype(F32) * F32(scale_d)


def _case_list() -> dict[str, Case]:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    padded = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 2]}
    return {
        "Conv 1-D": Case("Conv", (1, 3, 11), (4, 3, 3), (4,), {"pads": [1, 1]}),
        "Conv 2-D": Case("Conv", (1, 3, 6, 5), (4, 3, 3, 3), (4,)),
        "Conv 3-D": Case("Conv", (1, 2, 4, 5, 4), (3, 2, 2, 3, 2), (3,), {"pads": [1, 1, 0, 0, 1, 1]}),
        "Conv without bias": Case("Conv", (1, 3, 6, 5), (4, 3, 3, 3)),
        "Conv grouped": Case("Conv", (1, 4, 6, 6), (6, 2, 3, 3), (6,), {"group": 2}),
        "Conv depthwise": Case("Conv", (1, 4, 6, 6), (4, 1, 3, 3), (4,), {"group": 4, "pads": [1, 1, 1, 1]}),
        "Conv depthwise, two a group": Case("Conv", (1, 3, 6, 6), (6, 1, 3, 3), (6,), {"group": 3}),
        "Conv padded on one side": Case("Conv", (1, 3, 6, 6), (4, 3, 3, 3), (4,), {"pads": [0, 1, 2, 1]}),
        "Conv padded SAME_UPPER": Case(
            "Conv", (1, 2, 6, 7), (3, 2, 3, 2), (3,), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
        ),
        "Conv padded SAME_LOWER": Case("Conv", (1, 2, 6, 7), (3, 2, 2, 2), (3,), {"auto_pad": "SAME_LOWER"}),
        "Conv strided": Case("Conv", (1, 3, 7, 8), (4, 3, 3, 3), (4,), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
        "Conv dilated": Case("Conv", (1, 2, 8, 9), (3, 2, 3, 2), (3,), {"dilations": [2, 3]}),
        "Conv pointwise": Case("Conv", (1, 5, 4, 4), (6, 5, 1, 1), (6,)),
        "ConvTranspose": Case("ConvTranspose", (1, 3, 4, 4), (3, 2, 2, 2), (2,), {"strides": [2, 2]}),
        "ConvTranspose grouped": Case(
            "ConvTranspose", (1, 4, 3, 4), (4, 3, 3, 3), (6,),
            {"group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
        ),
        "ConvTranspose 1-D": Case("ConvTranspose", (1, 2, 5), (2, 3, 4), None, {"strides": [2], "pads": [1, 1]}),
        "Gemm": Case("Gemm", (1, 6), (6, 5), (5,)),
        "Gemm without bias": Case("Gemm", (1, 6), (6, 5)),
        "Gemm, bias of rank 2": Case("Gemm", (1, 6), (6, 5), (1, 5)),
        "MatMul": Case("MatMul", (1, 3, 6), (6, 5)),
        "MatMul and Add": Case("MatMul", (1, 3, 6), (6, 5), (5,)),
        "MatMul and Add, bias first": Case("MatMul", (1, 3, 6), (6, 5), (5,), bias_first=True),
        "MatMul and Add, bias of rank 3": Case("MatMul", (1, 3, 6), (6, 5), (1, 1, 5)),
        "MatMul batched": Case("MatMul", (1, 3, 6), (2, 6, 5)),
        "MatMul batched, one matrix a head": Case("MatMul", (1, 2, 3, 6), (2, 6, 5), (5,)),
        "AveragePool": Case("AveragePool", (1, 3, 6, 6), attributes=pool),
        "AveragePool padded": Case("AveragePool", (1, 2, 7, 6), attributes=padded),
        "AveragePool counting pads": Case("AveragePool", (1, 2, 7, 6), attributes={**padded, "count_include_pad": 1}),
        "AveragePool, ceil": Case("AveragePool", (1, 2, 7, 8), attributes={**padded, "ceil_mode": 1}),
    }  # fmt: skip


CASES = _case_list()
