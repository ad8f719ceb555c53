"""The fake-quant model with only some of its layers quantized; the others compute as in the prepared float model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrant.errors import LayerNotFoundError, nearest
from calibrant.export.fake_quant import build_fake_quant
from calibrant.export.graph_edit import export_clone, into_memory
from calibrant.export.quantized_layer import EncodedLayer, QuantizedLayer, encode_layer
from calibrant.export.quantized_tensor import EncodedTensor, QuantizedTensor, encode_tensor
from calibrant.export.weight_only import EncodedWeight, WeightOnlyForm, WeightOnlyLayer, encode_weight
from calibrant.ingest.model import PreparedModel


@dataclass(frozen=True, eq=False)
class QuantizedParts:
    """Everything that a fit quantizes of a model, encoded once for as many models as are built of it.

    Attributes:
        layers: those that are quantized with their data, in topological order.
        tensors: inputs of other nodes (``tensor_quantize``).
        weights: layers whose weight alone is quantized, in topological order.
    """

    layers: tuple[EncodedLayer, ...]
    tensors: tuple[EncodedTensor, ...] = ()
    weights: tuple[EncodedWeight, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What the record calls them: names of layers, and ``node:index`` for an input."""
        whole = (one.layer.name for one in self.layers)
        return (*whole, *(one.quantized.key for one in self.tensors), *(one.layer.name for one in self.weights))

    def only(self, chosen: Collection[str]) -> "QuantizedParts":
        """Return those of these names.

        Raises:
            LayerNotFoundError: a name is of nothing that is quantized.
        """
        _check_names(chosen, self.names)
        return QuantizedParts(
            tuple(one for one in self.layers if one.layer.name in chosen),
            tuple(one for one in self.tensors if one.quantized.key in chosen),
            tuple(one for one in self.weights if one.layer.name in chosen),
        )


def _check_names(chosen: Collection[str], names: Sequence[str]) -> None:
    known = frozenset(names)
    for name in chosen:
        if name not in known:
            message = f"layer '{name}' is not quantized in this fit{nearest(name, names)}; see the table `plan`"
            raise LayerNotFoundError(message)


def encode_parts(
    prepared: PreparedModel,
    layers: Sequence[QuantizedLayer],
    tensors: Sequence[QuantizedTensor] = (),
    weight_only: Sequence[WeightOnlyLayer] = (),
    weight_only_form: WeightOnlyForm = "dequantize",
) -> QuantizedParts:
    """Quantize the weights and biases of layers, and look inputs up in the prepared model.

    Args:
        prepared: the float model.
        layers: those that are quantized with their data, in any order.
        tensors: inputs of other nodes, in the order of their entries in the record.
        weight_only: layers whose weight alone is quantized, in any order.
        weight_only_form: as for `encode_weight`.

    Raises:
        ExportError: a bias leaves int32, or the model has no such node or input.
    """
    ordered = sorted(layers, key=lambda one: one.layer.layer_id)
    alone = sorted(weight_only, key=lambda one: one.layer.layer_id)
    return QuantizedParts(
        tuple(encode_layer(prepared, layer) for layer in ordered),
        tuple(encode_tensor(prepared, tensor) for tensor in tensors),
        tuple(encode_weight(prepared, one, weight_only_form) for one in alone),
    )


def partial_fake_quant(prepared: PreparedModel, parts: QuantizedParts, chosen: Collection[str]) -> ir.Model:
    """Return a model that computes the chosen parts as the fake-quant model does and everything else in float.

    With none chosen it is the prepared model itself, whose outputs it has bit for bit under equal session options; with all
    chosen it is the fake-quant model that `calibrant export` writes.

    Args:
        prepared: the float model.
        parts: what the fit quantizes.
        chosen: names out of ``parts.names``, in any order.

    Raises:
        LayerNotFoundError: a name is of nothing that is quantized.
        ExportError: the opset cannot be raised to 11.

    Example:
        >>> model = partial_fake_quant(prepared, parts, {"conv1", "fc"})  # doctest: +SKIP
    """
    only = parts.only(frozenset(chosen))
    if not only.names:
        return into_memory(export_clone(prepared))  # whatever its opset: nothing is added that would need a newer one
    return build_fake_quant(prepared, only.layers, only.tensors, only.weights)[0]
