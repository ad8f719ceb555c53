"""What training left: the learned scales of each layer, and the float model without its quantizers."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from calibrant.errors import ExportError, ModelError, RangeError, first_line
from calibrant.quantizers.affine import Fit
from calibrant.quantizers.qat.layers import quantized_layers, to_float
from calibrant.quantizers.qat.settings import LayerSettings
from calibrant.quantizers.qat.survey import arguments, copied, unwrapped

_OPSET = 16  # what AMCT exports with: within what ATC reads (8 to 22)
_OPSET_NEWER = 18  # the least that the exporter of newer PyTorch writes


@dataclass(frozen=True, eq=False)
class TrainedLayer:
    """What training found for a layer.

    Attributes:
        settings: how it was trained; its name.
        data: scale and offset of its input, algorithm ``ulq``.
        weight: scales of its weight, algorithm ``arq_retrain`` or ``ulq_retrain``, before anything is folded into it.
        values: the float weight, in PyTorch's layout.
    """

    settings: LayerSettings
    data: Fit
    weight: Fit
    values: npt.NDArray[np.floating]


def trained_layers(model: nn.Module) -> list[TrainedLayer]:
    """Read the learned scales of a model.

    Args:
        model: what `create_quant_retrain_model` gave, trained, with or without a DistributedDataParallel around it.

    Returns:
        In the order of the model's modules.

    Raises:
        ExportError: no layer is in training, or one has not seen its ``batch_num`` batches; says how many are missing.
        RangeError: training left a clip end or step that is not finite; names the layer.
    """
    layers = quantized_layers(unwrapped(model))
    if not layers:
        message = "the model has no layer in training for quantization; give what create_quant_retrain_model returned"
        raise ExportError(message)
    return [_trained(name, layer) for name, layer in layers.items()]


def _trained(name: str, layer: Any) -> TrainedLayer:
    quantizer = layer.data_quantizer
    if not quantizer.is_ready:
        message = (
            f"layer '{name}': {quantizer.batches} of {quantizer.batch_num} batches (batch_num) were run, so that its clip range is not "
            "known yet; run the model on more batches before saving it"
        )
        raise ExportError(message)
    try:
        data, weight = quantizer.fit(), layer.weight_quantizer.fit(layer.weight)
    except ValueError as error:
        message = f"layer '{name}': {error}"
        raise RangeError(message) from error
    return TrainedLayer(layer.settings, data, weight, layer.weight.detach().cpu().numpy())


def float_model(model: nn.Module) -> nn.Module:
    """Return a copy of a trained model on the CPU without its quantizers, in evaluation mode.

    Raises:
        ModelError: it cannot be copied.
    """
    return to_float(copied(unwrapped(model))).cpu().eval()


def write_onnx(
    model: nn.Module,
    path: Path,
    input_data: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Any = None,
) -> None:
    """Write a float model as ONNX, its parameters under their own names and nothing folded.

    PyTorch's tracing exporter writes opset 16, as AMCT does; where a PyTorch has it no more or it fails, the newer one writes opset 18.

    Args:
        model: float, in evaluation mode, on the CPU; a copy, which may get biases of zeros.
        path: the file.
        input_data: a tensor, or a tuple of the arguments of ``forward``.
        input_names: names of the model's inputs, or None.
        output_names: names of its outputs, or None.
        dynamic_axes: as for ``torch.onnx.export``.

    Raises:
        ModelError: neither exporter takes the model; says what both said.
    """
    args = tuple(one.cpu() if isinstance(one, Tensor) else one for one in arguments(input_data))
    names = {"input_names": input_names, "output_names": output_names, "dynamic_axes": dynamic_axes}
    with torch.no_grad(), _quiet():
        try:
            torch.onnx.export(
                model, args, str(path), dynamo=False, do_constant_folding=False, opset_version=_OPSET, **names
            )
        except Exception as traced:  # torch's exporters raise whatever their parts raise
            try:
                torch.onnx.export(
                    model, args, str(path), dynamo=True, opset_version=_OPSET_NEWER, verbose=False, **names
                )
            except Exception as exported:
                message = f"the model cannot be written as ONNX: {first_line(traced)}; with the newer exporter: {first_line(exported)}"
                raise ModelError(message) from exported


def _give_biases(model: nn.Module) -> None:
    """Give convolutions without a bias one of zeros: the newer exporter would compute it, and no layer has a computed bias."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.conv._ConvNd) and layer.bias is None:
            layer.bias = nn.Parameter(torch.zeros(layer.out_channels, dtype=layer.weight.dtype))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the exporters say of their own future, of traced Python values, and of graphs that they cannot write."""
    if (log := getattr(torch._C, "_jit_set_onnx_log_enabled", None)) is not None:
        log(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sample_feeds(input_data: Any) -> list[npt.NDArray[np.generic]]:
    """Return the tensors of `input_data` as arrays, in their order."""
    return [one.detach().cpu().numpy() for one in arguments(input_data) if isinstance(one, Tensor)]
