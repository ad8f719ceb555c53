"""The files of an export: their names, and writing them whole or not at all."""

import errno
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import onnx_ir as ir

from calibrant.errors import ExportError
from calibrant.export.deploy import build_deploy
from calibrant.export.fake_quant import build_fake_quant
from calibrant.export.partial import encode_parts
from calibrant.export.quant_map import format_quant_map
from calibrant.export.quantized_layer import EncodedLayer, QuantizedLayer
from calibrant.export.quantized_tensor import EncodedTensor, QuantizedTensor, encode_tensor
from calibrant.export.record_layers import kept_apart
from calibrant.export.weight_only import EncodedWeight, WeightOnlyForm, WeightOnlyLayer, weight_entry
from calibrant.ingest.model import PreparedModel
from calibrant.proto.record import RecordEntry, format_record
from calibrant.quantizers.half_factors import FORCED

_EXTERNAL_FROM = 2_000_000_000  # bytes of weights above which they go to a file of their own (protobuf ends at 2 GiB; AMCT's threshold)


@dataclass(frozen=True)
class ExportedFiles:
    """Where the five files of an export stand.

    Attributes:
        fake_quant: the plain ONNX model for onnxruntime and other runtimes.
        deploy: the ONNX model for ATC.
        record: AMCT's record of all scales.
        quant_map: the map from deploy nodes to source nodes.
        config: AMCT's JSON configuration.
    """

    fake_quant: Path
    deploy: Path
    record: Path
    quant_map: Path
    config: Path

    def missing(self) -> list[Path]:
        """Return the files that are not there."""
        return [path for field in fields(self) if not (path := getattr(self, field.name)).is_file()]


def export_files(prefix: Path | str) -> ExportedFiles:
    """Return the names that an export to `prefix` has; an empty base name gives AMCT's plain names.

    Example:
        >>> export_files("out/resnet").deploy.as_posix()
        'out/resnet_deploy_model.onnx'
        >>> export_files("out/").deploy.as_posix()
        'out/deploy_model.onnx'
    """
    folder, base = _split(prefix)
    start = f"{base}_" if base else ""
    names = ("fake_quant_model.onnx", "deploy_model.onnx", "record.txt", "quant.json", "config.json")
    return ExportedFiles(*(folder / f"{start}{name}" for name in names))


def absolute_prefix(prefix: Path | str) -> str:
    """Return the same prefix as an absolute path; an empty base name keeps its slash.

    Example:
        >>> absolute_prefix("out/") == f"{Path('out').resolve()}/", absolute_prefix("..") == f"{Path('..').resolve()}/"
        (True, True)
    """
    folder, base = _split(prefix)
    return f"{folder.resolve()}/{base}"


def write_export(
    prepared: PreparedModel,
    quantized: Sequence[QuantizedLayer],
    prefix: Path | str,
    config_json: str,
    tensors: Sequence[QuantizedTensor] = (),
    *,
    weight_only: Sequence[WeightOnlyLayer] = (),
    weight_only_form: WeightOnlyForm = "dequantize",
    outputs: Sequence[QuantizedTensor] = (),
) -> ExportedFiles:
    """Write both models, record, map and configuration; existing files of that prefix are replaced, all or none.

    Args:
        prepared: the float model.
        quantized: the layers to quantize and their scales, in any order.
        prefix: folder and beginning of the file names; parents are created.
        config_json: text of ``PREFIX_config.json``.
        tensors: inputs of other nodes to quantize, in the order of their entries in the record.
        weight_only: layers whose weight alone is quantized, in any order.
        weight_only_form: how both models make such weights float again, as for `encode_weight`.
        outputs: Identity nodes before outputs of the model that become int8 codes; a record has no entry for them.

    Raises:
        ExportError: nothing to quantize, a layer named twice, a bias outside int32, or a folder that cannot be written.
    """
    _check_layers((*quantized, *weight_only), (*tensors, *outputs))
    files = export_files(prefix)
    parts = encode_parts(prepared, quantized, tensors, weight_only, weight_only_form)
    codes = [encode_tensor(prepared, tensor) for tensor in outputs]
    deploy, placements = build_deploy(prepared, parts.layers, parts.tensors, parts.weights, codes)
    fake_quant, _ = build_fake_quant(prepared, parts.layers, parts.tensors, parts.weights, codes)
    quant_map = format_quant_map(deploy, placements, prepared.original_nodes, _split(prefix)[1])
    entries = _layer_entries(parts.layers, parts.weights, kept_apart(prepared))
    record = format_record([*entries, *map(tensor_entry, parts.tensors)])
    writers: dict[str, Callable[[Path], None]] = {
        files.fake_quant.name: lambda path: _save_model(fake_quant, path),
        files.deploy.name: lambda path: _save_model(deploy, path),
        files.record.name: lambda path: _write_text(path, record),
        files.quant_map.name: lambda path: _write_text(path, quant_map),
        files.config.name: lambda path: _write_text(path, config_json),
    }
    _write_all(files.deploy.parent, writers)
    return files


def record_entries(encoded: Sequence[EncodedLayer], unfused: Collection[str] = ()) -> list[RecordEntry]:
    """Return the record of these layers, in their order; those of `unfused` say that they were not fused."""
    return [
        RecordEntry(
            key=item.layer.name,
            scale_d=np.float32(item.quantized.scale_d),
            offset_d=int(item.quantized.offset_d),
            scale_w=tuple(np.float32(scale) for scale in item.quantized.scale_w),
            offset_w=(0,) * item.quantized.scale_w.size,
            act_type=f"INT{item.quantized.data_bits}",
            wts_type=f"INT{item.quantized.weight_bits}",
            op_data_type=item.float_type.upper(),
            fakequant_precision_mode=FORCED if item.quantized.half_factors else None,
            cluster=item.quantized.cluster,
            tensor_balance_factor=_factors(item),
            shift_bit=item.quantized.shift,
            skip_fusion=True if item.layer.name in unfused else None,
        )
        for item in encoded
    ]


def _layer_entries(
    encoded: Sequence[EncodedLayer], weights: Sequence[EncodedWeight], unfused: Collection[str]
) -> list[RecordEntry]:
    """Return the record of all layers, in their topological order."""
    found = dict(zip((item.layer.layer_id for item in encoded), record_entries(encoded, unfused), strict=True))
    found |= {item.layer.layer_id: weight_entry(item, unfused=item.layer.name in unfused) for item in weights}
    return [found[number] for number in sorted(found)]


def tensor_entry(encoded: EncodedTensor) -> RecordEntry:
    """Return the record of an input: as in AMCT's files, its scale and offset alone."""
    quantized = encoded.quantized
    return RecordEntry(
        key=quantized.key,
        scale_d=np.float32(quantized.scale_d),
        offset_d=int(quantized.offset_d),
        act_type=None,
        wts_type=None,
        op_data_type=None,
        is_tensor_quantize=True,
    )


def _factors(encoded: EncodedLayer) -> tuple[np.float32, ...]:
    factors = encoded.quantized.balance
    return () if factors is None else tuple(np.float32(factor) for factor in factors)


def _check_layers(quantized: Sequence[QuantizedLayer | WeightOnlyLayer], tensors: Sequence[QuantizedTensor]) -> None:
    names = [*(item.layer.name for item in quantized), *(tensor.key for tensor in tensors)]
    whole = [
        item.layer for item in quantized if isinstance(item, QuantizedLayer)
    ]  # weights alone leave the bias in float
    biases = {layer.bias_node: layer.name for layer in whole if layer.bias_node is not None}
    for tensor in tensors:
        if tensor.node in biases:
            message = (
                f"export: '{tensor.key}' cannot be quantized: the Add is the bias of layer '{biases[tensor.node]}'"
            )
            raise ExportError(message)
    if not names:
        message = "export: no layer is quantized, so there is nothing to write; see the reasons in the table `plan`"
        raise ExportError(message)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f"export: layer '{twice[0]}' is given twice"
        raise ExportError(message)


def _split(prefix: Path | str) -> tuple[Path, str]:
    """Split a prefix into folder and base name; a text that ends in a slash, or as ``.`` and ``..`` do, has no base name."""
    text = str(prefix)
    if text.endswith(("/", "\\")) or Path(text).name in ("", ".."):
        return Path(text), ""
    return Path(text).parent, Path(text).name


def write_model(model: ir.Model, path: Path) -> None:
    """Write one model, whole or not at all; large weights go to ``<name>.data``.

    Raises:
        ExportError: the folder cannot be written.
    """
    _write_all(path.parent, {path.name: lambda partial: _save_model(model, partial)})


def _save_model(model: ir.Model, path: Path) -> None:
    ir.save(model, path, external_data=f"{path.name}.data" if needs_external_data(model) else None)


def needs_external_data(model: ir.Model) -> bool:
    """Return whether the weights of a model are too large for one protobuf."""
    size = sum(_tensor_bytes(value) for graph in model.graphs() for value in graph.initializers.values())
    return size > _EXTERNAL_FROM


def _tensor_bytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_all(folder: Path, writers: Mapping[str, Callable[[Path], None]]) -> None:
    """Write everything into a folder beside its place, then move it there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export-", suffix=".partial") as staging:
            for name, write in writers.items():
                write(Path(staging) / name)
            _move_into(Path(staging), folder)
    except OSError as error:
        message = f"export: cannot write to folder '{folder}': {error.strerror or error}; choose another --prefix"
        raise ExportError(message) from error


def _move_into(staging: Path, folder: Path) -> None:
    """Replace the files of `folder` by those of `staging`; after a failure the old ones stand again."""
    names = sorted(path.name for path in staging.iterdir())
    _refuse_folders(folder, names)
    kept = staging / "replaced"
    kept.mkdir()
    moved: list[str] = []
    try:
        for name in names:
            if (folder / name).exists():
                (folder / name).replace(kept / name)
            moved.append(name)
            (staging / name).replace(folder / name)
    except OSError:
        _move_back(kept, folder, moved)
        raise
    for stale in (folder / f"{name}.data" for name in names if f"{name}.data" not in names):
        stale.unlink(missing_ok=True)  # weights of a larger export that stood here before


def _refuse_folders(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (folder / name).is_dir():
            raise IsADirectoryError(errno.EISDIR, f"'{name}' is a folder there")


def _move_back(kept: Path, folder: Path, moved: Sequence[str]) -> None:
    for name in moved:
        (folder / name).unlink(missing_ok=True)
        if (kept / name).exists():
            shutil.move(kept / name, folder / name)
