"""Small models around what onnxruntime computes with its channels in blocks of 8 or 16, and what stands beside such tensors.

A case is a model, samples for it and the tensors that a capture of it observes (the data of its quantizable layers), in order.
`look` puts a pointwise Conv behind a value, so that the value is observed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import models
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

Array = npt.NDArray[Any]
Feed = dict[str, Array]
F32 = np.float32


class Case(NamedTuple):
    """A model with samples (one each) and the tensors that are observed."""

    proto: onnx.ModelProto
    feeds: Sequence[Feed]
    observed: tuple[str, ...]


class Graph:
    """A model that is written node by node; every method returns the name of its value."""

    def __init__(self, **inputs: Sequence[int | str | None]) -> None:
        self.inputs = dict(inputs)
        self.types: dict[str, int] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.outputs: list[str] = []

    def add(self, op: str, data: Sequence[str] | str, name: str, **attributes: Any) -> str:
        inputs = [data] if isinstance(data, str) else list(data)
        self.nodes.append(models.node(op, inputs, name, f"n_{name}", **attributes))
        return name

    def constant(self, name: str, values: Any, dtype: Any = None) -> str:
        self.weights[name] = np.asarray(values, dtype)
        return name

    def conv(
        self, data: str, name: str, sizes: tuple[int, int], kernel: Sequence[int] = (3, 3), **attributes: Any
    ) -> str:
        """Convolve from sizes[0] to sizes[1] channels with a bias; padded to the same size where nothing else is said."""
        channels_in, channels_out = sizes
        shape = (channels_out, channels_in // attributes.get("group", 1), *kernel)
        scale = 1.5 / np.sqrt(np.prod(shape[1:]))
        weight = self.constant(f"w_{name}", models.normal(*shape, seed=len(self.nodes), scale=scale))
        bias = self.constant(f"b_{name}", models.normal(channels_out, seed=99 + len(self.nodes)))
        if "auto_pad" not in attributes:
            attributes.setdefault("pads", [k // 2 for k in kernel] * 2)
        return self.add("Conv", [data, weight, bias], name, **attributes)

    def look(self, data: str, channels: int, rank: int = 2) -> str:
        """Observe a value."""
        seen = self.conv(data, f"look_{data}", (channels, 1), (1,) * rank)
        self.outputs.append(seen)
        return seen

    def gemm(self, data: str, name: str, sizes: tuple[int, int]) -> str:
        weight = self.constant(f"w_{name}", models.normal(*sizes, seed=len(self.nodes)))
        self.outputs.append(name)
        return self.add("Gemm", [data, weight], name)

    def matmul(self, data: str, name: str, sizes: tuple[int, int]) -> str:
        weight = self.constant(f"w_{name}", models.normal(*sizes, seed=len(self.nodes)))
        self.outputs.append(name)
        return self.add("MatMul", [data, weight], name)

    def batch_norm(self, data: str, name: str, channels: int) -> str:
        parameters = models.batch_norm_parameters(channels)
        names = [self.constant(f"{key}_{name}", array) for key, array in parameters.items()]
        return self.add("BatchNormalization", [data, *names], name)

    def proto(self, *outputs: str, opset: int = 17) -> onnx.ModelProto:
        inputs = [
            models.value(name, shape, self.types.get(name, TensorProto.FLOAT)) for name, shape in self.inputs.items()
        ]
        results = [self._output(name) for name in [*outputs, *self.outputs]]
        return models.model(self.nodes, inputs, results, self.weights, opset=opset)

    def _output(self, name: str) -> onnx.ValueInfoProto:
        """A value of a shape that nobody declares, unless it is an input as well."""
        if name in self.inputs:
            return models.value(name, self.inputs[name])
        output = onnx.ValueInfoProto(name=name)
        output.type.tensor_type.elem_type = TensorProto.FLOAT
        return output


def images(count: int, *shape: int, seed: int = 0) -> list[Feed]:
    """Feeds of one sample each, of an input 'x'."""
    draw = np.random.default_rng(seed)
    return [{"x": draw.normal(size=(1, *shape)).astype(F32)} for _ in range(count)]


def of_image(channels: int, size: tuple[int, ...], batch: int | str | None = "N") -> Graph:
    return Graph(x=[batch, channels, *size])


CASES: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a builder under its name."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        assert name not in CASES
        CASES[name] = build
        return build

    return register


# --- convolutions of every number of channels --------------------------------------------------------------------


def chain(channels: int, size: tuple[int, int], count: int = 4) -> Case:
    """x -> Conv -> Relu -> Conv, all observed."""
    g = of_image(3, size)
    g.conv("x", "c", (3, channels))
    g.add("Relu", "c", "r")
    g.conv("r", "d", (channels, channels), (1, 1))
    g.look("d", channels)
    return Case(g.proto(), images(count, 3, *size), ("x", "r", "d"))


CHAINS = {
    1: (5, 3), 3: (7, 7), 8: (1, 7), 16: (5, 3), 17: (4, 4), 24: (5, 3), 32: (1, 1), 40: (3, 5), 48: (1, 17), 64: (2, 3),
}  # fmt: skip
for _channels, _size in CHAINS.items():
    CASES[f"chain of {_channels} channels"] = lambda c=_channels, s=_size: chain(c, s)


def convolution(channels: tuple[int, int], size: tuple[int, int], **attributes: Any) -> Case:
    """x -> Conv (pointwise) -> Relu -> the convolution in question -> Relu; its input and outputs are observed."""
    kernel = attributes.pop("kernel", (3, 3))
    g = of_image(5, size)
    g.conv("x", "first", (5, channels[0]), (1, 1))
    g.add("Relu", "first", "r")
    g.conv("r", "c", channels, kernel, **attributes)
    g.look("c", channels[1])
    g.add("Relu", "c", "s")
    g.look("s", channels[1])
    return Case(g.proto(), images(4, 5, *size), ("x", "r", "c", "s"))


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "depthwise of 16": {"channels": (16, 16), "size": (5, 3), "group": 16},
    "depthwise of 24": {"channels": (24, 24), "size": (7, 7), "group": 24},
    "depthwise of 17": {"channels": (17, 17), "size": (3, 3), "group": 17},
    "depthwise with two outputs a channel": {"channels": (16, 32), "size": (3, 3), "group": 16},
    "groups of 16": {"channels": (32, 32), "size": (5, 3), "group": 2},
    "groups of 8": {"channels": (32, 32), "size": (3, 5), "group": 4},
    "groups of 8 to 16": {"channels": (24, 48), "size": (3, 3), "group": 3},
    "groups of 4": {"channels": (16, 16), "size": (3, 3), "group": 4},
    "dilated": {"channels": (16, 24), "size": (7, 7), "dilations": [2, 2], "pads": [2, 2, 2, 2]},
    "dilated depthwise": {"channels": (16, 16), "size": (7, 5), "dilations": [1, 2], "pads": [1, 2, 1, 2], "group": 16},
    "strided with uneven pads": {"channels": (16, 32), "size": (7, 6), "strides": [2, 3], "pads": [0, 1, 2, 1]},
    "strided to one pixel": {"channels": (32, 16), "size": (5, 3), "strides": [5, 3], "pads": [0, 0, 0, 0]},
    "valid to one pixel": {"channels": (16, 40), "size": (3, 3), "pads": [0, 0, 0, 0]},
    "same upper": {"channels": (16, 16), "size": (5, 4), "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "same lower": {"channels": (24, 16), "size": (5, 4), "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    "long kernel": {"channels": (16, 16), "size": (1, 17), "kernel": (1, 7)},
}
for _name, _arguments in CONVOLUTIONS.items():
    CASES[_name] = lambda a=_arguments: convolution(**dict(a))


# --- what follows a convolution ----------------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "relu": ("Relu", {}, ()),
    "relu6": ("Clip", {}, (0.0, 6.0)),
    "above_zero": ("Clip", {}, (0.5, 6.0)),
    "below_zero": ("Clip", {}, (-6.0, -0.25)),
    "sigmoid": ("Sigmoid", {}, ()),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}, ()),
    "tanh": ("Tanh", {}, ()),
    "leaky": ("LeakyRelu", {"alpha": 0.2}, ()),
    "elu": ("Elu", {}, ()),
    "hard_swish": ("HardSwish", {}, ()),
    "softplus": ("Softplus", {}, ()),
    "exp": ("Exp", {}, ()),
    "neg": ("Neg", {}, ()),
}


def activations(channels: int) -> Case:
    """x -> a Conv and an activation behind it, for each activation; all that the activations give is observed."""
    g = of_image(3, (5, 3))
    for name, (op, attributes, bounds) in ACTIVATIONS.items():
        g.conv("x", f"c_{name}", (3, channels))
        limits = [g.constant(f"{name}_{i}", bound, F32) for i, bound in enumerate(bounds)]
        g.add(op, [f"c_{name}", *limits], name, **attributes)
    for name in ACTIVATIONS:
        g.look(name, channels)
    return Case(g.proto(), images(3, 3, 5, 3), ("x", *ACTIVATIONS))


for _channels in (16, 24, 12):
    CASES[f"activations of {_channels} channels"] = lambda c=_channels: activations(c)


def swish(channels: int) -> Case:
    """Conv -> c * sigmoid(c), and c by a hard sigmoid, as mobile networks have it, and by a bounded sum."""
    g = of_image(3, (3, 5))
    g.conv("x", "c", (3, channels))
    g.add("Sigmoid", "c", "gate")
    g.add("Mul", ["c", "gate"], "swish")
    g.conv("swish", "d", (channels, channels), group=channels)
    g.add("HardSigmoid", "d", "hard", alpha=1 / 6, beta=0.5)
    g.add("Mul", ["d", "hard"], "hard_swish")
    g.add("Add", ["d", g.constant("three", 3.0, F32)], "shifted")
    g.add("Clip", ["shifted", g.constant("zero", 0.0, F32), g.constant("six", 6.0, F32)], "bounded")
    g.add("Mul", ["hard_swish", "bounded"], "product")
    g.look("product", channels)
    return Case(g.proto(), images(4, 3, 3, 5), ("x", "swish", "product"))


for _channels in (16, 24):
    CASES[f"swish of {_channels} channels"] = lambda c=_channels: swish(c)


def residual(channels: int, seen: Sequence[str], *, swapped: bool = False, final: str = "Relu") -> Case:
    """s = conv(r) + r, which onnxruntime computes in one node where the convolution alone is not observed."""
    g = of_image(3, (5, 3))
    g.conv("x", "c", (3, channels))
    g.add("Relu", "c", "r")
    g.conv("r", "d", (channels, channels))
    g.add("Add", ["r", "d"] if swapped else ["d", "r"], "s")
    g.add(final, "s", "t")
    for name in seen:
        g.look(name, channels)
    return Case(g.proto("t"), images(4, 3, 5, 3), ("x", "r", *seen))


RESIDUALS: dict[str, tuple[Any, ...]] = {
    "residual, sum observed": (16, ["s"]),
    "residual, both operands and the sum observed": (16, ["d", "s"]),
    "residual, what follows the sum observed": (16, ["t"]),
    "residual, all observed": (24, ["d", "s", "t"]),
    "residual of 24, the end observed": (24, ["t"]),
}
for _name, _given in RESIDUALS.items():
    CASES[_name] = lambda a=_given: residual(*a)
CASES["residual with swapped operands"] = lambda: residual(32, ["s", "t"], swapped=True)
CASES["residual into a sigmoid"] = lambda: residual(24, ["t"], final="Sigmoid")


@case("residuals in a row")
def _() -> Case:
    """Each block adds its input: every buffer could be written over by the next."""
    g, last = of_image(3, (4, 4)), "r0"
    g.conv("x", "c0", (3, 16))
    g.add("Relu", "c0", "r0")
    for i in range(1, 4):
        g.conv(last, f"a{i}", (16, 32), (1, 1))
        g.add("Relu", f"a{i}", f"b{i}")
        g.conv(f"b{i}", f"c{i}", (32, 16), (1, 1))
        last = g.add("Add", [f"c{i}", last], f"r{i}")
    g.look("r3", 16)
    return Case(g.proto("r2"), images(5, 3, 4, 4), ("x", "r0", "b1", "r1", "b2", "r2", "b3", "r3"))


@case("sum of two convolutions, of three, and of one twice")
def _() -> Case:
    g = of_image(3, (3, 3))
    for name in "abc":
        g.conv("x", name, (3, 16))
    g.add("Add", ["a", "b"], "two")
    g.add("Sum", ["a", "b", "c"], "three")
    g.add("Add", ["c", "c"], "twice")
    for name in ("two", "three", "twice"):
        g.look(name, 16)
    return Case(g.proto(), images(3, 3, 3, 3), ("x", "two", "three", "twice"))


@case("sum over another shape")
def _() -> Case:
    """Operands that are stretched: one pixel, one row, one channel, a constant of each channel."""
    g = of_image(3, (4, 3))
    g.conv("x", "a", (3, 16))
    g.add("GlobalAveragePool", "a", "pixel")
    g.add("Add", ["a", "pixel"], "s1")
    g.conv("x", "row", (3, 16), (4, 1), pads=[0, 0, 0, 0])
    g.add("Add", ["row", "a"], "s2")
    g.conv("x", "one", (3, 1))
    g.add("Mul", ["a", "one"], "s3")
    g.add("Mul", ["s2", g.constant("each", models.normal(1, 16, 1, 1))], "s4")
    for name in ("a", "s1", "s3", "s4"):
        g.look(name, 16)
    return Case(g.proto(), images(3, 3, 4, 3), ("x", "a", "s1", "s3", "s4"))


# --- joins, parts, pools and sizes -------------------------------------------------------------------------------


@case("concatenated along channels")
def _() -> Case:
    """Blocked parts of 16 and 32; of 24 and 8, whose blocks do not meet; with the model's own input; of one part twice."""
    g = of_image(3, (5, 3))
    for name, channels in (("a", 16), ("b", 32), ("c", 24), ("d", 8)):
        g.conv("x", f"c_{name}", (3, channels))
        g.add("Sigmoid", f"c_{name}", name)
    joins = {"ab": ("a", "b"), "cd": ("c", "d"), "xa": ("x", "a"), "aa": ("a", "a"), "dab": ("d", "a", "b")}
    channels = {"ab": 48, "cd": 32, "xa": 19, "aa": 32, "dab": 56}
    for name, parts in joins.items():
        g.add("Concat", parts, name, axis=1)
    for name in joins:
        g.look(name, channels[name])
    g.look("a", 16)
    return Case(g.proto(), images(3, 3, 5, 3), ("x", "a", *joins))


@case("concatenated along rows")
def _() -> Case:
    g = of_image(3, (2, 3))
    g.conv("x", "a", (3, 16))
    g.conv("x", "b", (3, 16), (1, 1))
    g.add("Concat", ["a", "b"], "tall", axis=2)
    g.add("Relu", "tall", "r")
    g.look("r", 16)
    return Case(g.proto(), images(3, 3, 2, 3), ("x", "r"))


@case("dense block")
def _() -> Case:
    g = of_image(3, (4, 4))
    g.conv("x", "f0", (3, 16))
    known, channels, observed = ["f0"], 16, ["x"]
    for i in range(1, 4):
        joined = g.add("Concat", list(known), f"j{i}", axis=1) if i > 1 else known[0]
        g.add("Relu", joined, f"r{i}")
        observed.append(f"r{i}")
        known.append(g.conv(f"r{i}", f"f{i}", (channels, 16)))
        channels += 16
    return Case(g.proto("f3"), images(3, 3, 4, 4), tuple(observed))


@case("parts of the channels")
def _() -> Case:
    """Split into halves and uneven parts; a slice; channels shuffled between groups."""
    g = of_image(3, (3, 3))
    g.conv("x", "c", (3, 32))
    g.add("Relu", "c", "r")
    g.nodes.append(models.node("Split", ["r", g.constant("halves", [16, 16])], ["p", "q"], "n_halves", axis=1))
    g.nodes.append(models.node("Split", ["r", g.constant("uneven", [5, 27])], ["u", "v"], "n_uneven", axis=1))
    start, end, axis = (g.constant(name, [value]) for name, value in (("start", 8), ("end", 24), ("axis", 1)))
    g.add("Slice", ["r", start, end, axis], "middle")
    g.add("Reshape", ["r", g.constant("grouped", [0, 2, 16, 3, 3])], "five")
    g.add("Transpose", "five", "turned", perm=[0, 2, 1, 3, 4])
    g.add("Reshape", ["turned", g.constant("back", [0, 32, 3, 3])], "shuffled")
    for name, channels in (("q", 16), ("v", 27), ("middle", 16), ("shuffled", 32)):
        g.look(name, channels)
    return Case(g.proto("p", "u"), images(3, 3, 3, 3), ("x", "q", "v", "middle", "shuffled"))


def pools(channels: int) -> Case:
    """A convolution behind and before each kind of pool."""
    g = of_image(3, (7, 5))
    g.conv("x", "c", (3, channels))
    g.add("Relu", "c", "r")
    g.add("MaxPool", "r", "most", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 1, 0])
    g.add("AveragePool", "r", "mean", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    g.add("AveragePool", "r", "padded", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    g.add("GlobalAveragePool", "r", "global_mean")
    g.add("GlobalMaxPool", "r", "global_most")
    g.add("MaxPool", "r", "up", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    kinds = ("most", "mean", "padded", "global_mean", "global_most", "up")
    for name in kinds:
        g.look(name, channels)
    return Case(g.proto(), images(3, 3, 7, 5), ("x", "r", *kinds))


for _channels in (16, 24, 3):
    CASES[f"pools of {_channels} channels"] = lambda c=_channels: pools(c)


def resized(channels: int) -> Case:
    """Nearest and linear upsampling between convolutions, joined with what was there before the pool (a feature pyramid)."""
    g = of_image(3, (4, 6))
    g.conv("x", "c", (3, channels))
    g.add("MaxPool", "c", "small", kernel_shape=[2, 2], strides=[2, 2])
    g.conv("small", "d", (channels, channels), (1, 1))
    scales = g.constant("scales", [1, 1, 2, 2], F32)
    shared = {"coordinate_transformation_mode": "asymmetric"}
    g.add("Resize", ["d", "", scales], "near", mode="nearest", nearest_mode="floor", **shared)
    g.add("Resize", ["d", "", scales], "linear", mode="linear", coordinate_transformation_mode="half_pixel")
    g.add("Resize", ["d", "", g.constant("odd", [1, 1, 1.5, 2.5], F32)], "odd_size", mode="nearest", **shared)
    g.add("Add", ["near", "c"], "pyramid")
    for name in ("near", "linear", "odd_size", "pyramid"):
        g.look(name, channels)
    return Case(g.proto(), images(3, 3, 4, 6), ("x", "small", "near", "linear", "odd_size", "pyramid"))


for _channels in (16, 24):
    CASES[f"resized, {_channels} channels"] = lambda c=_channels: resized(c)


def squeeze_and_excitation(channels: int, gate: str, *, is_seen: bool) -> Case:
    """A gate of one pixel; what it scales is observed or not."""
    g = of_image(3, (5, 3))
    g.conv("x", "c", (3, channels))
    g.add("Relu", "c", "r")
    g.add("GlobalAveragePool", "r", "pooled")
    g.conv("pooled", "down", (channels, 8), (1, 1))
    g.add("Relu", "down", "down_r")
    g.conv("down_r", "up", (8, channels), (1, 1))
    g.add(gate, "up", "gate")
    g.add("Mul", ["gate", "r"], "scaled")
    g.look("scaled", channels)
    if is_seen:
        g.look("r", channels)
    observed = ("x", *(["r"] if is_seen else []), "pooled", "down_r", "scaled")
    return Case(g.proto(), images(5, 3, 5, 3), observed)


CASES["squeeze and excitation of 16"] = lambda: squeeze_and_excitation(16, "Sigmoid", is_seen=False)
CASES["squeeze and excitation of 40"] = lambda: squeeze_and_excitation(40, "HardSigmoid", is_seen=True)


@case("batch normalization that nothing takes in")
def _() -> Case:
    """Behind Relu, MaxPool and Concat, where no convolution can hold it."""
    g = of_image(3, (5, 3))
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    g.batch_norm("r", "n1", 16)
    g.conv("n1", "d", (16, 24))
    g.add("MaxPool", "d", "m", kernel_shape=[2, 2])
    g.batch_norm("m", "n2", 24)
    g.add("Relu", "n2", "r2")
    g.look("r2", 24)
    return Case(g.proto(), images(3, 3, 5, 3), ("x", "n1", "r2"))


@case("padded, cropped and moved from depth to space")
def _() -> Case:
    g = of_image(3, (4, 3))
    g.conv("x", "c", (3, 16))
    g.add("Pad", ["c", g.constant("pads", [0, 0, 1, 0, 0, 0, 0, 2])], "p")
    g.conv("p", "d", (16, 32), pads=[0, 0, 0, 0])
    g.add("DepthToSpace", "d", "space", blocksize=2)
    g.look("space", 8)
    return Case(g.proto(), images(3, 3, 4, 3), ("x", "p", "space"))


# --- other ranks and other operators -----------------------------------------------------------------------------


@case("one dimension")
def _() -> Case:
    g = of_image(3, (17,))
    g.conv("x", "c", (3, 16), (3,))
    g.add("Relu", "c", "r")
    g.conv("r", "d", (16, 24), (1,))
    g.look("d", 24, rank=1)
    return Case(g.proto(), images(5, 3, 17), ("x", "r", "d"))


@case("three dimensions")
def _() -> Case:
    g = of_image(2, (3, 2, 4))
    g.conv("x", "c", (2, 16), (1, 1, 3))
    g.add("Relu", "c", "r")
    g.conv("r", "d", (16, 16), (1, 1, 1))
    g.look("d", 16, rank=3)
    return Case(g.proto(), images(3, 2, 3, 2, 4), ("x", "r", "d"))


@case("one dimension made of two")
def _() -> Case:
    """A blocked tensor of one row, squeezed and convolved on; and back."""
    g = of_image(3, (1, 9))
    g.conv("x", "c", (3, 16), (1, 3))
    g.add("Squeeze", ["c", g.constant("row", [2])], "s")
    g.conv("s", "d", (16, 16), (3,))
    g.add("Unsqueeze", ["d", g.constant("again", [2])], "u")
    g.conv("u", "e", (16, 16), (1, 1))
    g.look("e", 16)
    return Case(g.proto(), images(4, 3, 1, 9), ("x", "s", "u", "e"))


@case("transposed convolution")
def _() -> Case:
    g = of_image(3, (3, 2))
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    weight = g.constant("w_up", models.normal(16, 24, 2, 2))
    g.add("ConvTranspose", ["r", weight], "up", strides=[2, 2])
    g.add("Sigmoid", "up", "s")
    g.conv("s", "d", (24, 16))
    g.look("d", 16)
    return Case(g.proto(), images(4, 3, 3, 2), ("x", "r", "s", "d"))


@case("flat behind a convolution")
def _() -> Case:
    """Flatten, Reshape, Squeeze and two Transposes of blocked tensors, each in front of a Gemm or MatMul."""
    g = of_image(3, (2, 3))
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    g.add("Flatten", "r", "flat")
    g.gemm("flat", "g1", (96, 4))
    g.add("Reshape", ["r", g.constant("tokens", [0, 16, 6])], "sequence")
    g.matmul("sequence", "g2", (6, 4))
    g.add("GlobalAveragePool", "r", "pooled")
    g.add("Squeeze", ["pooled", g.constant("last", [2, 3])], "vector")
    g.gemm("vector", "g3", (16, 4))
    g.add("Transpose", "r", "channels_last", perm=[0, 2, 3, 1])
    g.matmul("channels_last", "g4", (16, 4))
    g.add("Transpose", "sequence", "turned", perm=[0, 2, 1])
    g.matmul("turned", "g5", (16, 4))
    g.look("r", 16)
    observed = ("x", "r", "flat", "sequence", "vector", "channels_last", "turned")
    return Case(g.proto(), images(4, 3, 2, 3), observed)


@case("channels last")
def _() -> Case:
    """The model's input has its channels at the end; convolutions between two transposes."""
    g = Graph(x=["N", 4, 3, 5])
    g.add("Transpose", "x", "t", perm=[0, 3, 1, 2])
    g.conv("t", "c", (5, 32))
    g.add("Sigmoid", "c", "s")
    g.conv("s", "d", (32, 16), (1, 1))
    g.add("Transpose", "d", "back", perm=[0, 2, 3, 1])
    g.matmul("back", "y", (16, 6))
    return Case(g.proto(), images(4, 4, 3, 5), ("t", "s", "back"))


@case("block of a modern network")
def _() -> Case:
    """Depthwise Conv, layer normalization over channels that lie last, two MatMuls and a residual sum."""
    g = of_image(3, (3, 3))
    g.conv("x", "stem", (3, 16), (1, 1))
    g.conv("stem", "dw", (16, 16), group=16)
    g.add("Transpose", "dw", "last", perm=[0, 2, 3, 1])
    g.add("LayerNormalization", ["last", g.constant("g", np.ones(16, F32))], "normal", axis=-1)
    g.matmul("normal", "wide", (16, 24))
    g.add("Relu", "wide", "wide_r")
    g.matmul("wide_r", "narrow", (24, 16))
    g.add("Transpose", "narrow", "first", perm=[0, 3, 1, 2])
    g.add("Add", ["first", "stem"], "sum")
    g.look("sum", 16)
    return Case(g.proto(), images(4, 3, 3, 3), ("x", "stem", "normal", "wide_r", "sum"))


@case("gemm")
def _() -> Case:
    return Case(models.gemm(), images(5, 4), ("x",))


@case("matmul with bias")
def _() -> Case:
    g = Graph(x=["N", 5, 4])
    g.matmul("x", "m", (4, 6))
    g.add("Relu", "m", "r")
    g.matmul("r", "y", (6, 3))
    return Case(g.proto(), images(5, 5, 4), ("x", "r"))


@case("attention")
def _() -> Case:
    g = Graph(x=["N", 5, 16])
    for name in ("q", "k", "v"):
        g.matmul("x", name, (16, 16))
    g.add("Transpose", "k", "kt", perm=[0, 2, 1])
    g.add("MatMul", ["q", "kt"], "scores")
    g.add("Softmax", "scores", "p", axis=-1)
    g.add("MatMul", ["p", "v"], "mixed")
    g.matmul("mixed", "y", (16, 4))
    return Case(g.proto(), images(4, 5, 16), ("x", "mixed"))


# --- batches and axes --------------------------------------------------------------------------------------------


def with_batch(batch: int | str | None, count: int = 5) -> Case:
    g = of_image(3, (5, 3), batch)
    g.conv("x", "c", (3, 16))
    g.add("Sigmoid", "c", "s")
    g.conv("s", "d", (16, 24))
    g.add("Relu", "d", "r")
    g.look("r", 24)
    return Case(g.proto(), images(count, 3, 5, 3), ("x", "s", "r"))


CASES["batch fixed at 1"] = lambda: with_batch(1)
CASES["batch fixed at 4"] = lambda: with_batch(4, 6)
CASES["batch without a name"] = lambda: with_batch(None)


@case("images of many sizes")
def _() -> Case:
    g = Graph(x=["N", 3, "H", "W"])
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    g.conv("r", "d", (16, 24), strides=[2, 2])
    g.add("Sigmoid", "d", "s")
    g.look("s", 24)
    g.add("GlobalAveragePool", "s", "pooled")
    g.add("Flatten", "pooled", "flat")
    g.gemm("flat", "y", (24, 3))
    sizes = [(4, 4), (5, 3), (5, 3), (5, 3), (1, 1), (4, 4), (1, 7)]
    feeds = [images(1, 3, *size, seed=i)[0] for i, size in enumerate(sizes)]
    return Case(g.proto(), feeds, ("x", "r", "s", "flat"))


@case("all axes unnamed")
def _() -> Case:
    g = Graph(x=[None, None, None, None])
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    g.look("r", 16)
    return Case(g.proto(), images(4, 3, 3, 4), ("x", "r"))


@case("frames that share the axis of samples")
def _() -> Case:
    """x [N,2,3,3,4] -> [N*2,3,3,4] -> Conv: a sample is two images of a blocked tensor."""
    g = Graph(x=["N", 2, 3, 3, 4])
    g.add("Reshape", ["x", g.constant("merged", [-1, 3, 3, 4])], "m")
    g.conv("m", "c", (3, 16))
    g.add("Sigmoid", "c", "s")
    g.conv("s", "d", (16, 24))
    g.add("Relu", "d", "r")
    g.look("r", 24)
    g.add("GlobalAveragePool", "r", "pooled")
    g.add("Reshape", ["pooled", g.constant("rows", [-1, 24])], "rows_of_frames")
    g.gemm("rows_of_frames", "y", (24, 3))
    return Case(g.proto(), images(5, 2, 3, 3, 4), ("m", "s", "r", "rows_of_frames"))


@case("tokens that share the axis of samples")
def _() -> Case:
    return Case(models.merged_axes(), images(5, 5, 4), ("f",))


@case("samples on the second axis")
def _() -> Case:
    feeds = [{"x": models.normal(1, 4, seed=i), "state": models.normal(2, 1, 6, seed=50 + i)} for i in range(5)]
    return Case(models.sample_axis_1(), feeds, ("x", "state"))


@case("a value that no sample changes")
def _() -> Case:
    """A constant of 16 channels goes through its own convolution; it is scaled by a number that the graph computes."""
    g = of_image(3, (4, 4))
    g.conv("x", "free", (3, 16))
    g.add("Shape", "x", "sizes")
    g.add("Slice", ["sizes", g.constant("one", [1]), g.constant("two", [2])], "channels")
    g.add("Cast", "channels", "number", to=TensorProto.FLOAT)
    g.add("Mul", [g.constant("seed", models.normal(1, 16, 4, 4)), "number"], "fixed")
    g.conv("fixed", "c", (16, 16))
    g.add("Sigmoid", "c", "gate")
    g.look("gate", 16)
    g.add("Mul", ["free", "gate"], "product")
    g.look("product", 16)
    return Case(g.proto(), images(5, 3, 4, 4), ("x", "fixed", "gate", "product"))


@case("samples that see one another")
def _() -> Case:
    """The mean over the batch is taken off: alone, every sample is zero behind it."""
    g = of_image(3, (3, 3))
    g.conv("x", "c", (3, 16))
    g.add("Sigmoid", "c", "s")
    g.add("ReduceMean", "s", "mean", axes=[0], keepdims=1)
    g.add("Sub", ["s", "mean"], "centred")
    g.look("s", 16)
    g.look("centred", 16)
    return Case(g.proto(), images(5, 3, 3, 3), ("x", "s", "centred"))


@case("a model that takes one sample only")
def _() -> Case:
    g = Graph(x=["N", 36])
    g.add("Reshape", ["x", g.constant("shape", [1, 4, 3, 3])], "image")
    g.conv("image", "c", (4, 16))
    g.add("Relu", "c", "r")
    g.look("r", 16)
    return Case(g.proto(), images(4, 36), ("image", "r"))


@case("a batch changes last bits")
def _() -> Case:
    """A mean over tokens that come from a convolution; onnxruntime adds them in another order where there is one sample."""
    g = of_image(3, (5, 3))
    g.conv("x", "c", (3, 24))
    g.add("Relu", "c", "r")
    g.look("r", 24)
    g.add("Reshape", ["r", g.constant("tokens", [0, 24, 15])], "sequence")
    g.add("Transpose", "sequence", "turned", perm=[0, 2, 1])
    g.matmul("turned", "mixed", (24, 24))
    g.add("ReduceMean", "mixed", "mean", axes=[1], keepdims=0)
    g.gemm("mean", "y", (24, 3))
    return Case(g.proto(), images(5, 3, 5, 3), ("x", "r", "turned", "mean"))


@case("channels on the last axis of a blocked tensor")
def _() -> Case:
    """A MatMul reads the rows of a convolution's output before a convolution does, so that its channels are its columns."""
    g = of_image(3, (5, 3))
    g.conv("x", "c", (3, 16))
    g.add("Sigmoid", "c", "s")
    g.matmul("s", "rows", (3, 3))
    g.conv("s", "d", (16, 32))
    g.add("Add", ["d", "d"], "twice")
    g.matmul("twice", "more_rows", (3, 2))
    g.look("twice", 32)
    return Case(g.proto(), images(4, 3, 5, 3), ("x", "s", "twice"))


@case("a branch that reads a blocked tensor")
def _() -> Case:
    """An If whose branches read the output of a convolution; what it gives is convolved on, and which it takes changes."""
    g = of_image(3, (3, 3))
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    g.add("ReduceMean", "x", "level", keepdims=0)
    g.add("Greater", ["level", g.constant("zero", 0.0, F32)], "is_high")
    branches = [
        onnx.helper.make_graph([models.node(op, ["r"], name, f"n_{name}")], name, [], [models.value(name, [None] * 4)])
        for op, name in (("Sigmoid", "high"), ("Neg", "low"))
    ]
    g.add("If", "is_high", "chosen", then_branch=branches[0], else_branch=branches[1])
    g.conv("chosen", "d", (16, 16))
    g.look("d", 16)
    g.look("r", 16)
    return Case(g.proto(), images(6, 3, 3, 3), ("x", "r", "chosen", "d"))


@case("samples without elements")
def _() -> Case:
    g = Graph(x=["N", "T", 4])
    g.matmul("x", "m", (4, 6))
    g.add("Relu", "m", "r")
    g.matmul("r", "y", (6, 3))
    return Case(g.proto(), [images(1, size, 4, seed=size)[0] for size in (3, 0, 2, 3)], ("x", "r"))


@case("an old operator set")
def _() -> Case:
    """Clip and Pad with attributes, Upsample, BatchNormalization that a convolution takes in."""
    g = of_image(3, (3, 2))
    g.conv("x", "c", (3, 16))
    g.batch_norm("c", "n", 16)
    g.add("Clip", "n", "k", min=0.25, max=6.0)
    g.conv("k", "d", (16, 24))
    g.add("Upsample", ["d", g.constant("scales", [1, 1, 2, 2], F32)], "u", mode="nearest")
    g.add("Pad", "u", "p", mode="constant", pads=[0, 0, 0, 1, 0, 0, 1, 0], value=0.5)
    g.look("p", 24)
    return Case(g.proto(opset=9), images(4, 3, 3, 2), ("x", "k", "p"))


# --- names, inputs, outputs and types ----------------------------------------------------------------------------


@case("observed tensors that are outputs as well")
def _() -> Case:
    g = of_image(3, (5, 3))
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    g.conv("r", "d", (16, 24))
    g.look("d", 24)
    return Case(g.proto("c", "r", "d", "x"), images(4, 3, 5, 3), ("x", "r", "d"))


@case("one tensor of two convolutions")
def _() -> Case:
    g = of_image(3, (5, 3))
    g.conv("x", "c", (3, 24))
    g.add("Tanh", "c", "t")
    g.conv("t", "a", (24, 16), strides=[2, 1])
    g.conv("t", "b", (24, 16), (1, 1), strides=[2, 1])
    g.add("Add", ["a", "b"], "s")
    g.look("s", 16)
    g.add("AveragePool", "t", "mean", kernel_shape=[2, 2])
    return Case(g.proto("mean"), images(4, 3, 5, 3), ("x", "t", "s"))


@case("shared weights")
def _() -> Case:
    g = of_image(16, (3, 3))
    weight, bias = g.constant("w", models.normal(16, 16, 3, 3, scale=0.1)), g.constant("b", models.normal(16))
    for number, data in enumerate(("x", "c0", "c1")):
        g.add("Conv", [data, weight, bias], f"c{number}", pads=[1, 1, 1, 1])
    g.look("c2", 16)
    return Case(g.proto(), images(4, 16, 3, 3), ("x", "c0", "c1", "c2"))


@case("names that look made")
def _() -> Case:
    """Values that are called as onnxruntime calls what it makes of them."""
    g, last, observed = of_image(3, (4, 3)), "x", ["x"]
    names = ["c", "c_nchwc", "c_blocked", "/a/b c", "reorder", "ReorderOutput", "c:0", "c_token_0"]
    for i, name in enumerate(names):
        g.conv(last, f"{name}.sum", (3 if i == 0 else 16, 16), (1, 1))
        last = g.add("Tanh" if i % 2 else "Relu", f"{name}.sum", name)
        observed.append(last)
    g.nodes[0].name, g.nodes[2].name = "n_c_nchwc.sum_nchwc", "ReorderOutput"
    g.look(last, 16)
    return Case(g.proto("c_nchwc", "reorder"), images(3, 3, 4, 3), tuple(observed))


@case("views of the input")
def _() -> Case:
    """The input, and values that onnxruntime may place where it lies: flat, of other axes, behind an Identity."""
    g = of_image(16, (2, 3))
    g.conv("x", "c", (16, 16))
    g.add("Flatten", "x", "flat")
    g.gemm("flat", "y", (96, 4))
    g.add("Reshape", ["x", g.constant("shape", [0, 16, 1, 6])], "long")
    g.look("long", 16)
    g.add("Relu", "c", "r")
    g.add("Reshape", ["r", g.constant("again", [0, 16, 3, 2])], "view")
    g.look("view", 16)
    g.look("r", 16)
    return Case(g.proto(), images(5, 16, 2, 3), ("x", "flat", "long", "r", "view"))


@case("two images")
def _() -> Case:
    g = Graph(x=["N", 3, 4, 3], z=["N", 16, 2, 3])
    g.conv("x", "c", (3, 16), strides=[2, 1])
    g.conv("z", "d", (16, 16))
    g.add("Add", ["c", "d"], "s")
    g.add("Concat", ["s", "z"], "j", axis=1)
    g.look("s", 16)
    g.look("j", 32)
    draw = np.random.default_rng(8)
    shapes = {"x": (1, 3, 4, 3), "z": (1, 16, 2, 3)}
    feeds = [{name: draw.normal(size=shape).astype(F32) for name, shape in shapes.items()} for _ in range(5)]
    return Case(g.proto(), feeds, ("x", "z", "s", "j"))


@case("an image and a number")
def _() -> Case:
    g = Graph(x=["N", 3, 3, 3], level=["N", 1, 1, 1])
    g.conv("x", "c", (3, 16))
    g.add("Mul", ["c", "level"], "m")
    g.add("Relu", "m", "r")
    g.look("r", 16)
    feeds = [{**feed, "level": np.full((1, 1, 1, 1), 0.5 + i, F32)} for i, feed in enumerate(images(4, 3, 3, 3))]
    return Case(g.proto(), feeds, ("x", "r"))


@case("integers in front")
def _() -> Case:
    """Rows of a table, turned and convolved."""
    g = Graph(ids=["N", 12])
    g.types["ids"] = TensorProto.INT64
    g.add("Gather", [g.constant("table", models.normal(10, 16)), "ids"], "e")
    g.add("Transpose", "e", "t", perm=[0, 2, 1])
    g.add("Reshape", ["t", g.constant("image", [0, 16, 3, 4])], "i")
    g.conv("i", "c", (16, 16))
    g.add("Relu", "c", "r")
    g.look("r", 16)
    feeds = [{"ids": np.random.default_rng(i).integers(0, 10, (1, 12))} for i in range(4)]
    return Case(g.proto(), feeds, ("i", "r"))


def halved(proto: onnx.ModelProto, feeds: Sequence[Feed]) -> tuple[onnx.ModelProto, list[Feed]]:
    """The same model in float16."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for info in [*copy.graph.input, *copy.graph.output]:
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return copy, [{name: array.astype(np.float16) for name, array in feed.items()} for feed in feeds]


@case("float16")
def _() -> Case:
    whole = chain(16, (5, 3))
    return Case(*halved(whole.proto, whole.feeds), whole.observed)


@case("float16 with a residual sum")
def _() -> Case:
    whole = residual(24, ["s", "t"], final="Sigmoid")
    return Case(*halved(whole.proto, whole.feeds), whole.observed)


@case("float16 and float32")
def _() -> Case:
    """A float32 network whose second half computes in float16."""
    g = of_image(3, (4, 3))
    g.conv("x", "c", (3, 16))
    g.add("Relu", "c", "r")
    g.look("r", 16)
    g.add("Cast", "r", "half", to=TensorProto.FLOAT16)
    g.conv("half", "d", (16, 16))
    for name in ("w_d", "b_d"):
        g.weights[name] = g.weights[name].astype(np.float16)
    g.add("Sigmoid", "d", "s")
    g.add("Cast", "s", "full", to=TensorProto.FLOAT)
    g.look("full", 16)
    return Case(g.proto(), images(4, 3, 4, 3), ("x", "r", "half", "full"))


# --- values ------------------------------------------------------------------------------------------------------

EDGES = [
    0.0, -0.0, 1.4e-45, -1.4e-45, 1e-40, -3e-39, 1.1754944e-38, 1e-30, 65504.0, -1e30, 1e37, -1e37, 0.5, -1.0, 3.25, 1e-8,
]  # fmt: skip


@case("values of every size")
def _() -> Case:
    """Zeros of both signs, denormals and huge values, passed on by a depthwise Conv of weight one, a Relu, a Neg and a pool."""
    g = of_image(16, (2, 3))
    ones = g.constant("ones", np.ones((16, 1, 1, 1), F32))
    g.add("Conv", ["x", ones], "c", group=16)
    g.look("c", 16)
    g.add("Relu", "c", "r")
    g.look("r", 16)
    g.add("Neg", "r", "n")
    g.look("n", 16)
    g.add("MaxPool", "n", "m", kernel_shape=[2, 2])
    g.look("m", 16)
    draw = np.random.default_rng(4)
    feeds: list[Feed] = [{"x": draw.choice(np.array(EDGES, F32), (1, 16, 2, 3))} for _ in range(5)]
    return Case(g.proto(), feeds, ("x", "c", "r", "n", "m"))


@case("zeros only")
def _() -> Case:
    whole = chain(16, (3, 3))
    return Case(whole.proto, [{"x": np.zeros((1, 3, 3, 3), F32)}, *whole.feeds[:2]], whole.observed)


def stacked(feeds: Sequence[Mapping[str, Array]]) -> Feed:
    """All samples of feeds along their first axis."""
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
