"""Rows of `quant_params` and `balance` joined with the layers of the prepared model that they speak of."""

import numpy as np
import polars as pl

from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel


def fitted_layers(prepared: PreparedModel, parameters: pl.DataFrame, balance: pl.DataFrame) -> list[QuantizedLayer]:
    """Return the layers that are quantized with their data, with their scales, in topological order.

    Args:
        prepared: the prepared model.
        parameters: rows of `quant_params` of one fit.
        balance: rows of `balance` of the same fit.
    """
    frame = parameters.filter(pl.col("layer_id").is_not_null())
    by_layer = {int(key[0]): part for key, part in frame.partition_by("layer_id", as_dict=True).items()}
    measured = set(frame.filter(role="data")["layer_id"])
    factors = balance.sort("layer_id", "channel")
    return [
        _fitted(layer, by_layer[layer.layer_id], factors.filter(layer_id=layer.layer_id))
        for layer in prepared.layers
        if layer.layer_id in measured
    ]


def _fitted(layer: Layer, frame: pl.DataFrame, balance: pl.DataFrame) -> QuantizedLayer:
    data = frame.filter(role="data").row(0, named=True)
    weight = frame.filter(role="weight").sort("channel")
    scale_w = weight["scale"].to_numpy() if weight.height else np.ones(1, np.float32)
    return QuantizedLayer(
        layer=layer,
        scale_d=np.float32(data["scale"]),
        offset_d=int(data["offset"]),
        data_bits=int(data["bits"]),
        scale_w=np.asarray(scale_w, np.float32),
        weight_bits=int(weight["bits"][0]) if weight.height else 8,
        cluster=tuple(frame.filter(role="cluster").sort("channel")["offset"]),
        balance=np.asarray(balance["factor"].to_numpy(), np.float32) if balance.height else None,
        shift=tuple(frame.filter(role="shift").sort("channel")["offset"]),
    )
