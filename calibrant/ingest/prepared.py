"""What a run needs to know of a prepared model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import onnx_ir as ir

from calibrant.ingest.layers import Layer
from calibrant.ingest.model_message import ModelMessage, message_of
from calibrant.stats.events import Event

_EXTERNAL_ABOVE: Final = 64 << 20  # bytes of weights; larger ones go to a file of their own


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input that a caller feeds.

    Attributes:
        name: as in the model.
        dtype: numpy dtype, e.g. float32 or int64.
        shape: one entry an axis: a size, a symbolic name, or None where unknown.
        batch_axis: the axis along which samples are joined, or None for a scalar or an input without one.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str | None, ...]
    batch_axis: int | None


@dataclass(frozen=True, slots=True)
class CapturedTensor:
    """A value that the run observes: input 0 of at least one quantizable layer, or an input of a node that ``tensor_quantize`` names.

    Attributes:
        tensor_id: counts from 0 in topological order of the producers (graph inputs first; ties by name).
        name: value name in the prepared model.
        producer: name of the producing node, or "" for a graph input.
        is_input: whether it is a graph input (then it is taken from the feed).
        channel_axis: axis of the channels for its first consumer (Conv, ConvTranspose, AveragePool 1; Gemm, MatMul last = -1); 1
            where no layer reads it.
        shape: static shape knowledge, one entry an axis (size, symbol or None), or None where the rank is unknown.
    """

    tensor_id: int
    name: str
    producer: str
    is_input: bool
    channel_axis: int
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class PreparedModel:
    """A normalised, fused float model and what can be quantized in it.

    Attributes:
        model: the prepared onnx_ir model.
        inputs: what a caller feeds.
        outputs: names of the graph outputs.
        tensors: what the run observes, by tensor_id.
        layers: what AMCT could quantize, by layer_id, refused ones included.
        original_nodes: prepared node name -> names of the source model's nodes that it stands for (a Conv with its fused BN: both).
        events: decisions and warnings of the preparation.
        source_hash: sha256 of the source model file (and of its external data).
    """

    model: ir.Model
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    tensors: tuple[CapturedTensor, ...]
    layers: tuple[Layer, ...]
    original_nodes: Mapping[str, tuple[str, ...]]
    events: tuple[Event, ...]
    source_hash: str

    @property
    def has_external_weights(self) -> bool:
        """Whether weights lie in files already, or are so large that they are saved to one."""
        tensors = list(self.model.graph.initializers.tensors())
        is_large = sum(tensor.nbytes for tensor in tensors) > _EXTERNAL_ABOVE
        return is_large or any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)

    @cached_property
    def message(self) -> ModelMessage | None:
        """The model in memory, as `calibrant.ingest.model.prepared_proto` says."""
        return None if self.has_external_weights else message_of(self.model)
