"""One layer cut out of a prepared model, as a model of its own: its data in, its output out."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort

from calibrant.export.memory_session import open_model
from calibrant.export.partial import QuantizedParts, partial_fake_quant
from calibrant.export.proto_graph import run_session
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel

Array = npt.NDArray[np.generic]


def isolate(prepared: PreparedModel, layer: Layer) -> PreparedModel:
    """Return the layer alone: its node, the Add of its bias and the Pad that is its padding.

    Its inputs are ``layer.tensor`` and, for a product of two variables, ``layer.tensor_b``; shapes are left open, since a capture
    holds one sample at a time.
    """
    nodes = {node.name: node for node in prepared.model.graph}
    last = nodes[layer.name if layer.bias_node is None else layer.bias_node]
    graph = ir.convenience.extract(prepared.model.graph, list(data_tensors(layer)), [last.outputs[0]])
    for value in (*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)):
        value.shape = None
    model = ir.Model(graph, ir_version=prepared.model.ir_version)
    return replace(prepared, model=model, layers=(layer,), outputs=(str(last.outputs[0].name),))


def data_tensors(layer: Layer) -> tuple[str, ...]:
    """Return the values that a layer computes from, each once."""
    return tuple(dict.fromkeys(name for name in (layer.tensor, layer.tensor_b) if name))


@dataclass(frozen=True)
class IsolatedLayer:
    """A layer in float and as the fake-quant model computes it, ready to run on captured data.

    Attributes:
        layer: which.
        reference: session of the float layer.
        quantized: session of its quantized form.
    """

    layer: Layer
    reference: ort.InferenceSession
    quantized: ort.InferenceSession

    def outputs(self, data: tuple[Array, ...]) -> tuple[Array, Array]:
        """Return what both make of one sample, float first.

        Args:
            data: the values of `data_tensors`.

        Raises:
            DataError: onnxruntime fails on it.
        """
        feeds = dict(zip(data_tensors(self.layer), data, strict=True))
        names = [one.name for one in self.reference.get_outputs()]
        return run_session(self.reference, names, feeds)[0], run_session(self.quantized, names, feeds)[0]


def open_isolated(prepared: PreparedModel, parts: QuantizedParts, layer: Layer) -> IsolatedLayer:
    """Cut a layer out and open both of its forms; the quantized one is `partial_fake_quant` of the cut.

    Raises:
        LayerNotFoundError: the layer is not quantized.
    """
    alone = isolate(prepared, layer)
    reference, quantized = (partial_fake_quant(alone, parts, chosen) for chosen in ((), (layer.name,)))
    return IsolatedLayer(layer, open_model(reference), open_model(quantized))
