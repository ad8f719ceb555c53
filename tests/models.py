"""Small ONNX models for tests, built with onnx.helper: each shows one thing, weights come from a fixed seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Dims = Sequence[int | str | None]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, scale: float = 0.3) -> Array:
    return (rng(seed).standard_normal(shape) * scale).astype(np.float32)


def value(name: str, shape: Dims, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def node(
    op: str, inputs: Sequence[str], outputs: str | Sequence[str], name: str = "", **attributes: Any
) -> onnx.NodeProto:
    outs = [outputs] if isinstance(outputs, str) else list(outputs)
    return helper.make_node(op, list(inputs), outs, name=name, **attributes)


def constant_node(output: str, array: Array, name: str = "") -> onnx.NodeProto:
    return helper.make_node("Constant", [], [output], name=name, value=numpy_helper.from_array(array))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    extra_opsets: Mapping[str, int] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """A model proto; nothing is checked, so that broken models can be built as well."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in (extra_opsets or {}).items()]
    proto = helper.make_model(graph, opset_imports=opsets, producer_name="tests", ir_version=ir_version)
    helper.set_model_props(proto, dict(metadata or {}))
    return proto


def save(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def run(
    proto: onnx.ModelProto | Path | bytes, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> list[Array]:
    """Outputs of onnxruntime with graph optimizations off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if isinstance(proto, onnx.ModelProto):
        proto = proto.SerializeToString()
    source = str(proto) if isinstance(proto, Path) else proto
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None if outputs is None else list(outputs), dict(feeds))
    return found


def batch_norm_parameters(channels: int, seed: int = 7) -> dict[str, Array]:
    draw = rng(seed)
    return {
        "gamma": draw.uniform(0.5, 1.5, channels).astype(np.float32),
        "beta": draw.normal(0, 0.3, channels).astype(np.float32),
        "mean": draw.normal(0, 0.3, channels).astype(np.float32),
        "var": draw.uniform(0.3, 2.0, channels).astype(np.float32),
    }


def conv_relu(
    channels_in: int = 3,
    channels_out: int = 4,
    *,
    size: int = 8,
    bias: bool = True,
    batch: int | str = "N",
    **attributes: Any,
) -> onnx.ModelProto:
    """x [N,Cin,H,W] -> Conv 'conv' (w, b; 3x3, padded) -> Relu 'relu' -> y."""
    attributes.setdefault("pads", [1, 1, 1, 1])
    initializers = {"w": normal(channels_out, channels_in, 3, 3)}
    if bias:
        initializers["b"] = normal(channels_out, seed=1)
    inputs = ["x", "w", "b"] if bias else ["x", "w"]
    nodes = [node("Conv", inputs, "c", "conv", **attributes), node("Relu", ["c"], "y", "relu")]
    return model(
        nodes,
        [value("x", [batch, channels_in, size, size])],
        [value("y", [batch, channels_out, None, None])],
        initializers,
    )


def fixed_batch(batch: int = 2) -> onnx.ModelProto:
    """conv_relu whose batch axis is a number."""
    return conv_relu(batch=batch)


def dynamic_shapes() -> onnx.ModelProto:
    """x [N,3,H,W] with symbolic H and W -> Conv -> Relu -> y."""
    proto = conv_relu()
    proto.graph.input[0].CopyFrom(value("x", ["N", 3, "H", "W"]))
    return proto


def conv1d(channels_in: int = 3, channels_out: int = 4, *, length: int = 16) -> onnx.ModelProto:
    """x [N,Cin,L] -> Conv 'conv' with a kernel of rank 1 -> y."""
    nodes = [node("Conv", ["x", "w", "b"], "y", "conv", pads=[1, 1])]
    initializers = {"w": normal(channels_out, channels_in, 3), "b": normal(channels_out, seed=1)}
    return model(nodes, [value("x", ["N", channels_in, length])], [value("y", ["N", channels_out, None])], initializers)


def conv3d(*, dilations: Sequence[int] = (1, 1, 1)) -> onnx.ModelProto:
    """x [N,2,7,8,8] -> Conv 'conv' with a kernel of rank 3 -> y."""
    nodes = [node("Conv", ["x", "w", "b"], "y", "conv", dilations=list(dilations))]
    initializers = {"w": normal(3, 2, 3, 3, 3), "b": normal(3, seed=1)}
    return model(nodes, [value("x", ["N", 2, 7, 8, 8])], [value("y", ["N", 3, None, None, None])], initializers)


def depthwise(channels: int = 4, *, size: int = 8, opset: int = 17) -> onnx.ModelProto:
    """x -> depthwise Conv 'dw' -> Relu -> pointwise Conv 'pw' -> y."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], "d", "dw", pads=[1, 1, 1, 1], group=channels),
        node("Relu", ["d"], "r", "relu"),
        node("Conv", ["r", "w2", "b2"], "y", "pw"),
    ]
    initializers = {
        "w1": normal(channels, 1, 3, 3), "b1": normal(channels, seed=1),
        "w2": normal(6, channels, 1, 1, seed=2), "b2": normal(6, seed=3),
    }  # fmt: skip
    return model(
        nodes, [value("x", ["N", channels, size, size])], [value("y", ["N", 6, size, size])], initializers, opset=opset
    )


def conv_bn(
    channels_in: int = 3, channels_out: int = 4, *, bias: bool = False, groups: int = 1, opset: int = 17
) -> onnx.ModelProto:
    """x -> Conv 'conv' -> BatchNormalization 'bn' -> Relu 'relu' -> y."""
    initializers = {"w": normal(channels_out, channels_in // groups, 3, 3), **batch_norm_parameters(channels_out)}
    inputs = ["x", "w"]
    if bias:
        initializers["b"] = normal(channels_out, seed=1)
        inputs.append("b")
    nodes = [
        node("Conv", inputs, "c", "conv", group=groups),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], "n", "bn", epsilon=1e-3),
        node("Relu", ["n"], "y", "relu"),
    ]
    return model(
        nodes,
        [value("x", ["N", channels_in, 8, 8])],
        [value("y", ["N", channels_out, 6, 6])],
        initializers,
        opset=opset,
    )


def conv_transpose(
    channels_in: int = 4, channels_out: int = 6, *, groups: int = 1, bn: bool = False, bias: bool = True
) -> onnx.ModelProto:
    """x -> ConvTranspose 'up' (weight [Cin, Cout/g, 2, 2]) [-> BatchNormalization 'bn'] -> y."""
    initializers = {"w": normal(channels_in, channels_out // groups, 2, 2)}
    inputs = ["x", "w"]
    if bias:
        initializers["b"] = normal(channels_out, seed=1)
        inputs.append("b")
    nodes = [node("ConvTranspose", inputs, "c" if bn else "y", "up", group=groups, strides=[2, 2])]
    if bn:
        initializers |= batch_norm_parameters(channels_out)
        nodes.append(node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], "y", "bn"))
    return model(nodes, [value("x", ["N", channels_in, 5, 5])], [value("y", ["N", channels_out, 10, 10])], initializers)


def gemm(
    *,
    trans_a: int = 0,
    trans_b: int = 0,
    bias: bool = True,
    bias_shape: Sequence[int] = (6,),
    alpha: float = 1.0,
    beta: float = 1.0,
) -> onnx.ModelProto:
    """x [N,4] (or [4,N] for trans_a) -> Gemm 'gemm' 4 -> 6 -> y."""
    initializers = {"w": normal(6, 4) if trans_b else normal(4, 6)}
    inputs = ["x", "w"]
    if bias:
        initializers["b"] = normal(*bias_shape, seed=1)
        inputs.append("b")
    nodes = [node("Gemm", inputs, "y", "gemm", transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)]
    return model(nodes, [value("x", [4, "N"] if trans_a else ["N", 4])], [value("y", ["N", 6])], initializers)


def matmul_add(*, bias_first: bool = False, bias_shape: Sequence[int] = (6,), rank: int = 3) -> onnx.ModelProto:
    """x [N,5,4] (or [N,4]) -> MatMul 'matmul' by w [4,6] -> Add 'add' of b -> Relu 'relu' -> y."""
    middle = [5] if rank == 3 else []
    nodes = [
        node("MatMul", ["x", "w"], "m", "matmul"),
        node("Add", ["b", "m"] if bias_first else ["m", "b"], "a", "add"),
        node("Relu", ["a"], "y", "relu"),
    ]
    initializers = {"w": normal(4, 6), "b": normal(*bias_shape, seed=1)}
    return model(nodes, [value("x", ["N", *middle, 4])], [value("y", ["N", *middle, 6])], initializers)


def matmul() -> onnx.ModelProto:
    """x [N,4] -> MatMul 'matmul' by w [4,6] -> y, without bias."""
    return model(
        [node("MatMul", ["x", "w"], "y", "matmul")], [value("x", ["N", 4])], [value("y", ["N", 6])], {"w": normal(4, 6)}
    )


def batched_matmul() -> onnx.ModelProto:
    """x [N, 3, 5, 4] -> MatMul 'matmul' with a constant [3, 4, 6], one matrix a head -> Relu 'relu' -> y."""
    nodes = [node("MatMul", ["x", "w"], "m", "matmul"), node("Relu", ["m"], "y", "relu")]
    inputs, outputs = [value("x", ["N", 3, 5, 4])], [value("y", ["N", 3, 5, 6])]
    return model(nodes, inputs, outputs, {"w": normal(3, 4, 6)})


def average_pool(**attributes: Any) -> onnx.ModelProto:
    """x [N,3,8,8] -> AveragePool 'pool' (2x2, stride 2) -> y."""
    settings = {"kernel_shape": [2, 2], "strides": [2, 2], **attributes}
    return model(
        [node("AveragePool", ["x"], "y", "pool", **settings)],
        [value("x", ["N", 3, 8, 8])],
        [value("y", ["N", 3, None, None])],
    )


def two_inputs() -> onnx.ModelProto:
    """x [N,3,8,8] -> Conv 'conv_x'; z [N,3,8,8] -> Conv 'conv_z'; Add 'sum' -> y."""
    nodes = [
        node("Conv", ["x", "w1"], "cx", "conv_x"),
        node("Conv", ["z", "w2"], "cz", "conv_z"),
        node("Add", ["cx", "cz"], "y", "sum"),
    ]
    initializers = {"w1": normal(4, 3, 3, 3), "w2": normal(4, 3, 3, 3, seed=5)}
    inputs = [value("x", ["N", 3, 8, 8]), value("z", ["N", 3, 8, 8])]
    return model(nodes, inputs, [value("y", ["N", 4, 6, 6])], initializers)


def integer_input() -> onnx.ModelProto:
    """ids [N,5] int64 -> Gather 'embed' from table [10,4] -> MatMul 'matmul' -> y [N,5,6]."""
    nodes = [node("Gather", ["table", "ids"], "e", "embed"), node("MatMul", ["e", "w"], "y", "matmul")]
    initializers = {"table": normal(10, 4), "w": normal(4, 6, seed=2)}
    return model(nodes, [value("ids", ["N", 5], TensorProto.INT64)], [value("y", ["N", 5, 6])], initializers)


def shared_weight() -> onnx.ModelProto:
    """Conv 'first' and Conv 'second' use one weight 'w' and one bias 'b'; a value is called 'b0'."""
    nodes = [
        node("Conv", ["x", "w", "b"], "b0", "first", pads=[1, 1, 1, 1]),
        node("Relu", ["b0"], "r", "relu"),
        node("Conv", ["r", "w", "b"], "y", "second", pads=[1, 1, 1, 1]),
    ]
    initializers = {"w": normal(3, 3, 3, 3), "b": normal(3, seed=1)}
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 3, 8, 8])], initializers)


def tied_embedding() -> onnx.ModelProto:
    """ids -> Gather 'embed' from 'table' [6,6]; y = MatMul 'matmul' of the rows by the same table."""
    nodes = [node("Gather", ["table", "ids"], "e", "embed"), node("MatMul", ["e", "table"], "y", "matmul")]
    return model(nodes, [value("ids", ["N", 5], TensorProto.INT64)], [value("y", ["N", 5, 6])], {"table": normal(6, 6)})


def constant_weights(*, opset: int = 12) -> onnx.ModelProto:
    """conv_bn with every parameter in a nameless Constant node and no initializer (as Paddle writes it)."""
    parameters = {"w": normal(4, 3, 3, 3), "b": normal(4, seed=1), **batch_norm_parameters(4)}
    nodes = [constant_node(name, array) for name, array in parameters.items()]
    nodes += [
        node("Conv", ["x", "w", "b"], "c", "conv"),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], "n", "bn"),
        node("Relu", ["n"], "y", "relu"),
    ]
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 4, 6, 6])], opset=opset)


def weight_behind(op: str) -> onnx.ModelProto:
    """x [N,4] -> MatMul 'matmul' whose weight [4,6] comes through `op` of a constant."""
    weight = normal(4, 6)
    initializers: dict[str, Array] = {"source": weight}
    attributes: dict[str, Any] = {}
    inputs = ["source"]
    if op == "Transpose":
        initializers["source"], attributes = np.ascontiguousarray(weight.T), {"perm": [1, 0]}
    elif op == "Cast":
        initializers["source"], attributes = weight.astype(np.float16), {"to": TensorProto.FLOAT}
    elif op == "Squeeze":
        initializers |= {"source": weight[None], "axes": np.array([0])}
        inputs.append("axes")
    elif op == "Unsqueeze":
        initializers |= {"source": weight[0], "axes": np.array([1])}
        inputs.append("axes")
    elif op == "Reshape":
        initializers |= {"source": weight.reshape(-1), "axes": np.array([4, 6])}
        inputs.append("axes")
    columns = 1 if op == "Unsqueeze" else 6
    rows = 6 if op == "Unsqueeze" else 4
    nodes = [node(op, inputs, "w", "maker", **attributes), node("MatMul", ["x", "w"], "y", "matmul")]
    return model(nodes, [value("x", ["N", rows])], [value("y", ["N", columns])], initializers)


def bias_behind_identity() -> onnx.ModelProto:
    """Two Conv whose biases are Identity nodes of one initializer."""
    nodes = [
        node("Identity", ["b"], "b1", "id1"),
        node("Identity", ["b"], "b2", "id2"),
        node("Conv", ["x", "w1", "b1"], "c", "first"),
        node("Conv", ["c", "w2", "b2"], "y", "second"),
    ]
    initializers = {"w1": normal(3, 3, 3, 3), "w2": normal(3, 3, 3, 3, seed=4), "b": normal(3, seed=1)}
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 3, 4, 4])], initializers)


def weights_as_inputs() -> onnx.ModelProto:
    """conv_relu whose initializers are listed as graph inputs too, in the manner of IR version 3."""
    proto = conv_relu()
    proto.ir_version = 3
    proto.opset_import[0].version = 8
    proto.graph.input.extend([value("w", [4, 3, 3, 3]), value("b", [4])])
    return proto


def nameless() -> onnx.ModelProto:
    """Conv, Relu, Conv, Gemm without names, one Relu already called 'Conv_0', two nodes called 'twin' (onnxruntime refuses that)."""
    nodes = [
        node("Conv", ["x", "w1"], "a"),
        node("Relu", ["a"], "b", "Conv_0"),
        node("Conv", ["b", "w2"], "c"),
        node("Relu", ["c"], "d", "twin"),
        node("Sigmoid", ["d"], "e", "twin"),
        node("Flatten", ["e"], "f"),
        node("Gemm", ["f", "w3"], "y"),
    ]
    initializers = {"w1": normal(4, 3, 3, 3), "w2": normal(2, 4, 3, 3, seed=2), "w3": normal(32, 5, seed=3)}
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 5])], initializers)


def if_model() -> onnx.ModelProto:
    """Layers lie inside an If on the scalar int64 input 'sr' (as in silero): Conv 'conv' in both branches, other weights."""
    inner_out = value("branch_out", [None, None, None, None])

    def branch(name: str, seed: int) -> onnx.GraphProto:
        weight = numpy_helper.from_array(normal(4, 3, 3, 3, seed=seed), "w")
        nodes = [
            constant_node("three", np.array(0.5, np.float32)),
            node("Mul", ["x", "three"], "scaled", "scale"),
            node("Conv", ["scaled", "w"], "features", "conv"),
            node("Relu", ["features"], "branch_out", "relu"),
        ]
        return helper.make_graph(nodes, name, [], [inner_out], [weight])

    nodes = [
        constant_node("rate", np.array(16000, np.int64), "rate"),
        node("Equal", ["sr", "rate"], "is_16k", "equal"),
        node("If", ["is_16k"], "features", "choose", then_branch=branch("then", 1), else_branch=branch("else", 2)),
        node("Sigmoid", ["features"], "y", "sigmoid"),
    ]
    inputs = [value("x", ["N", 3, 8, 8]), value("sr", [], TensorProto.INT64)]
    return model(nodes, inputs, [value("y", ["N", 4, 6, 6])])


def sample_axis_1() -> onnx.ModelProto:
    """x [N,4] and state [2,N,6]: y = MatMul 'matmul' of x plus state[0]; state_out [2,N,6] = MatMul 'state_matmul' of state."""
    nodes = [
        node("MatMul", ["x", "w"], "m", "matmul"),
        node("Gather", ["state", "zero"], "s", "gather", axis=0),
        node("Add", ["m", "s"], "y", "add"),
        node("MatMul", ["state", "w2"], "state_out", "state_matmul"),
    ]
    initializers = {"w": normal(4, 6), "w2": normal(6, 6, seed=2), "zero": np.array(0, np.int64)}
    inputs = [value("x", ["N", 4]), value("state", [2, "N", 6])]
    return model(nodes, inputs, [value("y", ["N", 6]), value("state_out", [2, "N", 6])], initializers)


def merged_axes() -> onnx.ModelProto:
    """x [N,5,4] -> Reshape to [-1,4] -> Gemm 'gemm' -> Reshape to [-1,5,6] -> y: batch and tokens share an axis."""
    nodes = [
        node("Reshape", ["x", "flat"], "f", "merge"),
        node("Gemm", ["f", "w", "b"], "g", "gemm"),
        node("Reshape", ["g", "split"], "y", "split"),
    ]
    initializers = {
        "flat": np.array([-1, 4]), "split": np.array([-1, 5, 6]), "w": normal(4, 6), "b": normal(6, seed=1),
    }  # fmt: skip
    return model(nodes, [value("x", ["N", 5, 4])], [value("y", ["N", 5, 6])], initializers)


def constant_activation() -> onnx.ModelProto:
    """Conv 'free' sees x; MatMul 'fixed' sees a value that does not depend on the data (a constant expanded to the number of channels)."""
    nodes = [
        node("Conv", ["x", "w"], "c", "free"),
        node("Shape", ["x"], "sizes", "sizes"),
        node("Slice", ["sizes", "one", "two"], "channels", "channels"),
        node("Expand", ["seed", "channels"], "row", "row"),
        node("Unsqueeze", ["row", "zero"], "rows", "rows"),
        node("MatMul", ["rows", "w2"], "m", "fixed"),
        node("ReduceSum", ["m"], "total", "total", keepdims=0),
        node("Add", ["c", "total"], "y", "add"),
    ]
    initializers = {
        "w": normal(4, 3, 3, 3), "seed": np.array([0.5], np.float32), "one": np.array([1]), "two": np.array([2]),
        "zero": np.array([0]), "w2": normal(3, 6, seed=2),
    }  # fmt: skip
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 4, 6, 6])], initializers)


def attention(*, tokens: int = 5, width: int = 4) -> onnx.ModelProto:
    """q, k, v = MatMul of x by constants; MatMul 'scores' and 'mix' have two variable inputs."""
    nodes = [
        node("MatMul", ["x", "wq"], "q", "query"),
        node("MatMul", ["x", "wk"], "k", "key"),
        node("MatMul", ["x", "wv"], "v", "value"),
        node("Transpose", ["k"], "kt", "transpose", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], "s", "scores"),
        node("Softmax", ["s"], "p", "softmax", axis=-1),
        node("MatMul", ["p", "v"], "y", "mix"),
    ]
    initializers = {name: normal(width, width, seed=i) for i, name in enumerate(("wq", "wk", "wv"))}
    return model(nodes, [value("x", ["N", tokens, width])], [value("y", ["N", tokens, width])], initializers)


def nan_maker() -> onnx.ModelProto:
    """x -> Log 'log' -> Conv 'conv' -> y: a zero in x gives -inf, a negative value NaN."""
    nodes = [node("Log", ["x"], "l", "log"), node("Conv", ["l", "w"], "y", "conv")]
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 4, 6, 6])], {"w": normal(4, 3, 3, 3)})


def no_layers() -> onnx.ModelProto:
    """x -> Relu 'relu' -> y: nothing to quantize."""
    return model([node("Relu", ["x"], "y", "relu")], [value("x", ["N", 3])], [value("y", ["N", 3])])


def quantized() -> onnx.ModelProto:
    """A model that AMCT has quantized already: AscendQuant before the Conv."""
    nodes = [
        node("AscendQuant", ["x"], "q", "conv.quant", scale=10.0, offset=0.0, quant_bits=8),
        node("Conv", ["q", "w"], "c", "conv"),
        node("AscendDequant", ["c", "s"], "y", "conv.dequant"),
    ]
    initializers = {"w": np.ones((4, 3, 3, 3), np.int8), "s": np.ones(4, np.uint64)}
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 4, 6, 6])], initializers)


def planted_outlier(*, factor: float = 60.0, channels: int = 8, size: int = 12) -> onnx.ModelProto:
    """Six 3x3 Convs 'conv1' … 'conv6' with Relu between; one channel of what 'conv4' reads is rare and `factor` times larger.

    Channel 0 behind 'conv3' is relu(factor * (z - threshold)), so that it is 0 nearly everywhere and huge elsewhere, and 'conv4'
    weighs it by 1 / factor: in float it counts as much as any other channel, but it sets the range of the whole tensor.
    """
    draw, fan_in = rng(5), channels * 9
    nodes, initializers, data = [], {}, "x"
    for number in range(1, 7):
        weight = draw.normal(0, np.sqrt(2 / fan_in), (channels, channels, 3, 3))
        bias = np.zeros(channels)
        if number == 3:
            weight[0] *= factor
            bias[0] = -2.4 * factor
        if number == 4:
            weight[:, 0] /= factor
        initializers |= {f"w{number}": weight.astype(np.float32), f"b{number}": bias.astype(np.float32)}
        output = "y" if number == 6 else f"c{number}"
        inputs = [data, f"w{number}", f"b{number}"]
        nodes.append(node("Conv", inputs, output, f"conv{number}", pads=[1, 1, 1, 1]))
        if number < 6:
            nodes.append(node("Relu", [output], f"r{number}", f"relu{number}"))
            data = f"r{number}"
    shape = ["N", channels, size, size]
    return model(nodes, [value("x", shape)], [value("y", shape)], initializers)
