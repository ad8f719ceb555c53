"""The rows of a run's tables that speak of one layer in one fit, read once for everything on its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from calibrant.errors import LayerNotFoundError, nearest
from calibrant.stats.run import Run

Row = dict[str, Any]

_SHOWN: Final = 3  # names in a message


@dataclass(frozen=True)
class LayerRows:
    """What the tables hold of a layer.

    Attributes:
        run, fit: of which run and fit.
        layer: its row of `layers`.
        plan: its row of `plan`, or None.
        data: its row of `quant_params` with role data, or None.
        weight: its rows with role weight, by channel.
        tensor: the row of `tensors` of its data, or None.
        weights: its rows of `weights`, by channel.
        channels: rows of `channels` of that tensor, by channel.
        samples: rows of `samples` of that tensor that are of one sample each.
        factors: balance factors, shape (Cin,), or empty.
    """

    run: Run
    fit: str
    layer: Row
    plan: Row | None
    data: Row | None
    weight: pl.DataFrame
    tensor: Row | None
    weights: pl.DataFrame
    channels: pl.DataFrame
    samples: pl.DataFrame
    factors: npt.NDArray[np.float32]

    @property
    def is_quantized(self) -> bool:
        """Whether the fit quantizes its data or its weight."""
        return self.data is not None or self.weight.height > 0


def read_layer(run: Run, fit: str, name: str) -> LayerRows:
    """Read what a run holds of a layer.

    Raises:
        LayerNotFoundError: no layer of that name; the message has the nearest.
    """
    layers = run.read("layers")
    layer = _only(layers.filter(layer=name))
    if layer is None:
        hint = _alike(name, layers["layer"].to_list())
        message = f"{run.path}: no layer '{name}'{hint}; calibrant sql RUN \"select layer from layers\" lists them"
        raise LayerNotFoundError(message)
    number = layer["layer_id"]
    rows = run.read("quant_params").filter(fit=fit, layer_id=number)
    data = _only(rows.filter(role="data"))
    tensor_id = layer["tensor_id"] if data is None else data["tensor_id"]
    of_tensor = pl.col("tensor_id") == (-1 if tensor_id is None else tensor_id)
    return LayerRows(
        run=run, fit=fit, layer=layer, plan=_only(run.read("plan").filter(fit=fit, layer_id=number)), data=data,
        weight=rows.filter(role="weight").sort("channel"), tensor=_only(run.read("tensors").filter(of_tensor)),
        weights=run.read("weights").filter(layer_id=number).sort("channel"),
        channels=run.read("channels").filter(of_tensor).sort("channel"),
        samples=run.read("samples").filter(of_tensor, pl.col("sample") >= 0).sort("sample"),
        factors=run.read("balance").filter(fit=fit, layer_id=number).sort("channel")["factor"].to_numpy(),
    )  # fmt: skip


def _alike(name: str, known: Sequence[str]) -> str:
    """Return what may have been meant: the nearest name, else those that hold this one as a part."""
    holding = [f"'{layer}'" for layer in known if name and name in layer]
    if (hint := nearest(name, known)) or not holding:
        return hint
    more = f" and {len(holding) - _SHOWN} more" if len(holding) > _SHOWN else ""
    return f"; it is part of {', '.join(holding[:_SHOWN])}{more}"


def _only(frame: pl.DataFrame) -> Row | None:
    return frame.row(0, named=True) if frame.height else None
