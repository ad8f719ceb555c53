"""Outputs sample by sample: any inputs and outputs, fixed batches, and what is kept for a second look."""

import models
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

from calibrant.errors import DataError, ModelError
from calibrant.export.array_log import ArrayLog
from calibrant.export.outputs import OutputRunner, joined
from calibrant.ingest.data import open_data
from calibrant.ingest.model import ModelInput

F32 = np.dtype("float32")
X4 = [ModelInput("x", F32, ("N", 4), 0)]


def save(proto, tmp_path, name="m.onnx"):
    return models.save(proto, tmp_path / name)


def test_each_sample_is_run_alone(tmp_path):
    path = save(models.gemm(), tmp_path)
    x = models.normal(5, 4)
    found = list(OutputRunner(path, X4).each(open_data([{"x": x}], X4)))
    assert [one["y"].shape for one in found] == [(1, 6)] * 5
    for row, one in zip(x, found, strict=True):
        np.testing.assert_array_equal(one["y"], models.run(path, {"x": row[None]})[0])


def test_optimizations_are_off_unless_asked_for(tmp_path):
    path = save(models.gemm(), tmp_path)
    level = ort.GraphOptimizationLevel
    levels = [OutputRunner(path, X4, fused=fused)._session.get_session_options() for fused in (False, True)]
    assert [one.graph_optimization_level for one in levels] == [level.ORT_DISABLE_ALL, level.ORT_ENABLE_ALL]


def test_bytes_of_a_model_and_two_inputs(tmp_path):
    proto = models.two_inputs()
    inputs = [ModelInput(name, F32, ("N", 3, 8, 8), 0) for name in "xz"]
    x, z = models.normal(2, 3, 8, 8), models.normal(2, 3, 8, 8, seed=1)
    found = list(OutputRunner(proto.SerializeToString(), inputs).each(open_data([{"x": x, "z": z}], inputs)))
    np.testing.assert_array_equal(found[1]["y"], models.run(proto, {"x": x[1:], "z": z[1:]})[0])


def state_model(batch):
    """sample_axis_1 with a batch of a fixed size: x [B,4], state [2,B,6]."""
    proto = models.sample_axis_1()
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = batch
    return proto


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_fixed_batch_is_split_along_the_axis_of_its_samples(tmp_path, count):
    """A state of shape [2, 2, 6] has two axes as long as the batch; the samples lie along the second."""
    path = save(state_model(2), tmp_path)
    inputs = [ModelInput("x", F32, (2, 4), 0), ModelInput("state", F32, (2, 2, 6), 1)]
    x, state = models.normal(count, 4), models.normal(2, count, 6, seed=1)
    feeds = [{"x": x[i : i + 1], "state": state[:, i : i + 1]} for i in range(count)]
    found = list(OutputRunner(path, inputs).each(open_data(feeds, inputs)))
    assert len(found) == count
    for feed, one in zip(feeds, found, strict=True):
        y, state_out = models.run(models.sample_axis_1(), feed)
        np.testing.assert_allclose(one["y"], y, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(one["state_out"], state_out, rtol=1e-6, atol=1e-7)


def test_a_fixed_batch_that_cannot_be_split_is_an_error(tmp_path):
    nodes = [models.node("ReduceSum", ["x"], "y", "sum", keepdims=0)]
    path = save(models.model(nodes, [models.value("x", [2, 4])], [models.value("y", [])]), tmp_path)
    inputs = [ModelInput("x", F32, (2, 4), 0)]
    with pytest.raises(ModelError, match=r"output 'y' of shape \[\] cannot be split into its 2 samples"):
        list(OutputRunner(path, inputs).each(open_data([{"x": models.normal(2, 4)}], inputs)))


def test_scalars_and_samples_of_unequal_shape(tmp_path):
    nodes = [models.node("ReduceMax", ["x"], "top", "top", keepdims=0), models.node("Relu", ["x"], "y", "relu")]
    outputs = [models.value("top", []), models.value("y", ["N", "W"])]
    path = save(models.model(nodes, [models.value("x", ["N", "W"])], outputs), tmp_path)
    inputs = [ModelInput("x", F32, ("N", "W"), 0)]
    feeds = [{"x": models.normal(1, width)} for width in (3, 5)]
    found = list(OutputRunner(path, inputs).each(open_data(feeds, inputs)))
    assert [float(one["top"]) for one in found] == [float(feed["x"].max()) for feed in feeds]
    whole = joined({name: [one[name] for one in found] for name in ("top", "y")})
    assert whole["top"].shape == (2,)
    assert [part.shape for part in whole["y"]] == [(1, 3), (1, 5)]


def test_a_single_input_of_another_name_takes_the_data(tmp_path):
    proto = models.gemm()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "images"
    found = list(OutputRunner(save(proto, tmp_path), X4).each(open_data([{"x": models.normal(1, 4)}], X4)))
    np.testing.assert_array_equal(found[0]["y"], models.run(models.gemm(), {"x": models.normal(1, 4)})[0])


def test_a_model_with_other_inputs_is_refused(tmp_path):
    inputs = [ModelInput(name, F32, ("N", 3, 8, 8), 0) for name in ("x", "zz")]
    with pytest.raises(ModelError, match="input 'z': the data has no values for it; did you mean 'zz'"):
        OutputRunner(save(models.two_inputs(), tmp_path), inputs)


def test_texts_are_no_outputs_to_compare(tmp_path):
    nodes = [models.node("Cast", ["x"], "t", "cast", to=TensorProto.STRING), models.node("Relu", ["x"], "y", "relu")]
    outputs = [models.value("t", ["N", 4], TensorProto.STRING), models.value("y", ["N", 4])]
    proto = models.model(nodes, [models.value("x", ["N", 4])], outputs)
    assert OutputRunner(save(proto, tmp_path), X4).outputs == ("y",)
    del proto.graph.output[1], proto.graph.node[1]
    with pytest.raises(ModelError, match="none of its outputs holds numbers"):
        OutputRunner(save(proto, tmp_path), X4)


def test_what_onnxruntime_refuses_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"none\.onnx: no such file"):
        OutputRunner(tmp_path / "none.onnx", X4)
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ModelError, match=r"text\.onnx: onnxruntime refuses it"):
        OutputRunner(tmp_path / "text.onnx", X4)
    narrow = [ModelInput("x", F32, ("N", 3), 0)]
    runner = OutputRunner(save(models.gemm(), tmp_path), narrow, name="'other'")
    with pytest.raises(DataError, match=r"sample 0 \(feed 0\[0\]\): 'other' does not take it"):
        list(runner.each(open_data([{"x": models.normal(1, 3)}], narrow)))


@pytest.mark.parametrize("memory", [1 << 20, 16])
def test_a_log_gives_back_what_it_was_given(memory):
    entries = [
        {"y": models.normal(2, size), "n": np.array(size, np.int64), "h": np.array([], np.float16)}
        for size in (1, 5, 3)
    ]
    with ArrayLog(memory) as log:
        for entry in entries:
            log.append(entry)
        for one, other, entry in zip(log, log, entries, strict=True):  # two readers at once
            for name, array in entry.items():
                np.testing.assert_array_equal(one[name], array)
                np.testing.assert_array_equal(other[name], array)
                assert one[name].dtype == array.dtype
        assert len(log) == 3
