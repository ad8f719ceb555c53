"""Entries of a record that quantize a weight alone: scale_w and offset_w without scale_d (``weight_compress_only``)."""

from collections.abc import Iterator, Sequence

import numpy as np

from calibrant.errors import ConfigError
from calibrant.export.weight_only import WIDTHS, WeightOnlyLayer, is_weight_only
from calibrant.ingest.layers import Layer
from calibrant.proto.record import RecordEntry
from calibrant.proto.record_rules import of_entry
from calibrant.quantizers.affine import code_range
from calibrant.stats.events import Event


def check_weight_entry(entry: RecordEntry, layer: Layer) -> None:
    """Check what an entry without scale_d asks of its layer.

    Raises:
        ConfigError: the layer has no weight, the width or an offset is impossible, or the entry has what needs the data as well.
    """
    for field, text in _breaches(entry, layer):
        raise ConfigError(of_entry(entry, field, text))


def weights_of_record(entries: Sequence[RecordEntry], layers: Sequence[Layer]) -> list[WeightOnlyLayer]:
    """Return the layers whose weight alone a checked record quantizes, in the order of `layers`."""
    by_key = {entry.key: entry for entry in entries if is_weight_only(entry)}
    return [_weight_only_layer(layer, by_key[layer.name]) for layer in layers if layer.name in by_key]


def weight_only_events(entries: Sequence[RecordEntry]) -> list[Event]:
    """Say that entries have no scale_d: AMCT writes such a record too where a calibration was not completed."""
    alone = [entry.key for entry in entries if is_weight_only(entry)]
    text = (
        f"{len(alone)} entries have scale_w and no scale_d (first '{alone[0]}'): their weights alone are quantized"
        if alone
        else ""
    )
    return [Event("export", "warn", text, layer=alone[0])] if alone else []


def _breaches(entry: RecordEntry, layer: Layer) -> Iterator[tuple[str, str]]:
    if layer.weight is None:
        yield (
            "key",
            f"no scale_d, but the {layer.op_type} has no weight to quantize alone; was the calibration completed?",
        )
    bits = _bits(entry)
    if bits not in WIDTHS:
        yield (
            "wts_type",
            f"wts_type is {entry.wts_type}; INT6, INT7 or INT8 is expected where the weight alone is quantized",
        )
    low, high = code_range(bits)
    if not all(low <= offset <= high for offset in entry.offset_w):
        yield (
            "offset_w",
            f"offset_w reaches from {min(entry.offset_w)} to {max(entry.offset_w)}; {low} to {high} is expected",
        )
    for field in ("cluster", "tensor_balance_factor", "shift_bit"):
        if getattr(entry, field):
            yield field, f"{field} needs scale_d as well; delete it, or complete the calibration"


def _bits(entry: RecordEntry) -> int:
    return int((entry.wts_type or "INT8").removeprefix("INT"))


def _weight_only_layer(layer: Layer, entry: RecordEntry) -> WeightOnlyLayer:
    return WeightOnlyLayer(layer, np.array(entry.scale_w, np.float32), np.array(entry.offset_w, np.int32), _bits(entry))
