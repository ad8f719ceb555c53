"""Models in training: the first clip ends, what the optimizer moves, siblings, state dicts, several processes."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch_material import DATA, WEIGHT, in_training, nn, random, torch

from calibrant.amct import restore_quant_retrain_model
from calibrant.errors import DataError, ModelError
from calibrant.quantizers import IfmrOptions, fit_arq, fit_ifmr
from calibrant.quantizers.options import ArqOptions
from calibrant.stats import LogLinearHistogram

X = random(8, 3)


def chain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def ends(quantizer):
    return float(quantizer.clip_max.detach()), float(quantizer.clip_min.detach())


def test_the_first_ends_are_those_of_this_package_s_ifmr_over_batch_num_batches(tmp_path):
    model = in_training(tmp_path, chain(), X, lambda content: content.update(batch_num=3))
    first = model[0].data_quantizer
    batches = [random(8, 3, seed=seed) * (seed + 1) for seed in range(3)]
    for number, batch in enumerate(batches):
        assert not first.is_ready
        (model.eval() if number == 1 else model.train())(batch)
    fit = fit_ifmr(LogLinearHistogram.from_values(np.concatenate(batches)), IfmrOptions(asymmetric=False))
    assert ends(first) == (float(fit.clip_max), float(fit.clip_min))
    assert ends(model[2].data_quantizer)[1] == 0, "its input is made by a Relu, so that the lower end is 0"
    model(10 * X)
    assert ends(first) == (float(fit.clip_max), float(fit.clip_min)), "later batches change nothing"


def test_before_that_each_batch_has_its_own_range_and_nothing_is_learned(tmp_path):
    model = in_training(tmp_path, nn.Sequential(nn.Linear(3, 2)), X, lambda content: content.update(batch_num=9))
    layer = model[0]
    result = model(X)
    scale = float((X.max() - X.min()) / 255)
    steps = layer.data_quantizer(X) / scale
    assert torch.allclose(steps, steps.round(), atol=1e-3)
    result.sum().backward()
    assert layer.data_quantizer.clip_max.grad == 0
    assert layer.weight.grad.abs().sum() > 0


def test_configured_ends_begin_and_stay_trainable_unless_frozen(tmp_path):
    def change(content):
        content["0"][DATA] |= {"clip_max": 0.5, "clip_min": -0.25}

    for freeze in (False, True):
        model = in_training(tmp_path, chain(), X, change, freeze=freeze)
        first = model[0].data_quantizer
        assert first.is_ready
        assert ends(first) == (0.5, -0.25)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(X).square().sum().backward()
        optimizer.step()
        assert (ends(first) == (0.5, -0.25)) is freeze


def test_a_fixed_lower_end_is_no_parameter_to_learn(tmp_path):
    model = in_training(tmp_path, chain(), X)
    assert [model[number].data_quantizer.clip_min.requires_grad for number in (0, 2)] == [True, False]


def test_a_step_too_far_is_taken_back(tmp_path):
    model = in_training(tmp_path, chain(), X)
    model(X)
    first = model[0].data_quantizer
    high, low = ends(first)
    for wrong, right in (((-1.0, low), (high, low)), ((high, 1.0), (high, low)), ((low, high), (high, low))):
        with torch.no_grad():
            first.clip_max.fill_(wrong[0])
            first.clip_min.fill_(wrong[1])
        model(X)
        assert ends(first) == right


def test_float_weights_are_never_overwritten(tmp_path):
    model, before = chain(), None
    before = copy.deepcopy(model.state_dict())
    trained = in_training(tmp_path, model, X)
    trained(X).sum().backward()
    assert all(torch.equal(trained.state_dict()[name], value) for name, value in before.items())
    used = trained[0].weight_quantizer(trained[0].weight)
    assert not torch.equal(used, trained[0].weight)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("algorithm", ["arq_retrain", "ulq_retrain"])
def test_weights_are_rounded_per_output_channel_in_their_own_layout(tmp_path, transposed, groups, algorithm):
    torch.manual_seed(1)
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(4, 6, 3, groups=groups)
    model = in_training(
        tmp_path, nn.Sequential(layer), random(1, 4, 5, 5), lambda content: content["0"][WEIGHT].update(algo=algorithm)
    )
    model(random(1, 4, 5, 5))
    weight = layer.weight.detach().numpy()
    got = model[0].weight_quantizer(model[0].weight).detach().numpy()
    for channel in range(6):
        group, inside = divmod(channel, 6 // groups)
        place = np.s_[group * 4 // groups : (group + 1) * 4 // groups, inside] if transposed else np.s_[channel]
        scale = fit_arq(weight[place][None], ArqOptions(channel_wise=False)).scale
        expected = np.clip(np.rint(weight[place] / scale), -128, 127) * scale
        assert np.array_equal(got[place], expected), channel


def test_learned_weight_steps_move(tmp_path):
    model = in_training(tmp_path, nn.Sequential(nn.Conv1d(2, 3, 1)), random(1, 2, 4), ulq_weights)
    model(random(1, 2, 4))
    quantizer = model[0].weight_quantizer
    before = quantizer.scale.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(random(1, 2, 4)).square().sum().backward()
    optimizer.step()
    assert before.shape == (3,)
    assert not torch.equal(before, quantizer.scale)
    model(random(1, 2, 4))
    assert not torch.equal(before, quantizer.scale), "ARQ gives the first steps alone"


def ulq_weights(content):
    content["0"][WEIGHT].update(algo="ulq_retrain")


class Siblings(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        y = x * 1
        return self.a(y) + self.b(y) + self.c(y + 0)


def test_layers_that_read_one_tensor_share_its_quantizer(tmp_path):
    model = in_training(tmp_path, Siblings(), X, lambda content: content.update(batch_num=2))
    assert model.a.data_quantizer is model.b.data_quantizer is not model.c.data_quantizer
    model(X)
    assert model.a.data_quantizer.batches == 1, "one batch, though two layers read it"
    assert len([name for name, _ in model.named_parameters() if "clip_max" in name]) == 2
    model(X)
    alone = copy.deepcopy(model)
    assert alone.a.data_quantizer is alone.b.data_quantizer is not model.a.data_quantizer
    model(X).sum().backward()
    shared = model.a.data_quantizer.clip_max.grad.clone()
    parts = []
    for layer in (alone.a, alone.b):
        alone.zero_grad()
        layer(X * 1).sum().backward()
        parts.append(layer.data_quantizer.clip_max.grad.clone())
    assert torch.allclose(shared, parts[0] + parts[1], rtol=1e-5)


def test_siblings_with_settings_of_their_own_do_not_share(tmp_path):
    def change(content):
        content["b"][DATA].update(clip_max=1.0, clip_min=-1.0)

    model = in_training(tmp_path, Siblings(), X, change)
    assert model.a.data_quantizer is not model.b.data_quantizer


@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_a_state_saved_at_any_time_is_restored(tmp_path, batches):
    def change(content):
        content["batch_num"] = 2
        content["2"][WEIGHT].update(algo="ulq_retrain")

    model = in_training(tmp_path, chain(), X, change)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for seed in range(batches):
        optimizer.zero_grad()
        model(random(8, 3, seed=seed)).square().sum().backward()
        optimizer.step()
    state = {f"module.{name}": value for name, value in model.state_dict().items()}  # as under DistributedDataParallel
    torch.save({"epoch": 1, "state": state}, tmp_path / "saved.pth")
    restored = restore_quant_retrain_model(
        tmp_path / "config.json", chain(), tmp_path / "r.txt", X, tmp_path / "saved.pth", "state"
    )
    for seed in range(batches, 5):
        batch = random(8, 3, seed=seed)
        assert torch.equal(model(batch), restored(batch))


def test_what_cannot_be_restored(tmp_path):
    in_training(tmp_path, chain(), X)
    arguments = (tmp_path / "config.json", chain(), tmp_path / "r.txt", X, tmp_path / "s.pth")
    with pytest.raises(ModelError, match=r"s\.pth: cannot be read as what torch.save wrote"):
        restore_quant_retrain_model(*arguments)
    torch.save({"state_dict": chain().state_dict()}, tmp_path / "s.pth")
    with pytest.raises(ModelError, match=r"s\.pth: no state_dict_name 'state_dct' in it; did you mean 'state_dict'"):
        restore_quant_retrain_model(*arguments, "state_dct")
    with pytest.raises(ModelError, match=r"s\.pth: not the state of this model with this configuration: .*clip_max"):
        restore_quant_retrain_model(*arguments, "state_dict")


def test_nan_in_the_first_batches_names_the_layer(tmp_path):
    model = in_training(tmp_path, chain(), X)
    with pytest.raises(DataError, match=r"layer '0': the first clip ends cannot be found: .*NaN"):
        model(X * float("nan"))


def test_transformers_compute_through_their_layers(tmp_path):
    """In evaluation torch's own layer has a path around its Linears, which would leave them in float."""
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    x = random(1, 4, 8)
    model = in_training(tmp_path, block, x).eval()
    with torch.no_grad():
        first, second = model(x), block.eval()(x)
    assert model.linear1.data_quantizer.is_ready
    assert not torch.equal(first, second)


def test_a_whole_model_can_be_pickled(tmp_path):
    model = in_training(tmp_path, Siblings(), X)
    model(X)
    torch.save(model, tmp_path / "whole.pth")
    loaded = torch.load(tmp_path / "whole.pth", weights_only=False)
    assert torch.equal(loaded.eval()(X), model.eval()(X))


WORKER = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, {tests!r})
from torch_material import in_training, nn, random
from pathlib import Path
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{{folder}}/meeting", rank=rank, world_size=2)
mine = folder / str(rank); mine.mkdir()
torch.manual_seed(0)
model = in_training(mine, nn.Sequential(nn.Linear(3, 2)), random(8, 3))
wrapped = nn.parallel.DistributedDataParallel(model)
data = random(8, 3, seed=rank) * (rank + 1)
wrapped(data).square().sum().backward()
quantizer = model[0].data_quantizer
first = [float(quantizer.clip_max.detach()), float(quantizer.clip_min.detach())]
with torch.no_grad():
    quantizer.clip_max.add_(rank)  # as if the processes had drifted apart
wrapped(data).sum().backward()
print(*first, float(quantizer.clip_max.detach()))
dist.destroy_process_group()
"""


def test_processes_agree_on_the_mean_of_their_ends(tmp_path):
    code = WORKER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-W", "ignore", "-c", code]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # pytest-xdist runs one process a core already
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone
        )
        for rank in range(2)
    ]
    answers = [worker.communicate(timeout=100) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], answers
    first, second = ([float(part) for part in out.split()] for out, _ in answers)
    assert first == second
    fits = [
        fit_ifmr(
            LogLinearHistogram.from_values((random(8, 3, seed=rank) * (rank + 1)).numpy()),
            IfmrOptions(asymmetric=False),
        )
        for rank in range(2)
    ]
    assert first[:2] == pytest.approx(
        [sum(float(getattr(fit, end)) for fit in fits) / 2 for end in ("clip_max", "clip_min")], rel=1e-6
    )
    assert first[2] == pytest.approx(first[0] + 0.5, rel=1e-6)
