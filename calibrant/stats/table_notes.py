"""What each table and column of a run is, kept once: the page docs/tables.md, `.schema` in the prompt and the checks read it here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from calibrant.errors import SchemaError


@dataclass(frozen=True, slots=True)
class TableNote:
    """A table in words.

    Attributes:
        row: what one row is.
        about: what else there is to say of the table; may be empty.
        columns: column -> what it holds; one that is not here holds what `SHARED_COLUMNS` says.
    """

    row: str
    about: str
    columns: Mapping[str, str]


SHARED_COLUMNS: Final[Mapping[str, str]] = {
    "fit": "name of the fit",
    "layer_id": "the layer in `layers`",
    "tensor_id": "the tensor in `tensors`",
    "layer": "ONNX node name",
    "op_type": "ONNX type of the node",
    "n": "number of values",
    "n_zero": "how many of them are zero",
    "n_nan": "how many are NaN",
    "n_inf": "how many are infinite",
    "min": "least finite value",
    "max": "greatest finite value",
    "abs_max": "greatest magnitude of a finite value",
    "samples": "how many samples it is of",
    "count": "how often",
    "channel": "number of the channel",
    "clip_min": "least value of the clip range",
    "clip_max": "greatest value of the clip range",
    "algorithm": "what chose it: ifmr, hfmg, arq, nuq, ada; of trained models ulq, arq_retrain, ulq_retrain",
}

# The raw activations are files of their own, not a table of `SCHEMAS`; the types are those of the view.
CAPTURES_TYPES: Final[Mapping[str, str]] = {
    "tensor_id": "Int32",
    "sample": "Int64",
    "values": "list of Float32 or Float16",
    "shape": "list of Int64",
}

TABLE_NOTES: Final[Mapping[str, TableNote]] = {
    "inputs": TableNote(
        "a sample",
        "",
        {
            "sample": "its number",
            "key": "content hash (sha256) of all its inputs: name, dtype, shape and elements of each; "
            "equal samples have equal keys and count each",
            "source": "file, or kind of the iterable, it came from",
            "position": "its place there",
        },
    ),
    "tensors": TableNote(
        "a captured tensor",
        (
            "The inputs of all quantizable layers, and what the `tensor_quantize` of the configuration that "
            "captured names besides."
        ),
        {
            "tensor_id": "counts from 0 in topological order of the prepared model",
            "tensor": "name of the value in the prepared model",
            "dtype": "float32 or float16",
            "rank": "number of axes",
            "sample_axis": "axis along which samples lie; NULL where none does: a constant tensor, which is counted once, "
            "or a model that takes one sample only",
            "channel_axis": (
                "1 for Conv, ConvTranspose and AveragePool, the last for Gemm and MatMul (of the first consumer)"
            ),
            "producer": "node that makes it; empty for a model input",
            "is_input": "whether it is a model input",
            "min": "exact least finite value",
            "max": "exact greatest finite value",
            "mantissa_bits": "resolution of its histogram: a bin is 2^-mantissa_bits of its magnitude wide",
        },
    ),
    "layers": TableNote(
        "a layer that AMCT could quantize, or one that was refused",
        "",
        {
            "layer_id": "counts from 0 in topological order of the prepared model",
            "op_type": "Conv, ConvTranspose, Gemm, MatMul, AveragePool or GlobalAveragePool",
            "tensor_id": "its data input; NULL where nothing is captured",
            "weight": "name of the weight initializer",
            "bias": "name of the bias initializer; for a MatMul the constant of the Add that follows",
            "channels_out": "output channels, over all groups",
            "channels_in": "input channels, over all groups",
            "groups": "of a grouped convolution; else 1",
            "kernel_rank": "spatial dimensions of the kernel; 0 for Gemm and MatMul",
            "macs": "multiply-accumulates of one sample",
            "parameters": "elements of weight and bias",
            "quantizable": "whether it may be quantized at all",
            "reason": "why not",
            "tensor_b": (
                "the value on input 1 of a MatMul of two float32 variables, which only an override has "
                "quantized; else NULL"
            ),
        },
    ),
    "captures": TableNote(
        "one sample of one tensor (`--keep raw`, or `--keep raw:N` for N of the samples)",
        (
            "Files `RUN/captures/tensor_id=T/part-*.parquet`; the SQL view `captures` adds `tensor_id`. With "
            "`raw:N` there are rows of the N samples of least `inputs.key` (of equal samples the first ones);"
            " all other tables are of all samples."
        ),
        {
            "sample": "number in `inputs`",
            "values": (
                "the sample's values in element order: a fixed-size list where all but the batch axis are "
                "static, else a large list"
            ),
            "shape": "shape of the sample, where it varies",
        },
    ),
    "samples": TableNote(
        "a sample of a tensor",
        "",
        {
            "sample": "number in `inputs`; -1 for a constant tensor, which is counted once a value",
            "min": "of the finite values",
            "max": "of the finite values",
            "sum": (
                "of the finite values: the sample's channels added in order, each summed in lanes "
                "([algorithms](algorithms.md), 15)"
            ),
            "sum_sq": "of their squares, in the same way",
        },
    ),
    "histograms": TableNote(
        "a bin of a tensor",
        "",
        {
            "key": (
                "the top 9 + mantissa_bits bits of the float32 pattern; zeros, NaN and infinities are counted"
                " in `tensors` instead"
            ),
            "count": "how many values lie in the bin",
        },
    ),
    "extremes": TableNote(
        "an extreme value",
        "",
        {
            "side": "max or min",
            "value": "the value",
            "count": "how often; the 4,096 greatest and the 4,096 least values are kept, counted with multiplicity",
        },
    ),
    "channels": TableNote(
        "a channel of a tensor",
        "",
        {
            "sum": "per sample in lanes ([algorithms](algorithms.md), 15), then added over samples without rounding",
            "sum_sq": "of the squares, in the same way",
        },
    ),
    "weights": TableNote(
        "an output channel of a weight",
        "",
        {
            "channel": "output channel, over all groups",
            "sum": "in lanes ([algorithms](algorithms.md), 15)",
            "sum_sq": "of the squares, in the same way",
        },
    ),
    "biases": TableNote(
        "an output channel of a layer's bias",
        "",
        {
            "channel": "output channel, over all groups",
            "value": "as in the prepared model",
        },
    ),
    "joins": TableNote(
        "an input or the output of a Concat or Add",
        (
            "Nodes that join two or more variables, and which captured tensor tells the range of each; "
            "nothing is captured for them alone."
        ),
        {
            "node": "its name in the prepared model",
            "op_type": "Concat or Add",
            "input_index": "which input; NULL for the output",
            "value": "name of the value",
            "tensor_id": "the captured tensor that tells its range; NULL where there is none",
            "seen": (
                "how: itself, before Relu (the tensor is the input of the Relu that makes the value), behind "
                "Relu (its output); NULL where not"
            ),
            "first_channel": (
                "first channel of the tensor that the value is, where it is a part of a captured Concat; else NULL"
            ),
            "channels": "how many channels from there",
        },
    ),
    "plan": TableNote(
        "a layer's resolved configuration, then that of each `tensor_quantize`",
        (
            "What the configuration asks for; `not_applied` names what this version does not do of it, and "
            "`events` says what happens instead."
        ),
        {
            "layer_id": "NULL for an input of another node (`tensor_quantize`), which layer and op_type then name",
            "tensor_index": "`tensor_quantize` only: which input of the node",
            "enabled": "whether the layer or input is quantized in this fit",
            "reason": "why not",
            "batch_num": "batches to use; NULL for all",
            "do_fusion": "Conv and ConvTranspose: whether a BatchNormalization behind it is fused into it",
            "data_algorithm": "ifmr or hfmg; ulq where it was trained",
            "data_bits": "8 or 16",
            "asymmetric": "whether the data has an offset",
            "max_percentile": "ifmr only",
            "min_percentile": "ifmr only",
            "search_range_start": "ifmr only",
            "search_range_end": "ifmr only",
            "search_step": "ifmr only",
            "num_of_bins": "hfmg only",
            "float16_step": "whether scale_d is a value of float16 (`FORCE_FP16_QUANT`)",
            "weight_algorithm": "arq, nuq, ada (AdaRound), or none for AveragePool; arq_retrain or ulq_retrain where it was trained",
            "weight_bits": "4, 6, 7 or 8",
            "channel_wise": "a scale for each output channel",
            "weight_asymmetric": "whether the weight has an offset",
            "num_steps": "nuq only",
            "num_of_iteration": "nuq only",
            "weight_only": "whether the weight alone is quantized (`weight_compress_only`)",
            "migration_strength": "of the balancer (`dmq_balancer`); NULL without it",
            "joint": (
                "`joint_quant`: the Add that names the group of layers which share the scale of their data; "
                "NULL for all others"
            ),
            "not_applied": "what was asked for and is not applied in this version; NULL where all is",
            "enabled_decided_by": 'the rule that decided, e.g. `override_layer_types "Gemm"` or `default`',
            "data_decided_by": 'the rule that decided, e.g. `override_layer_types "Gemm"` or `default`',
            "asymmetric_decided_by": 'the rule that decided, e.g. `override_layer_types "Gemm"` or `default`',
            "weight_decided_by": 'the rule that decided, e.g. `override_layer_types "Gemm"` or `default`',
            "weight_asymmetric_decided_by": "the same for these",
            "weight_only_decided_by": "the same for these",
            "balancer_decided_by": "the same for these",
            "fusion_decided_by": "the same for these",
        },
    ),
    "search": TableNote(
        "a candidate of a search",
        "",
        {
            "layer_id": (
                "layers that share tensor and settings share the search; it is listed for each, and once with"
                " NULL for inputs of `tensor_quantize`"
            ),
            "algorithm": "ifmr, hfmg or nuq",
            "candidate": (
                "in the order of the search; NUQ has two, levels at quantiles (0) and the best levels (1), "
                "with no clip, scale and offset"
            ),
            "scale": "step between codes of this candidate",
            "offset": "added after scaling",
            "loss": (
                "IFMR: mean squared error; HFMG: summed squared error; NUQ: summed squared distance between "
                "codes and levels"
            ),
            "is_best": "the first of the least losses; NUQ: the one that `num_of_iteration` asks for",
            "exact": (
                "whether the loss is summed over raw values rather than taken from the histogram; `fit "
                "--exact` does so for the candidates that bounds do not prove worse than another"
            ),
        },
    ),
    "quant_params": TableNote(
        "a chosen scale",
        "",
        {
            "layer_id": "NULL for an input of another node (role tensor)",
            "tensor_id": "its data input",
            "role": (
                "data, weight or bias; cluster for a level of NUQ, its code in `offset`; tensor for an input "
                "of `tensor_quantize`; shift for the bits by which `joint_quant` shifts an accumulator, in "
                "`offset`"
            ),
            "channel": "output channel; NULL per tensor; number of the level (role cluster)",
            "bits": "32 for a bias",
            "scale": "step between codes",
            "offset": "added after scaling",
            "clip_min": "least representable value",
            "clip_max": "greatest representable value",
            "mse": "mean squared error of quantizing",
            "sqnr_db": "10 log10(sum x^2 / sum (x - q(x))^2)",
            "clip_rate": "share of the values that the range clips: more than half a step outside it",
            "decided_by": (
                "what decided the scale: the algorithm, or `bias range` where it was raised so that the bias "
                "fits int32; NULL for a bias"
            ),
            "node": "role tensor only: the node",
            "input_index": "role tensor only: which of its inputs",
        },
    ),
    "balance": TableNote(
        "an input channel of a balanced layer",
        (
            "Layers that `dmq_balancer` balances: their data is divided by the factor and their weight "
            "multiplied by it. What `search` and `quant_params` say of them is of the divided data and the "
            "multiplied weight."
        ),
        {
            "channel": "input channel, over all groups",
            "factor": "the data is divided by it, the weight multiplied",
        },
    ),
    "sensitivity": TableNote(
        "a layer, a view and a metric",
        (
            "How much a quantized layer hurts: `calibrant sensitivity`; formulas and meaning in "
            "docs/sensitivity.md. A fit that gives a layer other scales drops its rows."
        ),
        {
            "view": "statistics, isolated or whole",
            "metric": (
                "statistics: sqnr_db, combined_sqnr_db, data_sqnr_db, weight_sqnr_db, clip_rate, channel_spread, range_spread; "
                "isolated: sqnr_db, cosine, mse, amct_similarity; whole: sqnr_db, kl, agreement"
            ),
            "value": "in the unit of the metric",
            "low": (
                "lower end of the 95 % bootstrap interval over samples; NULL where samples have no value of "
                "their own, or there is one sample"
            ),
            "high": "its upper end",
            "samples": "how many samples it was measured on",
            "scales_hash": "of everything that the fit chose for the layer",
            "data_hash": "of what it was measured on, and how",
        },
    ),
    "evaluation": TableNote(
        "a model variant and a metric",
        "",
        {
            "fit": "NULL for what belongs to no fit: the float model, other models, dumps",
            "variant": (
                "fp32, fake_quant, or the name that a model or dump was given; `_fused` behind it where graph"
                " optimizations were on"
            ),
            "output": "the model's output; NULL for a metric of your own, which sees them all",
            "metric": "as docs/evaluation.md lists them, or module:function",
            "value": "over all samples",
            "low": (
                "lower end of the 95 % bootstrap interval over samples; NULL for one sample, or for a metric "
                "of your own that gives one number"
            ),
            "high": "its upper end",
            "data": "what the samples were read from; `verify` for those of the last verify of the fit",
            "data_fingerprint": (
                "hash of the sorted sample keys, as in run.json; rows of equal fingerprints can be compared"
            ),
        },
    ),
    "class_agreement": TableNote(
        "a class of the float model and a variant",
        "For outputs of one vector a sample.",
        {
            "fit": "as in `evaluation`",
            "variant": "as in `evaluation`",
            "output": "as in `evaluation`",
            "class_id": "index of the greatest entry of the float model's output; -1 where it holds NaN",
            "samples": "that the float model puts into this class",
            "agreement": "share of them that the variant puts there too",
            "low": "lower end of the 95 % bootstrap interval over these samples; NULL for one sample",
            "high": "its upper end",
            "confused_with": (
                "the class that most of the others went to; NULL where all agree, -1 for an output with NaN"
            ),
            "data": "as in `evaluation`",
            "data_fingerprint": "as in `evaluation`",
        },
    ),
    "auto_steps": TableNote(
        "a step of `calibrant auto`",
        (
            "What the last `calibrant auto` of the run tried (docs/auto.md); which layers a step leaves in float is in `plan`, its other "
            "scores are in `evaluation`, both under the step's fit."
        ),
        {
            "step": "its number; 1 is everything quantized",
            "fit": "the fit of the step",
            "layers_float": "how many layers are rolled back to float",
            "macs_float": (
                "share of the multiply-accumulates in float, 0 to 1, of all layers that could be quantized; those that the "
                "configuration skips are in float"
            ),
            "metric": "what the goal is about: as in `evaluation`, or metric_eval of an evaluator, whose value is its loss",
            "value": "in the unit of the metric; of several outputs the worst",
            "low": "lower end of the 95 % bootstrap interval over samples; NULL where there is none",
            "high": "its upper end",
            "higher_is_better": "whether a greater value is better",
            "ok": "whether the goal is reached",
            "chosen": "whether this step was exported",
        },
    ),
    "events": TableNote(
        "a warning or decision",
        "",
        {
            "stage": "ingest, capture, stats, fit, export, verify, evaluate, sensitivity or auto",
            "severity": "info, warn or error",
            "fit": "NULL where it belongs to the run",
            "layer": "layer or tensor",
            "sample": "number of the sample that it is about; NULL where it is about none",
            "message": "what, where, what to do",
        },
    ),
}


def column_note(table: str, column: str) -> str:
    """Return what a column holds.

    Raises:
        SchemaError: nothing is written of it.

    Example:
        >>> column_note("histograms", "count")
        'how many values lie in the bin'
    """
    note = TABLE_NOTES[table].columns.get(column) or SHARED_COLUMNS.get(column)
    if note is None:
        message = f"table {table}: no note on its column '{column}'; add one to calibrant/stats/table_notes.py, then run: just docs"
        raise SchemaError(message)
    return note
