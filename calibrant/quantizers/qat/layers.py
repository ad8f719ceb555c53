"""The layers that are trained: torch's own classes with a quantizer for their input and one for their weight.

A layer is changed in place by its class, so that its parameters keep their names and ``isinstance`` and a float checkpoint still
hold; `to_float` changes it back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.quantizers.qat.bias import coded_bias
from calibrant.quantizers.qat.data_quantizer import DataQuantizer
from calibrant.quantizers.qat.settings import LayerSettings
from calibrant.quantizers.qat.weight_quantizer import WeightQuantizer


class QuantizedLayer(nn.Module):
    """What all trained layers have.

    Attributes:
        settings: how the layer is trained.
        data_quantizer: of its input; layers that read one tensor share it.
        weight_quantizer: of its weight.
        followers: the BatchNorm that alone reads its result and is folded into it at export, or nothing. A tuple, since its
            parameters belong to the module around it.
    """

    settings: LayerSettings
    data_quantizer: DataQuantizer
    weight_quantizer: WeightQuantizer
    followers: tuple[nn.Module, ...]

    def used_bias(self) -> Tensor | None:
        """Return the bias as it is while training, and as the exported models have it in evaluation."""
        if self.training or not self.data_quantizer.is_ready:
            return self.bias
        with torch.no_grad():
            step = self.data_quantizer.scale() * self.weight_quantizer.scales(self.weight)
            return coded_bias(self.bias, step, self.followers[0] if self.followers else None)


class QuantizedLinear(QuantizedLayer, nn.Linear):
    """A Linear in training for quantization."""

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """Compute on the quantized input with the quantized weight."""
        return functional.linear(self.data_quantizer(input), self.weight_quantizer(self.weight), self.used_bias())


class QuantizedConv1d(QuantizedLayer, nn.Conv1d):
    """A Conv1d in training for quantization."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute on the quantized input with the quantized weight."""
        return self._conv_forward(self.data_quantizer(input), self.weight_quantizer(self.weight), self.used_bias())


class QuantizedConv2d(QuantizedLayer, nn.Conv2d):
    """A Conv2d in training for quantization."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute on the quantized input with the quantized weight."""
        return self._conv_forward(self.data_quantizer(input), self.weight_quantizer(self.weight), self.used_bias())


class QuantizedConv3d(QuantizedLayer, nn.Conv3d):
    """A Conv3d in training for quantization."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute on the quantized input with the quantized weight."""
        return self._conv_forward(self.data_quantizer(input), self.weight_quantizer(self.weight), self.used_bias())


class QuantizedConvTranspose2d(QuantizedLayer, nn.ConvTranspose2d):
    """A ConvTranspose2d in training for quantization."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Compute on the quantized input with the quantized weight."""
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation
        )
        data, weight = self.data_quantizer(input), self.weight_quantizer(self.weight)
        return functional.conv_transpose2d(
            data, weight, self.used_bias(), self.stride, self.padding, output_padding, self.groups, self.dilation
        )


@dataclass(frozen=True, slots=True)
class LayerType:
    """A type of layer that can be trained.

    Attributes:
        quantized: its class in training.
        op_type: the ONNX type that it becomes.
        kernel_rank: spatial dimensions of its kernel; 0 for a Linear.
        channels: gives output and input channels of a layer.
    """

    quantized: type[QuantizedLayer]
    op_type: str
    kernel_rank: int
    channels: Callable[[Any], tuple[int, int]]


def _features(layer: Any) -> tuple[int, int]:
    return layer.out_features, layer.in_features


def _channels(layer: Any) -> tuple[int, int]:
    return layer.out_channels, layer.in_channels


LAYER_TYPES: Final[Mapping[type[nn.Module], LayerType]] = {
    nn.Linear: LayerType(QuantizedLinear, "Gemm", 0, _features),
    nn.Conv1d: LayerType(QuantizedConv1d, "Conv", 1, _channels),
    nn.Conv2d: LayerType(QuantizedConv2d, "Conv", 2, _channels),
    nn.Conv3d: LayerType(QuantizedConv3d, "Conv", 3, _channels),
    nn.ConvTranspose2d: LayerType(QuantizedConvTranspose2d, "ConvTranspose", 2, _channels),
}
_FLOAT: Final[Mapping[type[nn.Module], type[nn.Module]]] = {kind.quantized: base for base, kind in LAYER_TYPES.items()}


def quantize_layer(
    layer: nn.Module, settings: LayerSettings, data: DataQuantizer, norm: nn.Module | None = None
) -> None:
    """Put a layer of one of `LAYER_TYPES` into training.

    Args:
        layer: the layer, changed in place.
        settings: how to train it.
        data: the quantizer of its input, maybe that of another layer too.
        norm: the BatchNorm that is folded into it at export, or None.
    """
    kind = LAYER_TYPES[type(layer)]
    outputs, _ = kind.channels(layer)
    transposed, groups = kind.op_type == "ConvTranspose", getattr(layer, "groups", 1)
    weight = WeightQuantizer(settings.weight, outputs, transposed=transposed, groups=groups)
    layer.__class__ = kind.quantized
    layer.settings = settings
    layer.followers = () if norm is None else (norm,)
    layer.data_quantizer = data.to(layer.weight.device)
    layer.weight_quantizer = weight.to(layer.weight.device)
    layer.register_forward_pre_hook(
        _nothing
    )  # its presence keeps torch's transformers from computing around their layers


def _nothing(_: nn.Module, __: Any) -> None:
    return None


def to_float(model: nn.Module) -> nn.Module:
    """Change the trained layers of a model back, in place; their float weights are what training left.

    Returns:
        the model.
    """
    for layer in model.modules():
        if isinstance(layer, QuantizedLayer):
            del layer.data_quantizer, layer.weight_quantizer, layer.settings, layer.followers
            for key in [key for key, hook in layer._forward_pre_hooks.items() if hook is _nothing]:
                del layer._forward_pre_hooks[key]
            layer.__class__ = _FLOAT[type(layer)]
    return model


def quantized_layers(model: nn.Module) -> dict[str, QuantizedLayer]:
    """Return the trained layers of a model by name, in the order of the model's modules."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLayer)}
