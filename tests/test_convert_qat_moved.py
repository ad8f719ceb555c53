"""Models in which nodes move or pool the codes between a QuantizeLinear and its DequantizeLinear."""

from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from qdq import STEP, ZERO, F, Qdq, codes, saved

import calibrant

MOVES: dict[str, tuple[list[Any], list[int], dict[str, Any]]] = {
    "Reshape": ([np.array([-1, 3, 4, 16])], [4, 16], {}),
    "Transpose": ([], [8, 8], {"perm": [0, 1, 3, 2]}),
    "MaxPool": ([], [8, 8], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "Slice": ([np.array([1]), np.array([7]), np.array([2])], [6, 8], {}),
    "Identity": ([], [8, 8], {}),
}


@pytest.mark.parametrize("op_type", MOVES)
@pytest.mark.parametrize("twice", [False, True])
def test_nodes_that_move_codes_inside_a_pair_move_floats(tmp_path: Path, op_type: str, twice: bool) -> None:
    given, space, attributes = MOVES[op_type]
    graph = Qdq()
    moved = graph.quantize("x", "x", STEP, ZERO)
    more = [graph.constant(f"m{i}", np.asarray(one, np.int64)) for i, one in enumerate(given)]
    moved = graph.node(op_type, [moved, *more], "moved", **attributes)
    if twice:
        moved = graph.node("Transpose", [moved], "again", perm=[0, 1, 3, 2])
        space = space[::-1]
    data = graph.node("DequantizeLinear", [moved, "x_scale", "x_zero"], "x_dq")
    graph.node("Conv", [data, graph.stored("w", codes(4, 3, 1, 1), F(0.01))], "y", "conv")
    proto = graph.model([models.value("x", ["N", 3, 8, 8])], [models.value("y", ["N", 4, *space])])
    done = calibrant.convert_qat(saved(proto, tmp_path), prefix=tmp_path / "out" / "m")
    assert done.layers.select("node", "becomes", "scale_d", "offset_d").rows() == [("conv", "int8", STEP, ZERO)]
    assert done.source_sqnr_db is not None
    assert done.source_sqnr_db > 120  # float32 rounding of sums alone


def test_moved_codes_that_are_an_output_as_well(tmp_path: Path) -> None:
    graph = Qdq()
    moved = graph.node("Transpose", [graph.quantize("x", "x", STEP, ZERO)], "codes", perm=[0, 2, 1])
    data = graph.node("DequantizeLinear", [moved, "x_scale", "x_zero"], "x_dq")
    graph.node("MatMul", [data, graph.stored("w", codes(4, 5), F(0.01))], "y", "fc")
    outputs = [
        onnx.helper.make_tensor_value_info("codes", TensorProto.INT8, ["N", 3, 4]),
        models.value("y", ["N", 3, 5]),
    ]
    proto = graph.model([models.value("x", ["N", 4, 3])], outputs)
    done = calibrant.convert_qat(saved(proto, tmp_path), prefix=tmp_path / "out" / "m")
    assert done.layers.filter(becomes="int8")["node"].to_list() == ["fc"]
    assert done.layers.filter(becomes="codes")["reason"].to_list() == ["output 'codes' is int8 codes"]
    assert done.source_sqnr_db is not None
    assert done.source_sqnr_db > 120
