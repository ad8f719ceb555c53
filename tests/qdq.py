"""Models with QuantizeLinear and DequantizeLinear for tests, built node by node; scales and codes are chosen here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F = np.float32
Array = np.ndarray[Any, Any]


class Qdq:
    """A graph under construction; `data` and the others return the name of the value that they make."""

    def __init__(self, *, opset: int = 17, ir_version: int = 8) -> None:
        self.opset, self.ir_version = opset, ir_version
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, name: str, array: Any, kind: int | None = None) -> str:
        if kind is None:
            self.tensors.append(numpy_helper.from_array(np.asarray(array), name))
        else:
            values = np.asarray(array)
            self.tensors.append(helper.make_tensor(name, kind, values.shape, values.reshape(-1).tolist()))
        return name

    def node(self, op_type: str, inputs: Sequence[str], output: str, name: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name or output, **attributes))
        return output

    def grid(self, name: str, scale: Any, zero: Any, kind: int) -> list[str]:
        scales = np.asarray(scale, F)
        zeros = np.broadcast_to(np.asarray(zero), scales.shape)
        return [self.constant(f"{name}_scale", scales), self.constant(f"{name}_zero", zeros, kind)]

    def quantize(self, name: str, x: str, scale: Any, zero: Any = 0, kind: int = TensorProto.INT8, **more: Any) -> str:
        return self.node("QuantizeLinear", [x, *self.grid(name, scale, zero, kind)], f"{name}_q", **more)

    def pair(self, name: str, x: str, scale: Any, zero: Any = 0, kind: int = TensorProto.INT8, **more: Any) -> str:
        codes = self.quantize(name, x, scale, zero, kind, **more)
        grid = self.nodes[-1].input[1:]
        return self.node("DequantizeLinear", [codes, *grid], f"{name}_dq", **more)

    def stored(
        self, name: str, codes: Any, scale: Any, zero: Any = 0, kind: int = TensorProto.INT8, **more: Any
    ) -> str:
        """Codes in an initializer with a DequantizeLinear alone."""
        self.constant(name, codes, kind)
        grid = self.grid(name, scale, zero, kind)
        return self.node("DequantizeLinear", [name, *grid], f"{name}_dq", **more)

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], **more: Any
    ) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "test", list(inputs), list(outputs), self.tensors)
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in more.get("domains", ()))]
        return helper.make_model(graph, opset_imports=imports, ir_version=self.ir_version)


def codes(*shape: int, seed: int = 0, low: int = -128, high: int = 127) -> Array:
    return models.rng(seed).integers(low, high, shape, endpoint=True)


WEIGHT = codes(4, 3, 3, 3)
SCALES = (F(0.004), F(0.01), F(0.002), F(0.0075))
BIAS = codes(4, seed=1, low=-3000, high=3000)
STEP, ZERO = F(0.02), -20  # of the data


def conv(
    *,
    scales: Any = SCALES,
    data: tuple[Any, int, int] = (STEP, ZERO, TensorProto.INT8),
    weight: tuple[Any, int, int] | None = None,
    bias_scale: Any = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """x [N,3,8,8] -> pair -> Conv 'conv' (stored int8 weight and int32 bias) -> Relu 'relu' -> y."""
    graph = Qdq(opset=opset, ir_version=10 if opset > 18 else 8)
    values, zero, kind = (WEIGHT, 0, TensorProto.INT8) if weight is None else weight
    steps = np.asarray(scales, F)
    x = graph.pair("x", "x", data[0], data[1], data[2])
    w = graph.stored("w", values, steps, zero, kind, axis=0)
    units = F(data[0]) * steps if bias_scale is None else np.asarray(bias_scale, F)
    b = graph.stored("b", BIAS, np.broadcast_to(units, (4,)), 0, TensorProto.INT32, axis=0)
    graph.node("Conv", [x, w, b], "c", "conv", pads=[1, 1, 1, 1])
    graph.node("Relu", ["c"], "y", "relu")
    return graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, 8, 8])])


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    return models.save(proto, folder / "source.onnx")
