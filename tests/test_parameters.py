"""Parameters read without the graph are those of the prepared model."""

import models
import numpy as np
import pytest

from calibrant.errors import LayerNotFoundError, ModelError
from calibrant.ingest.model import initializer_value, prepare_model, save_prepared
from calibrant.ingest.nodes import model_nodes
from calibrant.ingest.parameters import Parameters


def test_values_and_names_are_the_prepared_models(tmp_path):
    prepared = prepare_model(models.save(models.gemm(), tmp_path / "m.onnx"))
    save_prepared(prepared, tmp_path / "model")
    parameters = Parameters(tmp_path / "model")
    for layer in prepared.layers:
        for name in (layer.weight, layer.bias):
            if name is not None:
                np.testing.assert_array_equal(parameters.value(name), initializer_value(prepared, name))
    assert list(parameters.nodes) == [node.name for node in prepared.model.graph]
    assert parameters.nodes == model_nodes(prepared.model.graph)


def test_what_is_missing_or_damaged_is_named(tmp_path):
    save_prepared(prepare_model(models.save(models.gemm(), tmp_path / "m.onnx")), tmp_path / "model")
    with pytest.raises(LayerNotFoundError, match=r"prepared\.onnx: no initializer 'weight'"):
        Parameters(tmp_path / "model").value("weight")
    with pytest.raises(ModelError, match=r"prepared\.onnx: the prepared model cannot be read"):
        Parameters(tmp_path)
