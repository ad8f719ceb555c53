"""The exact integer layers of the deploy model's interpreter against loops over whole numbers."""

from typing import NamedTuple

import naive
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from calibrant.errors import RangeError
from calibrant.export import integer_kernels as kernels


class Case(NamedTuple):
    """Shapes and attributes of one layer, as ONNX names them."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    attributes: dict

    def __str__(self) -> str:
        return f"{self.x} {self.weight} {self.attributes}"


CONVOLUTIONS = [
    Case((2, 3, 9), (4, 3, 3), {}),
    Case((1, 2, 9), (2, 2, 1), {"strides": [3]}),
    Case((1, 4, 10), (6, 2, 3), {"groups": 2, "pads": [2, 1], "dilations": [2]}),
    Case((2, 3, 6, 5), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    Case((1, 3, 7, 7), (2, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case((1, 3, 8, 6), (2, 3, 2, 3), {"strides": [2, 1], "pads": [0, 1, 1, 2]}),
    Case((1, 2, 7, 9), (3, 2, 3, 2), {"dilations": [2, 3]}),
    Case((2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "pads": [1, 1, 1, 1]}),
    Case((1, 4, 6, 6), (8, 1, 3, 3), {"groups": 4, "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    Case((1, 6, 5, 5), (4, 3, 2, 2), {"groups": 2, "strides": [1, 2], "dilations": [2, 1], "pads": [1, 0, 0, 1]}),
    Case((3, 5, 1, 1), (7, 5, 1, 1), {}),
    Case((1, 3, 4, 4), (2, 3, 4, 4), {}),
    Case((1, 1, 3, 3), (1, 1, 5, 5), {"pads": [2, 2, 2, 2]}),
    Case((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1]}),
    Case((1, 4, 5, 4, 5), (4, 2, 3, 1, 2), {"groups": 2, "strides": [2, 1, 2], "dilations": [1, 1, 2]}),
]

TRANSPOSED = [
    Case((2, 3, 5), (3, 2, 3), {}),
    Case((1, 4, 5), (4, 2, 3), {"groups": 2, "strides": [2], "pads": [1, 0], "output_padding": [1]}),
    Case((1, 3, 4, 4), (3, 2, 2, 2), {"strides": [2, 2]}),
    Case((1, 3, 4, 3), (3, 2, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    Case((2, 2, 3, 4), (2, 3, 3, 2), {"strides": [3, 1], "pads": [0, 1, 2, 0], "dilations": [1, 2]}),
    Case((1, 4, 3, 3), (4, 1, 3, 3), {"groups": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case((1, 6, 3, 3), (6, 2, 2, 3), {"groups": 3, "strides": [1, 2], "output_padding": [0, 1]}),
    Case((1, 2, 2, 2), (2, 2, 1, 1), {"strides": [3, 3]}),
    Case((1, 4, 2, 3, 2), (4, 1, 2, 2, 2), {"groups": 2, "strides": [2, 1, 2], "pads": [0, 0, 1, 1, 0, 0]}),
]

PRODUCTS = [((3, 4), (4, 5)), ((1, 1), (1, 1)), ((2, 3, 4), (4, 2)), ((2, 2, 3, 5), (5, 3)), ((4, 300), (300, 2))]

POOLS = [
    ((1, 2, 8), [2], {"strides": [2]}),
    ((1, 2, 7), [3], {"strides": [2], "pads": [1, 1]}),
    ((2, 3, 6, 6), [2, 2], {"strides": [2, 2]}),
    ((1, 2, 5, 6), [3, 3], {"pads": [1, 1, 1, 1]}),
    ((1, 2, 5, 6), [3, 3], {"pads": [1, 1, 1, 1], "count_include_pad": True}),
    ((1, 1, 7, 5), [3, 2], {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    ((1, 1, 7, 5), [3, 2], {"strides": [2, 3], "pads": [1, 0, 0, 1], "count_include_pad": True}),
    ((1, 2, 6, 7), [3, 3], {"strides": [2, 2], "ceil_mode": True}),
    ((1, 2, 6, 7), [3, 3], {"strides": [2, 2], "ceil_mode": True, "pads": [1, 1, 1, 1], "count_include_pad": True}),
    ((1, 2, 6, 7), [2, 2], {"strides": [3, 3], "ceil_mode": True, "pads": [0, 0, 1, 1]}),
    ((1, 3, 4, 4), [4, 4], {}),
    ((1, 1, 4, 5, 4), [2, 3, 2], {"strides": [2, 1, 2], "pads": [0, 1, 0, 0, 1, 0]}),
]

RANGES = {"int8": (-255, 256, -128, 128), "int16": (-65535, 65536, -128, 128)}  # x' = code - offset, and weight codes


def operands(case: Case, width: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes minus offset and weights, with both ends of their ranges among them."""
    rng = np.random.default_rng(len(str(case)))
    low, high, weight_low, weight_high = RANGES[width]
    x, weight = rng.integers(low, high, case.x), rng.integers(weight_low, weight_high, case.weight)
    x.flat[0], x.flat[-1], weight.flat[0], weight.flat[-1] = low, high - 1, weight_low, weight_high - 1
    return x, weight


def automatic(case: Case, **changes) -> Case:
    """The case with automatic padding in place of pads."""
    kept = {key: value for key, value in case.attributes.items() if key != "pads"}
    return case._replace(attributes=kept | changes)


AUTOMATIC = [
    automatic(case, auto_pad=mode)
    for case in (CONVOLUTIONS[1], CONVOLUTIONS[4], CONVOLUTIONS[5], CONVOLUTIONS[7], CONVOLUTIONS[13])
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
]


def onnx_attributes(case: Case) -> dict:
    """The attributes of the node: ONNX calls groups group."""
    return {"group" if key == "groups" else key: value for key, value in case.attributes.items()}


def explicit_pads(case: Case) -> dict:
    """The attributes of the twin: pads worked out."""
    attributes = dict(case.attributes)
    mode = attributes.pop("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        view = naive.window(case.weight[2:], attributes.get("strides"), None, attributes.get("dilations"))
        attributes["pads"] = naive.same_pads(view, case.x[2:], lower=mode == "SAME_LOWER")
    return attributes


def run_onnx(operator: str, x: np.ndarray, weight: np.ndarray | None, attributes: dict) -> np.ndarray:
    """The layer in onnxruntime on float32: exact while sums stay below 2**24."""
    names = ["x"] if weight is None else ["x", "w"]
    arrays = {"x": x.astype(np.float32)} | ({} if weight is None else {"w": weight.astype(np.float32)})
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(arrays[name].shape)) for name in names]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([helper.make_node(operator, names, ["y"], **attributes)], "layer", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, arrays)[0]


# -------------------------------------------------------------------------------------- the twins against onnxruntime


@pytest.mark.parametrize("case", CONVOLUTIONS + AUTOMATIC, ids=str)
def test_convolution_twin_equals_onnxruntime(case):
    x, weight = operands(case, "int8")
    expected = run_onnx("Conv", x, weight, onnx_attributes(case))
    np.testing.assert_array_equal(naive.convolution(x, weight, **explicit_pads(case)), expected)


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed_twin_equals_onnxruntime(case):
    x, weight = operands(case, "int8")
    expected = run_onnx("ConvTranspose", x, weight, onnx_attributes(case))
    np.testing.assert_array_equal(naive.transposed_convolution(x, weight, **case.attributes), expected)


@pytest.mark.parametrize(("shape", "kernel", "attributes"), POOLS, ids=str)
def test_pool_twin_equals_onnxruntime(shape, kernel, attributes):
    x, _ = operands(Case(shape, (1,), attributes), "int8")
    sums, counts = naive.average_pool(x, kernel, **attributes)
    expected = run_onnx(
        "AveragePool", x, None, {key: _plain(v) for key, v in attributes.items()} | {"kernel_shape": kernel}
    )
    np.testing.assert_allclose(sums / counts, expected, rtol=1e-6, atol=1e-5)


def _plain(value):
    return int(value) if isinstance(value, bool) else value


# --------------------------------------------------------------------------------------------- the kernels and the twins


def held(array: np.ndarray, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(array.astype(dtype))


def assert_exact(got: np.ndarray, expected: np.ndarray, dtype: type) -> None:
    assert got.dtype == dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.astype(np.int64), expected)


WIDTHS = [("int8", np.float32), ("int8", np.float64), ("int16", np.float64)]


@pytest.mark.parametrize(("width", "dtype"), WIDTHS)
@pytest.mark.parametrize("case", CONVOLUTIONS + AUTOMATIC, ids=str)
def test_convolution_equals_twin(case, width, dtype):
    x, weight = operands(case, width)
    attributes = onnx_attributes(case)
    window = kernels.resolve_window(attributes, case.weight[2:], case.x[2:])
    got = kernels.convolve(held(x, dtype), held(weight, dtype), window, attributes.get("group", 1))
    assert_exact(got, naive.convolution(x, weight, **explicit_pads(case)), dtype)


@pytest.mark.parametrize(("width", "dtype"), WIDTHS)
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed_convolution_equals_twin(case, width, dtype):
    x, weight = operands(case, width)
    attributes = onnx_attributes(case)
    window, sizes = kernels.transposed_window(attributes, case.weight[2:], case.x[2:])
    got = kernels.convolve_transposed(held(x, dtype), held(weight, dtype), window, attributes.get("group", 1), sizes)
    assert_exact(got, naive.transposed_convolution(x, weight, **case.attributes), dtype)


SHAPED = [
    automatic(TRANSPOSED[2], auto_pad="SAME_UPPER"),
    automatic(TRANSPOSED[3], auto_pad="SAME_UPPER", output_padding=[0, 0]),
    automatic(TRANSPOSED[3], auto_pad="SAME_LOWER", output_padding=[0, 0]),
    automatic(TRANSPOSED[3], auto_pad="VALID"),
    automatic(TRANSPOSED[3], output_shape=[8, 6]),
    automatic(TRANSPOSED[3], output_shape=[7, 6], auto_pad="SAME_UPPER", output_padding=[0, 0]),
    automatic(TRANSPOSED[3], output_shape=[7, 6], auto_pad="SAME_LOWER", output_padding=[0, 0]),
]


@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_transposed_padding_by_rule_equals_onnxruntime(case):
    x, weight = operands(case, "int8")
    window, sizes = kernels.transposed_window(onnx_attributes(case), case.weight[2:], case.x[2:])
    got = kernels.convolve_transposed(held(x, np.float64), held(weight, np.float64), window, 1, sizes)
    np.testing.assert_array_equal(got, run_onnx("ConvTranspose", x, weight, onnx_attributes(case)))


@pytest.mark.parametrize(("width", "dtype"), WIDTHS)
@pytest.mark.parametrize(("shape", "kernel", "attributes"), POOLS, ids=str)
def test_window_sums_equal_twin(shape, kernel, attributes, width, dtype):
    x, _ = operands(Case(shape, (1,), attributes), width)
    sums, counts = naive.average_pool(x, kernel, **attributes)
    window = kernels.resolve_window(attributes, kernel, shape[2:])
    modes = {"ceil_mode": attributes.get("ceil_mode", False), "count_pads": attributes.get("count_include_pad", False)}
    got, got_counts = kernels.pool_sums(held(x, dtype), window, **modes)
    assert_exact(got, sums, dtype)
    np.testing.assert_array_equal(np.broadcast_to(got_counts, counts.shape), counts)


@pytest.mark.parametrize(("a_shape", "b_shape"), PRODUCTS)
def test_matrix_twin_equals_exact_product(a_shape, b_shape):
    a, b = operands(Case(a_shape, b_shape, {}), "int16")
    np.testing.assert_array_equal(naive.matrix_product(a, b), a @ b)


def test_working_type_holds_the_twins_sums():
    for bound in (1, 2**24, 2**24 + 1, 2**53):
        held_type = kernels.working_type(bound)
        assert int(held_type(bound)) == bound
        assert int(held_type(bound - 1)) == bound - 1
    with pytest.raises(RangeError, match=r"float64"):
        kernels.working_type(2**53 + 2)
