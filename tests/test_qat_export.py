"""save_quant_retrain_model: the exported models compute what PyTorch computes in evaluation, and the run tells of the learned scales."""

import json
import logging

import numpy as np
import onnx
import pytest
from models import run as run_onnx
from torch_material import DATA, WEIGHT, in_training, nn, random, torch

from calibrant.amct import save_quant_retrain_model
from calibrant.errors import ConfigError, ExportError
from calibrant.export.files import export_files
from calibrant.proto.record import read_record
from calibrant.quantizers import ArqOptions, fit_arq
from calibrant.rebuild import export_record
from calibrant.trained_graph import name_layers


class Mixed(nn.Module):
    """Every kind of layer, BatchNorm behind two of them, siblings, a Linear on three axes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 6, 2, 2, groups=2)
        self.up_norm = nn.BatchNorm2d(6)
        self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5, bias=False)
        self.line = nn.Conv1d(5, 4, 1)
        self.deep = nn.Conv3d(1, 2, 1)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = self.up_norm(self.up(x)).flatten(2).transpose(1, 2)
        x = self.left(x) + self.right(x)
        return self.deep(self.line(x.transpose(1, 2))[:, None, None])


X = random(4, 2, 5, 5)
NAMES = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}}}


def mixed(seed=0):
    torch.manual_seed(seed)
    model = Mixed()
    for norm in (model.norm, model.up_norm):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
    return model


def trained(tmp_path, change=None, model=None, example=X, **options):
    """Return a model after three steps of training."""
    model = in_training(tmp_path, mixed() if model is None else model, example, change, **options)
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for seed in range(3):
        optimizer.zero_grad()
        model.train()(random(*example.shape, seed=seed)).square().mean().backward()
        optimizer.step()
    return model


def save(tmp_path, model, example=X, **options):
    return save_quant_retrain_model(
        tmp_path / "config.json",
        model,
        tmp_path / "record.txt",
        tmp_path / "out" / "m",
        example,
        **{**NAMES, **options},
    )


def outputs(tmp_path, model, x):
    """Return what the fake-quant model and PyTorch answer."""
    with torch.no_grad():
        expected = model.eval()(x).numpy()
    return run_onnx(export_files(tmp_path / "out" / "m").fake_quant, {"x": x.numpy()})[0], expected


def narrow(content):
    for name in ("left", "right"):
        content[name][DATA]["dst_type"] = content[name][WEIGHT]["dst_type"] = "INT4"
    content["conv"][WEIGHT].update(algo="ulq_retrain")
    content["line"][WEIGHT]["dst_type"] = "INT8"
    content["up"][WEIGHT]["channel_wise"] = False


@pytest.mark.parametrize("change", [None, narrow], ids=["defaults", "INT4, learned steps, one scale"])
def test_the_exported_model_computes_what_pytorch_computes_in_evaluation(tmp_path, change):
    model = trained(tmp_path, change)
    save(tmp_path, model)
    got, expected = outputs(tmp_path, model, random(6, 2, 5, 5, seed=9))
    # one value in many may round to the neighbouring code: x / s against x * (1 / s)
    near = np.isclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert near.mean() > 0.97
    assert np.abs(got - expected).max() < 0.1 * np.abs(expected).max()


def test_the_run_the_record_and_the_configuration_tell_of_the_training(tmp_path):
    model = trained(tmp_path, narrow)
    run = save(tmp_path, model)
    rows = run.sql("select layer, role, algorithm, bits, count(*) as n from quant_params join layers using (layer_id) "
                   "where role in ('data', 'weight') group by all")  # fmt: skip
    found = {
        (row["layer"], row["role"]): (row["algorithm"], row["bits"], row["n"]) for row in rows.iter_rows(named=True)
    }
    assert found[("conv", "data")] == ("ulq", 8, 1)
    assert found[("conv", "weight")] == ("ulq_retrain", 8, 4)
    assert found[("up", "weight")] == ("arq_retrain", 8, 6), "folding a BatchNorm makes one scale one a channel"
    assert found[("left", "data")] == found[("right", "data")] == ("ulq", 4, 1)
    assert found[("left", "weight")] == ("arq_retrain", 4, 1)
    record = {entry.key: entry for entry in read_record(tmp_path / "record.txt")}
    assert list(record) == ["conv", "up", "left", "right", "line", "deep"]
    fit = model.left.data_quantizer.fit()
    assert record["left"].scale_d == record["right"].scale_d == fit.scale
    assert record["left"].offset_d == fit.offset
    assert record["deep"].offset_d == 0, "data of a Conv3d has no offset"
    files = export_files(tmp_path / "out" / "m")
    assert files.record.read_text() == (tmp_path / "record.txt").read_text()
    assert json.loads(files.config.read_text()) == json.loads((tmp_path / "config.json").read_text())
    plan = run.read("plan").filter(fit="qat", layer="conv").row(0, named=True)
    assert (plan["data_algorithm"], plan["weight_algorithm"], plan["data_decided_by"]) == (
        "ulq",
        "ulq_retrain",
        "retrain config.json",
    )
    assert "6 layers on 4 samples: 6 bit-equal" in " ".join(run.read("events").filter(stage="verify")["message"])


def test_a_model_of_float16(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).half()
    x = random(4, 4, 6, 6).half()
    made = in_training(tmp_path, model, x, lambda content: content["0"][WEIGHT].update(algo="ulq_retrain")).half()
    made(x)
    save(tmp_path, made, x)
    got, expected = outputs(tmp_path, made, x)
    assert got.dtype == expected.dtype == np.float16
    assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()
    assert {entry.op_data_type for entry in read_record(tmp_path / "record.txt")} == {"FLOAT16"}


def test_what_stays_in_float_is_told_in_the_run(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2), nn.Linear(2, 2).double())
    model[3].forward = lambda x: x  # of no use, so that its type does no harm
    made = in_training(tmp_path, model, random(3, 4), lambda content: content["2"].update(retrain_enable=False))
    made(random(3, 4))
    run = save(tmp_path, made, random(3, 4))
    told = run.read("events").filter(fit="qat", layer="3")["message"].to_list()
    assert told == ["layer '3' stays in float: it computes in float64; float32 or float16 is expected"]
    plan = run.read("plan").filter(fit="qat", layer="2").row(0, named=True)
    assert (plan["enabled"], plan["reason"]) == (False, "it was not trained for quantization")


def test_folded_batch_norm_scales_the_weights(tmp_path):
    model = trained(tmp_path)
    save(tmp_path, model)
    weight = model.conv.weight.detach().numpy()
    factor = model.norm.weight.detach().numpy() / np.sqrt(model.norm.running_var.numpy() + model.norm.eps)
    expected = fit_arq(weight, ArqOptions()).scale * np.abs(factor)
    (entry,) = [one for one in read_record(tmp_path / "record.txt") if one.key == "conv"]
    assert entry.scale_w == pytest.approx(expected.tolist(), rel=1e-6)
    codes = {
        one.name: onnx.numpy_helper.to_array(one)
        for one in onnx.load(export_files(tmp_path / "out" / "m").deploy).graph.initializer
    }
    got = next(array for array in codes.values() if array.shape == weight.shape)
    assert np.array_equal(got, np.rint(weight / fit_arq(weight, ArqOptions()).scale[:, None, None, None]))


def test_a_negative_gamma_is_told(tmp_path):
    model = mixed()
    with torch.no_grad():
        model.norm.weight[1] = -1
        model.conv.weight[1, 0, 0, 0] = -2  # the largest of its channel: its code is -128
    events = []
    trained_model = in_training(tmp_path, model, X)
    trained_model(X)
    save(tmp_path, trained_model, notice=events.append)
    (told,) = [event.message for event in events if event.layer == "conv" and event.severity == "warn"]
    assert told.startswith("1 weights of 1 output channels lose one step: a BatchNormalization with negative gamma")


def test_the_models_come_again_from_the_record_alone(tmp_path):
    save(tmp_path, trained(tmp_path, narrow))
    first = export_files(tmp_path / "out" / "m")
    again = export_record(tmp_path / "record.txt", tmp_path / "out" / "m_float_model.onnx", tmp_path / "again" / "m")
    assert again.deploy.read_bytes() == first.deploy.read_bytes()
    assert again.fake_quant.read_bytes() == first.fake_quant.read_bytes()


def test_saving_twice_and_training_on(tmp_path):
    model = trained(tmp_path)
    model.train()
    weights = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    save(tmp_path, model)
    first = (tmp_path / "record.txt").read_bytes()
    save(tmp_path, model)
    assert (tmp_path / "record.txt").read_bytes() == first
    assert model.training
    assert all(torch.equal(model.state_dict()[name], value) for name, value in weights.items())


def test_fixed_shapes_and_an_empty_base_name(tmp_path):
    model = trained(tmp_path)
    run = save_quant_retrain_model(tmp_path / "config.json", model, tmp_path / "r.txt", f"{tmp_path}/out/", (X,))
    assert (tmp_path / "out" / "deploy_model.onnx").is_file()
    assert run.path == tmp_path / "out" / "qat.run"
    assert run.info.samples == 4


def test_what_cannot_be_saved(tmp_path):
    model = in_training(tmp_path, mixed(), X, lambda content: content.update(batch_num=2))
    model(X)
    with pytest.raises(ExportError, match=r"layer 'conv': 1 of 2 batches \(batch_num\) were run"):
        save(tmp_path, model)
    with pytest.raises(ExportError, match="the model has no layer in training for quantization"):
        save(tmp_path, mixed())
    model(X)
    content = json.loads((tmp_path / "config.json").read_text())
    content["conv"]["retrain_enable"] = False
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="layer 'conv' is set otherwise than when the training began"):
        save(tmp_path, model)
    assert not (tmp_path / "out").exists()


def test_layers_are_found_by_equal_weights_where_an_exporter_renames_them(tmp_path):
    weight = random(3, 2).numpy()
    nodes = [onnx.helper.make_node("MatMul", ["x", "renamed"], ["y"], "node_1")]
    graph = onnx.helper.make_graph(
        nodes, "g", [onnx.helper.make_tensor_value_info("x", 1, [1, 2])], [onnx.helper.make_tensor_value_info("y", 1, [1, 3])],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(weight.T), "renamed")],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    name_layers(tmp_path / "m.onnx", {"fc": weight})
    assert onnx.load(tmp_path / "m.onnx").graph.node[0].name == "fc"
    with pytest.raises(
        ExportError, match="layer 'other': 0 nodes of the exported ONNX model read its weight, 1 expected"
    ):
        name_layers(tmp_path / "m.onnx", {"other": weight + 1})


def test_layers_of_equal_weights_are_told_apart(tmp_path):
    """As copies of one layer have them; exporters keep one initializer for both."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].load_state_dict(model[0].state_dict())
    x = random(3, 4)
    made = in_training(tmp_path, model, x)
    made(x)
    run = save(tmp_path, made, x)
    got, expected = outputs(tmp_path, made, x)
    assert np.allclose(got, expected, atol=1e-5)
    scales = run.sql(
        "select layer, scale from quant_params join layers using (layer_id) where role = 'data' order by layer"
    )
    assert [row[0] for row in scales.rows()] == ["0", "2", "3"]
    assert scales["scale"].to_list() == [float(made[number].data_quantizer.fit().scale) for number in (0, 2, 3)]


def test_the_newer_exporter_is_used_where_the_tracing_one_fails(tmp_path, monkeypatch):
    traced = torch.onnx.export

    def export(*args, dynamo, **kwargs):
        if not dynamo:
            message = "no tracing any more"
            raise RuntimeError(message)
        return traced(*args, dynamo=dynamo, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", export)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    model = trained(
        tmp_path, model=nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1))
    )
    save(tmp_path, model)
    got, expected = outputs(tmp_path, model, X)
    assert np.isclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()).mean() > 0.97
    assert onnx.load(tmp_path / "out" / "m_float_model.onnx").opset_import[0].version == 18
