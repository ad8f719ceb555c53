"""Load a model with QuantizeLinear and DequantizeLinear and bring it to the form of every prepared model, without the pairs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from calibrant.ingest.describe import SOURCE_HASH, describe_model
from calibrant.ingest.passes import cleanup, fix_input, names, parameters, shapes
from calibrant.ingest.prepared import PreparedModel
from calibrant.ingest.qdq.fuse import fuse_norms
from calibrant.ingest.qdq.moved import join_pairs
from calibrant.ingest.qdq.operators import refuse_operators
from calibrant.ingest.qdq.strip import Stripped, strip_pairs
from calibrant.ingest.source import hashed_model, reading
from calibrant.stats.events import Event


class QdqModel(NamedTuple):
    """A model whose pairs were taken out.

    Attributes:
        prepared: the float model that is left; its weights and biases are the dequantized ones.
        stripped: what stood on its inputs.
    """

    prepared: PreparedModel
    stripped: Stripped


def prepare_qdq_model(path: Path, *, fix_input: Mapping[str, str] | None = None, do_fusion: bool = False) -> QdqModel:
    """Read a model that was quantized elsewhere and take its pairs out.

    Args:
        path: the .onnx file; external data lies beside it.
        fix_input: input name -> text of the value it is fixed at.
        do_fusion: whether to fuse BatchNormalization, which moves the scales of the weights before it.

    Raises:
        ModelError: the file is no such model, holds quantized operators, or nothing in it can be quantized on Ascend.
    """
    with reading(path), hashed_model(path) as (model, source_hash):
        events, stripped = _normalise(model, fix_input or {}, do_fusion=do_fusion)
        model.metadata_props[SOURCE_HASH] = source_hash()
        prepared, found = describe_model(model)
    return QdqModel(replace(prepared, events=(*events, *stripped.events, *found)), stripped)


def _normalise(model: ir.Model, fixed: Mapping[str, str], *, do_fusion: bool) -> tuple[list[Event], Stripped]:
    cleanup.inline_functions(model)
    names.name_nodes(model)
    cleanup.lift_constants(model)
    events = fix_input.fix_inputs(model, fixed)
    refuse_operators(model)
    cleanup.remove_identities(model.graph)
    shapes.infer_shapes(model)
    join_pairs(model)
    stripped = strip_pairs(model)
    parameters.fold_parameters(model.graph)
    cleanup.remove_unused(model)
    shapes.infer_shapes(model)
    events += parameters.own_parameters(model)
    if do_fusion:
        events += fuse_norms(model, stripped)
    parameters.normalise_products(model)
    cleanup.remove_unused(model)
    return events, stripped
