"""The tables that a model alone decides: its weights, its biases, and what its Concat and Add nodes join."""

from pathlib import Path

import numpy as np
import polars as pl

from calibrant.ingest.joins import joins_table
from calibrant.ingest.layers import Layer
from calibrant.ingest.model import PreparedModel, initializer_value
from calibrant.stats.parquet_columns import Pages, Part, joined_parts
from calibrant.stats.tables import conform, empty_frame, pages_together, table_file, write_frame, write_parts
from calibrant.stats.weights import channels_first, weight_columns


def write_model_tables(prepared: PreparedModel, folder: Path) -> None:
    """Write the tables weights, biases and joins into a run folder, each whole or not at all.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    write_parts("weights", _weights_pages(prepared), table_file(folder, "weights"))
    write_frame("biases", biases_table(prepared), table_file(folder, "biases"))
    write_frame("joins", joins_table(prepared), table_file(folder, "joins"))


def _weights_pages(prepared: PreparedModel) -> list[Pages]:
    layers = [layer for layer in prepared.layers if layer.quantizable and layer.weight is not None]
    return pages_together("weights", [_weights_part(prepared, layer) for layer in layers])


def _weights_part(prepared: PreparedModel, layer: Layer) -> Part:
    """Return rows of the `weights` table: the output channels of a layer's weight."""
    rows = channels_first(initializer_value(prepared, str(layer.weight)), layer.op_type, layer.groups)
    return {"layer_id": layer.layer_id, **weight_columns(layer.layer_id, rows)}


def biases_table(prepared: PreparedModel) -> pl.DataFrame:
    """Return the `biases` table: the bias of each output channel of every quantizable layer that has one."""
    layers = [layer for layer in prepared.layers if layer.quantizable and layer.bias is not None]
    parts: list[Part] = []
    for layer in layers:
        values = np.ravel(initializer_value(prepared, str(layer.bias))).astype(np.float32)
        parts.append({"layer_id": layer.layer_id, "channel": np.arange(values.size, dtype=np.int32), "value": values})
    return conform("biases", pl.DataFrame(joined_parts(parts))) if parts else empty_frame("biases")
