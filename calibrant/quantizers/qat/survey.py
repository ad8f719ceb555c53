"""Which layers of a PyTorch model can be trained for quantization, in which order they run, and what feeds them.

The model is run once on the caller's input and watched: no tracing, so that any Python in its forward is fine.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from calibrant.errors import ModelError, first_line
from calibrant.quantizers.qat.layers import LAYER_TYPES
from calibrant.stats.events import Event
from calibrant.stats.tables import LayerRow

_RELU: Final = frozenset({torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, nn.functional.relu, nn.functional.relu_})
_INPUT_RANK: Final = {"Conv": 2, "ConvTranspose": 2}  # axes besides those of the kernel


@dataclass(frozen=True, slots=True)
class Survey:
    """What one run of a model showed.

    Attributes:
        rows: every layer of a known type, in the order in which they ran first; those that never ran come last.
        producers: layer -> ``Relu`` where one makes its input, else an empty text.
        norms: layer -> the BatchNorm that alone reads its result.
        sources: layer -> a number; layers that read the same tensor have the same one.
        events: the layers that are left out, and why.
    """

    rows: tuple[LayerRow, ...]
    producers: Mapping[str, str]
    norms: Mapping[str, str]
    sources: Mapping[str, int]
    events: tuple[Event, ...]

    @property
    def trainable(self) -> dict[str, LayerRow]:
        """The layers that can be trained, by name."""
        return {row.layer: row for row in self.rows if row.quantizable}


Key = tuple[int, int]


@dataclass(slots=True)
class _Watched:
    """What the hooks saw: calls of each layer, the tensors that they read, what a Relu or a layer made, and who reads that."""

    calls: Counter[str] = field(default_factory=Counter)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    relus: dict[Key, Tensor] = field(default_factory=dict)  # holds them, so that no id is given twice
    outputs: dict[Key, tuple[str, Tensor]] = field(default_factory=dict)
    readers: Counter[Key] = field(default_factory=Counter)  # of `outputs`
    norms: dict[str, str] = field(default_factory=dict)

    def lone_norms(self) -> dict[str, str]:
        """Return the BatchNorm behind each layer whose result nothing else reads."""
        alone = {layer for key, (layer, _) in self.outputs.items() if self.readers[key] == 1}
        return {layer: norm for layer, norm in self.norms.items() if layer in alone}


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside a DistributedDataParallel or DataParallel, or the model itself."""
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    return model.module if isinstance(model, wrappers) else model


def survey(model: nn.Module, input_data: Any) -> Survey:
    """Run a copy of a model once and list its layers.

    Args:
        model: float, with or without a DistributedDataParallel around it; it is not changed.
        input_data: a tensor, or a tuple of the arguments of ``forward``.

    Raises:
        ModelError: the model cannot be copied or does not take `input_data`, or it is itself a layer.

    Example:
        >>> shared = nn.Linear(2, 2)
        >>> found = survey(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), shared, shared, nn.Linear(2, 1)), torch.zeros(1, 2))
        >>> list(found.trainable), found.producers["4"], [event.layer for event in found.events]
        (['0', '4'], '', ['2'])
    """
    inside = unwrapped(model)
    if type(inside) in LAYER_TYPES:
        message = (
            f"the model is itself a {type(inside).__name__}, so that its layer has no name; put it into nn.Sequential"
        )
        raise ModelError(message)
    probe = copied(inside).eval()
    modules = {name: module for name, module in probe.named_modules() if isinstance(module, tuple(LAYER_TYPES))}
    watched = _watch(probe, modules, arguments(input_data))
    order = [*watched.calls, *(name for name in modules if name not in watched.calls)]
    reasons = _Reasons(probe, watched)
    rows = tuple(
        _row(number, name, modules[name], reasons.of(name, modules[name])) for number, name in enumerate(order)
    )
    numbers = {key: number for number, key in enumerate(dict.fromkeys(watched.keys.values()))}
    return Survey(
        rows,
        {name: "Relu" if key in watched.relus else "" for name, key in watched.keys.items()},
        watched.lone_norms(),
        {name: numbers[key] for name, key in watched.keys.items()},
        tuple(
            Event("fit", "info", f"layer '{row.layer}' stays in float: {row.reason}", row.layer)
            for row in rows
            if row.reason
        ),
    )


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model.

    Raises:
        ModelError: it cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        message = f"model {type(model).__name__} cannot be copied: {first_line(error)}; keep no results of forward in its attributes"
        raise ModelError(message) from error


def arguments(input_data: Any) -> tuple[Any, ...]:
    """Return the positional arguments of ``forward`` from what AMCT's functions take as `input_data`.

    Example:
        >>> len(arguments(torch.zeros(1))), len(arguments([torch.zeros(1), None]))
        (1, 2)
    """
    return tuple(input_data) if isinstance(input_data, tuple | list) else (input_data,)


def _watch(model: nn.Module, modules: Mapping[str, nn.Module], args: tuple[Any, ...]) -> _Watched:
    watched = _Watched()
    hooks = [
        module.register_forward_pre_hook(_hook(name, watched), with_kwargs=True) for name, module in modules.items()
    ]
    hooks += [module.register_forward_hook(_output_hook(name, watched)) for name, module in modules.items()]
    norms = {name: module for name, module in model.named_modules() if _folds(module)}
    hooks += [module.register_forward_pre_hook(_norm_hook(name, watched)) for name, module in norms.items()]
    try:
        # gradients on: otherwise a transformer takes a path around its layers
        with torch.enable_grad(), _Watcher(watched):
            model(*args)
    except Exception as error:  # whatever the model's forward raises
        shapes = ", ".join(str(tuple(one.shape)) if isinstance(one, Tensor) else type(one).__name__ for one in args)
        message = f"model {type(model).__name__} does not run on input_data of {shapes}: {first_line(error)}"
        raise ModelError(message) from error
    finally:
        for hook in hooks:
            hook.remove()
    return watched


def _hook(name: str, watched: _Watched) -> Any:
    def see(_: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        value = args[0] if args else kwargs.get("input")
        watched.calls[name] += 1
        if isinstance(value, Tensor) and name not in watched.inputs:
            watched.inputs[name], watched.keys[name] = value, _key(value)

    return see


def _folds(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm that can be folded into a convolution before it."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_var is not None


def _output_hook(name: str, watched: _Watched) -> Any:
    def see(_: nn.Module, __: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            watched.outputs[_key(result)] = name, result
            watched.readers[_key(result)] = 0  # what the layer itself did to it

    return see


def _norm_hook(name: str, watched: _Watched) -> Any:
    def see(_: nn.Module, args: Sequence[Any]) -> None:
        if args and isinstance(args[0], Tensor) and _key(args[0]) in watched.outputs:
            watched.norms[watched.outputs[_key(args[0])][0]] = name

    return see


def _key(value: Tensor) -> Key:
    """Return what tells a tensor from others, and from itself before it was changed in place."""
    return id(value), value._version


class _Watcher(TorchFunctionMode):
    """Notes what a Relu makes, however it is called, and how often the result of a layer is read."""

    def __init__(self, watched: _Watched) -> None:
        super().__init__()
        self._watched = watched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keys = [_key(one) for one in args if isinstance(one, Tensor)]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            for key in keys:
                self._watched.readers[key] += key in self._watched.outputs
            if func in _RELU:
                self._watched.relus[_key(result)] = result
        return result


class _Reasons:
    """Why a layer cannot be trained."""

    def __init__(self, model: nn.Module, watched: _Watched) -> None:
        self._watched = watched
        self._homes: dict[int, list[str]] = {}
        for name, parameter in _parameters(model):
            self._homes.setdefault(id(parameter), []).append(name)

    def of(self, name: str, module: nn.Module) -> str | None:
        """Return why a layer stays in float, or None."""
        return self._class(module) or self._use(name) or self._sharing(name, module) or self._shape(name, module)

    def _class(self, module: nn.Module) -> str | None:
        if type(module) in LAYER_TYPES:
            return None
        return f"its class {type(module).__name__} is not one of torch's own, whose forward is known"

    def _use(self, name: str) -> str | None:
        calls = self._watched.calls[name]
        if calls == 0:
            return "input_data does not reach it, or its weight is used without calling it"
        return None if calls == 1 else f"it is reused: {calls} calls in one run"

    def _sharing(self, name: str, module: nn.Module) -> str | None:
        for parameter in ("weight", "bias"):
            homes = self._homes.get(id(getattr(module, parameter)), [])
            others = [home for home in homes if home != f"{name}.{parameter}"]
            if others:
                return f"it is reused: its {parameter} is also '{others[0]}'"
        return None

    def _shape(self, name: str, module: nn.Module) -> str | None:
        weight, value = module.weight, self._watched.inputs.get(name)
        if value is None:
            return "its input is no tensor"
        if {weight.dtype, value.dtype} - {torch.float32, torch.float16}:
            return f"it computes in {str(weight.dtype).removeprefix('torch.')}; float32 or float16 is expected"
        kind, rank = LAYER_TYPES[type(module)].op_type, LAYER_TYPES[type(module)].kernel_rank
        if kind in _INPUT_RANK and value.ndim != rank + _INPUT_RANK[kind]:
            return f"its input has {value.ndim} axes, not {rank + _INPUT_RANK[kind]}: the axis of the batch is needed"
        if value.ndim < 2:
            return "its input has 1 axis: the axis of the batch is needed"
        if getattr(module, "padding_mode", "zeros") != "zeros":
            return f"its padding_mode is '{module.padding_mode}'; zeros is expected"
        if kind == "Conv" and rank == 3 and module.dilation[0] != 1:
            return "its depth is dilated"
        return None


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every parameter under each of its names; a module with two names is one home."""
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{prefix}.{name}".lstrip("."), parameter


def _row(number: int, name: str, module: nn.Module, reason: str | None) -> LayerRow:
    kind = next(kind for base, kind in LAYER_TYPES.items() if isinstance(module, base))
    weight, bias = module.weight, module.bias
    outputs, inputs = kind.channels(module)
    return LayerRow(
        layer_id=number,
        layer=name,
        op_type=kind.op_type,
        tensor_id=None,
        weight=f"{name}.weight",
        bias=None if bias is None else f"{name}.bias",
        channels_out=outputs,
        channels_in=inputs,
        groups=getattr(module, "groups", 1),
        kernel_rank=kind.kernel_rank,
        macs=None,
        parameters=weight.numel() + (0 if bias is None else bias.numel()),
        quantizable=reason is None,
        reason=reason,
    )
