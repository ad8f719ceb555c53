"""A hash of everything that a fit chose for a layer: equal hashes within a run mean equal fake-quant layers."""

import hashlib
from collections.abc import Mapping
from typing import Final

import polars as pl

_DECIDING: Final = ("role", "channel", "bits", "scale", "offset")  # of quant_params; the others judge or explain


def scales_hashes(parameters: pl.DataFrame, balance: pl.DataFrame, plan: pl.DataFrame) -> dict[int, str]:
    """Return the hash of each quantized layer's scales, by layer_id.

    Args:
        parameters: rows of `quant_params` of one fit.
        balance: rows of `balance` of that fit.
        plan: rows of `plan` of that fit; a step of float16 rounds the dequant scale as well.

    Example:
        >>> from calibrant.stats.tables import SCHEMAS
        >>> row = {"layer_id": 3, "role": "data", "bits": 8, "scale": 0.5, "offset": 0}
        >>> rows = pl.DataFrame([row], schema={name: SCHEMAS["quant_params"][name] for name in (*row, "channel")})
        >>> nothing = pl.DataFrame(schema=SCHEMAS["balance"]), pl.DataFrame(schema=SCHEMAS["plan"])
        >>> list(scales_hashes(rows, *nothing))
        [3]
    """
    chosen = parameters.filter(pl.col("layer_id").is_not_null()).select("layer_id", *_DECIDING)
    rows = _by_layer(chosen.sort("layer_id", "role", "channel"))
    factors = _by_layer(balance.select("layer_id", "channel", "factor").sort("layer_id", "channel"))
    half = dict(plan.filter(pl.col("layer_id").is_not_null()).select("layer_id", "float16_step").iter_rows())
    return {layer: _hash(part, factors.get(layer), half=bool(half.get(layer))) for layer, part in rows.items()}


def _by_layer(frame: pl.DataFrame) -> Mapping[int, pl.DataFrame]:
    parts = frame.partition_by("layer_id", as_dict=True, maintain_order=True)
    return {int(key[0]): part for key, part in parts.items()}


def _hash(rows: pl.DataFrame, factors: pl.DataFrame | None, *, half: bool) -> str:
    digest = hashlib.blake2b(repr(half).encode(), digest_size=12)
    for frame in (rows, factors):
        digest.update(repr([] if frame is None else frame.rows()).encode())  # float32 as float64: exact
    return digest.hexdigest()
