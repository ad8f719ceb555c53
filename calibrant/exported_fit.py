"""What an export takes from one fit of a run: its layers, tensors and weights with their scales, and AMCT's config.json of it."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl

from calibrant.export.files import ExportedFiles, write_export
from calibrant.export.partial import QuantizedParts, encode_parts
from calibrant.export.quantized_layer import QuantizedLayer
from calibrant.export.quantized_tensor import QuantizedTensor, in_order
from calibrant.export.weight_only import WeightOnlyForm, WeightOnlyLayer
from calibrant.fitting.fitted_layers import fitted_layers
from calibrant.ingest.model import PreparedModel
from calibrant.ingest.nodes import model_nodes
from calibrant.proto.any_config import parse_calibration_config
from calibrant.proto.documents import document_kind
from calibrant.proto.json_config import format_json_config
from calibrant.proto.retrain_json import RetrainJson, format_retrain_json, parse_retrain_json
from calibrant.proto.simple_config import QuantConfig
from calibrant.quantizers.half_factors import FORCED
from calibrant.quantizers.plan import json_config, resolve_plan
from calibrant.stats.run import Run
from calibrant.stats.tables import layer_rows

if TYPE_CHECKING:
    from calibrant.proto.op_types import Dialect


def quantized_layers(run: Run, prepared: PreparedModel, fit: str) -> list[QuantizedLayer]:
    """Join the layers that are quantized with their data with their scales of one fit, in topological order."""
    parameters, balance = run.read("quant_params").filter(fit=fit), run.read("balance").filter(fit=fit)
    found, half = (
        fitted_layers(prepared, parameters, balance),
        fit_configuration(run, fit).fakequant_precision_mode == FORCED,
    )
    return [replace(layer, half_factors=True) for layer in found] if half else found


def weight_only_layers(run: Run, prepared: PreparedModel, fit: str) -> list[WeightOnlyLayer]:
    """Join the layers whose weight alone a fit quantizes with its scales and offsets, in topological order."""
    rows = run.read("quant_params").filter(fit=fit)
    measured = set(rows.filter(role="data")["layer_id"])
    weights = rows.filter(~pl.col("layer_id").is_in(measured), role="weight").sort("layer_id", "channel")
    by_layer = {int(key[0]): part for key, part in weights.partition_by("layer_id", as_dict=True).items()}
    return [
        WeightOnlyLayer(layer, part["scale"].to_numpy(), part["offset"].to_numpy(), int(part["bits"][0]))
        for layer in prepared.layers
        if (part := by_layer.get(layer.layer_id)) is not None
    ]


def quantized_tensors(run: Run, prepared: PreparedModel, fit: str) -> list[QuantizedTensor]:
    """Return the quantized inputs of other nodes with their scales of one fit, in topological order."""
    rows = run.read("quant_params").filter(fit=fit, role="tensor").iter_rows(named=True)
    found = [
        QuantizedTensor(row["node"], row["input_index"], np.float32(row["scale"]), row["offset"], row["bits"])
        for row in rows
    ]
    return in_order(prepared, found)


def quantized_parts(
    run: Run, prepared: PreparedModel, fit: str, weight_only_form: WeightOnlyForm = "dequantize"
) -> QuantizedParts:
    """Return everything that a fit quantizes, encoded: what `partial_fake_quant` chooses from."""
    layers, tensors = quantized_layers(run, prepared, fit), quantized_tensors(run, prepared, fit)
    return encode_parts(prepared, layers, tensors, weight_only_layers(run, prepared, fit), weight_only_form)


def fit_configuration(run: Run, fit: str) -> QuantConfig | RetrainJson:
    """Return what a fit was made from; of a trained one the config.json of retraining."""
    record = run.info.fits[fit]
    source, dialect = record.config_source or "<options>", cast("Dialect | None", record.config_dialect)
    if document_kind(record.config_text, source) == "retrain-json":
        return parse_retrain_json(record.config_text, source)
    config = parse_calibration_config(record.config_text, source, dialect=dialect)
    return replace(config, calibrant_matmul_per_channel=True) if record.matmul_per_channel else config


def write_fit(
    run: Run,
    prepared: PreparedModel,
    fit: str,
    prefix: Path | str,
    weight_only_form: WeightOnlyForm = "dequantize",
) -> tuple[ExportedFiles, int]:
    """Write the five files of a fit; return them, and of how many layers the weight alone is quantized.

    Raises:
        ExportError: the files cannot be written.
    """
    layers = quantized_layers(run, prepared, fit)
    text, tensors = config_text(run, prepared, fit), quantized_tensors(run, prepared, fit)
    alone = weight_only_layers(run, prepared, fit)
    files = write_export(prepared, layers, prefix, text, tensors, weight_only=alone, weight_only_form=weight_only_form)
    return files, len(alone)


def config_text(run: Run, prepared: PreparedModel, fit: str) -> str:
    """Return AMCT's config.json of a fit: what was asked for, with the layers that stayed in float disabled."""
    config = fit_configuration(run, fit)
    fitted = run.read("plan").filter(fit=fit)
    if isinstance(config, RetrainJson):
        return _retrained(config, fitted.filter(pl.col("enabled"))["layer"].to_list())
    nodes, nuq = model_nodes(prepared.model.graph), fitted.filter(weight_algorithm="nuq")["layer"]
    plan = resolve_plan(config, layer_rows(run.read("layers")), other_nodes=nodes, nuq=nuq.to_list())
    enabled = set(fitted.filter(pl.col("enabled"))["layer_id"])
    rows = tuple(replace(row, enabled=row.layer_id in enabled) for row in plan.rows)
    batches = -(-run.info.samples // run.info.batch_size)
    return format_json_config(json_config(config, replace(plan, rows=rows), batch_num=batches))


def _retrained(config: RetrainJson, quantized: Collection[str]) -> str:
    layers = {
        name: layer if name in quantized else replace(layer, retrain_enable=False)
        for name, layer in config.layers.items()
    }
    return format_retrain_json(replace(config, layers=layers))
