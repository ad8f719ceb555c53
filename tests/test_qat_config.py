"""create_quant_retrain_config: which layers it finds, and its file byte for byte; what each field of the file does."""

import json

import pytest
from torch_material import DATA, WEIGHT, in_training, nn, random, torch

from calibrant.amct import create_quant_retrain_config, create_quant_retrain_model
from calibrant.errors import ConfigError, ModelError
from calibrant.quantizers.qat.survey import survey

EXPECTED = """{
    "version":1,
    "batch_num":1,
    "conv":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"arq_retrain",
            "channel_wise":true,
            "dst_type":"INT8"
        }
    },
    "up":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"arq_retrain",
            "channel_wise":true,
            "dst_type":"INT8"
        }
    },
    "fc":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"arq_retrain",
            "channel_wise":false,
            "dst_type":"INT8"
        }
    }
}"""
IMAGE = random(2, 4, 5, 5)


class Small(nn.Module):
    """Three layers, registered in another order than they run in; a branch that depends on the values."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        if float(x.detach().sum()) < 0:
            return x
        return self.fc(self.up(x).mean((2, 3)))


def file_of(tmp_path, change):
    """Return a configuration of `Small`, changed."""
    path = tmp_path / "config.json"
    create_quant_retrain_config(path, Small(), IMAGE)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def settings(tmp_path, change, **options):
    model = in_training(tmp_path, Small(), IMAGE, change, **options)
    return {
        name: getattr(model, name).settings
        for name in ("conv", "up", "fc")
        if hasattr(getattr(model, name), "settings")
    }


def test_the_file_is_amct_s_byte_for_byte_and_an_old_one_is_overwritten(tmp_path):
    path, events = tmp_path / "new" / "config.json", []
    for _ in range(2):
        create_quant_retrain_config(config_file=path, model=Small(), input_data=(IMAGE,), notice=events.append)
        assert path.read_text() == EXPECTED
        path.write_text("old")
    assert [(event.layer, "does not reach it" in event.message) for event in events] == [("unused", True)] * 2


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, 3) for _ in range(3))
        self.d = nn.Linear(3, 3)
        self.d.weight = self.c.weight
        self.e = nn.Linear(3, 3)

    def forward(self, x):
        return self.e(self.d(self.c(self.b(self.a(self.a(x))))))


def test_reused_layers_are_left_out_and_reported(tmp_path):
    events = []
    create_quant_retrain_config(tmp_path / "c.json", Reused(), torch.zeros(1, 3), notice=events.append)
    assert list(json.loads((tmp_path / "c.json").read_text())) == ["version", "batch_num", "b", "e"]
    assert {event.layer: event.message.split(": ", 1)[1] for event in events} == {
        "a": "it is reused: 2 calls in one run",
        "c": "it is reused: its weight is also 'd.weight'",
        "d": "it is reused: its weight is also 'c.weight'",
    }


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (Own(3, 3), (1, 3), "its class Own is not one of torch's own"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (1, 1, 4, 4), "its padding_mode is 'circular'"),
        (nn.Conv3d(1, 1, 2, dilation=(2, 1, 1)), (1, 1, 4, 4, 4), "its depth is dilated"),
        (nn.Conv2d(1, 1, 3), (1, 4, 4), "its input has 3 axes, not 4"),
        (nn.Linear(3, 3).double(), (1, 3), "it computes in float64; float32 or float16 is expected"),
    ],
)
def test_what_cannot_be_trained_stays_in_float_and_is_reported(layer, shape, words):
    x = torch.zeros(*shape, dtype=layer.weight.dtype)
    (event,) = survey(nn.Sequential(layer), x).events
    assert event.layer == "0"
    assert words in event.message


def test_no_layer_at_all(tmp_path):
    with pytest.raises(
        ModelError, match=r"Sequential has no Linear, Conv or ConvTranspose2d that can be trained; '0': its class Own"
    ):
        create_quant_retrain_config(tmp_path / "c.json", nn.Sequential(Own(3, 3)), torch.zeros(1, 3))
    with pytest.raises(ModelError, match="the model is itself a Linear, so that its layer has no name"):
        create_quant_retrain_config(tmp_path / "c.json", nn.Linear(3, 3), torch.zeros(1, 3))
    with pytest.raises(ModelError, match=r"Small does not run on input_data of \(1, 3\)"):
        create_quant_retrain_config(tmp_path / "c.json", Small(), torch.zeros(1, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_retrain_config_text_file(tmp_path):
    (tmp_path / "retrain.cfg").write_text(
        'batch_num: 3\nskip_layers: "up"\noverride_layer_types { layer_type: "Linear" retrain_data_quant_config '
        "{ ulq_quantize { clip_max_min { clip_max: 2.5 clip_min: -0.5 } dst_type: INT16 } } }\n"
        "retrain_weight_quant_config { ulq_retrain { channel_wise: true } }\n"
    )
    create_quant_retrain_config(tmp_path / "c.json", Small(), IMAGE, config_defination=tmp_path / "retrain.cfg")
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["batch_num"] == 3
    assert content["up"]["retrain_enable"] is False
    assert content["conv"][WEIGHT] == {"algo": "ulq_retrain", "channel_wise": True, "dst_type": "INT8"}
    assert content["fc"][DATA] == {"algo": "ulq_quantize", "clip_max": 2.5, "clip_min": -0.5, "dst_type": "INT16"}
    (tmp_path / "wrong.cfg").write_text('skip_layers: "cnv"')
    with pytest.raises(ConfigError, match=r"wrong\.cfg:1:\d+: skip_layers names 'cnv'.*did you mean 'conv'\?"):
        create_quant_retrain_config(tmp_path / "c.json", Small(), IMAGE, tmp_path / "wrong.cfg")


def test_every_field_reaches_its_layer(tmp_path):
    def change(content):
        content["batch_num"] = 4
        content["conv"][DATA] |= {"clip_max": 3.0, "clip_min": -2.0, "fixed_min": False}
        content["conv"][WEIGHT] |= {"algo": "ulq_retrain", "channel_wise": False}
        content["up"][DATA] |= {"dst_type": "INT4"}
        content["up"][WEIGHT] |= {"dst_type": "INT4"}
        content["fc"][DATA] |= {"dst_type": "INT16", "fixed_min": True}

    found = settings(tmp_path, change)
    assert {one.batch_num for one in found.values()} == {4}
    conv, up, fc = found["conv"], found["up"], found["fc"]
    assert (conv.data.clip_max, conv.data.clip_min, conv.data.fixed_min) == (3.0, -2.0, False)
    assert (conv.weight.algorithm, conv.weight.channel_wise, conv.weight.bits) == ("ulq_retrain", False, 8)
    assert (up.data.bits, up.weight.bits, up.weight.channel_wise) == (4, 4, True)
    assert (fc.data.bits, fc.data.fixed_min, fc.weight.channel_wise) == (16, True, False)


def test_fixed_min_follows_the_producer(tmp_path):
    found = settings(tmp_path, None)
    assert {name: one.data.fixed_min for name, one in found.items()} == {"conv": False, "up": True, "fc": False}


@pytest.mark.parametrize("relu", [nn.ReLU(), nn.ReLU(inplace=True), torch.relu, torch.Tensor.relu_, nn.functional.relu])
def test_every_spelling_of_a_relu(relu):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            y = relu(self.a(x))
            return self.c(nn.functional.dropout(y, 0.5, self.training)) + self.b(y + 1)

    assert dict(survey(Model(), torch.zeros(1, 2)).producers) == {"a": "", "b": "", "c": "Relu"}


def test_int4_is_obeyed_and_said_and_strict_amct_uses_8(tmp_path):
    def change(content):
        for layer in ("conv", "up", "fc"):
            content[layer][DATA]["dst_type"] = content[layer][WEIGHT]["dst_type"] = "INT4"

    events = []
    found = settings(tmp_path, change, notice=events.append)
    assert {one.data.bits for one in found.values()} == {4}
    said = [event.message for event in events if event.layer == "conv"]
    assert len(said) == 1
    assert "INT4 data with INT4 weights of 'conv' are trained as asked; AMCT uses 8 bits today" in said[0]
    strict = settings(tmp_path, change, strict_amct=True, notice=events.append)
    assert {(one.data.bits, one.weight.bits) for one in strict.values()} == {(8, 8)}
    assert "8 bits are used, as AMCT does (strict_amct)" in events[-1].message


def test_int4_where_the_weight_cannot_be_packed(tmp_path):
    def change(content):
        for layer in ("0", "1"):
            content[layer][DATA]["dst_type"] = content[layer][WEIGHT]["dst_type"] = "INT4"

    events = []
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1, groups=4))
    trained = in_training(tmp_path, model, torch.zeros(1, 1, 2, 2), change, notice=events.append)
    assert [layer.settings.weight.bits for layer in trained] == [8, 8]
    assert all(
        "8 bits are used, since INT4 weights need one group and an even number" in event.message for event in events
    )
    assert {event.severity for event in events} == {"warn"}


def test_untrained_layers_are_reported(tmp_path):
    def change(content):
        del content["up"], content["fc"]["retrain_enable"]

    events = []
    assert list(settings(tmp_path, change, notice=events.append)) == ["conv"]
    said = {
        event.layer: (event.severity, event.message.split(": ", 1)[1]) for event in events if event.layer != "unused"
    }
    assert said == {
        "up": ("info", "layer 'up' is not in the file and stays in float"),
        "fc": ("warn", "layer 'fc' has no retrain_enable and stays in float; write true to train it"),
    }


def test_fixed_min_beside_a_clip_min_ignores_it_with_a_warning(tmp_path):
    events = []
    change = {"clip_max": 2.0, "clip_min": -1.0, "fixed_min": True}
    model = in_training(
        tmp_path, Small(), IMAGE, lambda content: content["conv"][DATA].update(change), notice=events.append
    )
    assert float(model.conv.data_quantizer.clip_min.detach()) == 0
    (warning,) = [event for event in events if event.severity == "warn"]
    assert "clip_min -1 of 'conv' is ignored: fixed_min is true" in warning.message
    assert "config.json:1:" in warning.message


WRONG = {
    "one clip end": (lambda c: c["conv"][DATA].update(clip_max=1.0), "clip_max without clip_min; write both or neither"),
    "a negative clip_max": (lambda c: c["conv"][DATA].update(clip_max=-1.0, clip_min=-2.0), "clip_max.*a number above 0"),
    "a positive clip_min": (lambda c: c["conv"][DATA].update(clip_max=1.0, clip_min=0.5), "clip_min.*a number below 0"),
    "another version": (lambda c: c.update(version=2), "version"),
    "no batch": (lambda c: c.update(batch_num=0), "batch_num"),
    "a word for a bool": (lambda c: c["conv"].update(retrain_enable="yes"), "retrain_enable.*true or false"),
    "another algorithm": (lambda c: c["conv"][DATA].update(algo="ifmr"), "ulq_quantize"),
    "another type": (lambda c: c["conv"][DATA].update(dst_type="INT7"), "dst_type is 'INT7'"),
    "an impossible pair": (lambda c: c["conv"][DATA].update(dst_type="INT4"), "data is INT4 and weights are INT8"),
    "an unknown key": (lambda c: c["conv"][DATA].update(clipmax=1.0), "clipmax.*did you mean 'clip_max'"),
    "an unknown layer": (lambda c: c.update(cnv=c["conv"]), "'cnv' is no layer of the model.*did you mean 'conv'"),
    "channels of a Linear": (lambda c: c["fc"][WEIGHT].update(channel_wise=True), "channel_wise is true for the Linear 'fc'"),
    "a layer that cannot be": (lambda c: c.update(unused=c["fc"]), "layer 'unused' cannot be quantized"),
    "nothing to train": (lambda c: [c[one].update(retrain_enable=False) for one in ("conv", "up", "fc")], "enable at least one"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_and_half_given_values_are_errors_with_their_place(tmp_path, name):
    change, words = WRONG[name]
    path = file_of(tmp_path, change)
    with pytest.raises(ConfigError, match=rf"config\.json:.*{words}"):
        create_quant_retrain_model(path, Small(), tmp_path / "r.txt", IMAGE)


def test_a_layer_named_twice_is_an_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"version":1,"conv":{"retrain_enable":true},\n"conv":{"retrain_enable":false}}')
    with pytest.raises(ConfigError, match=r"config\.json:2:1: the key 'conv' is given a second time"):
        create_quant_retrain_model(path, Small(), tmp_path / "r.txt", IMAGE)
