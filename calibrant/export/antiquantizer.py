"""An AscendAntiQuant in exact arithmetic: ``(q - offset) * scale`` in float32 (docs/algorithms.md 9)."""

from dataclasses import dataclass

import numpy as np

from calibrant.export.integer_layers import Array


@dataclass(frozen=True)
class AntiQuantizer:
    """An AscendAntiQuant of a deploy model.

    Attributes:
        name: node name.
        source: the value that holds the codes.
        output: the float value.
        scale: float32 step of the codes.
        offset: integer subtracted from a code.
        shift: the offset of the AscendQuant before it, minus `offset`: 0 in a pair that fits.
        half: whether the float value is float16.
        node: name of the node that reads the float value.
        input_index: on which input.
    """

    name: str
    source: str
    output: str
    scale: np.float32
    offset: int
    shift: int
    half: bool
    node: str
    input_index: int

    @property
    def key(self) -> str:
        """What the record calls the input: ``node:index``."""
        return f"{self.node}:{self.input_index}"

    def values(self, data: Array) -> Array:
        """Return the float values of codes without the AscendQuant's offset."""
        found: Array = np.asarray((data.astype(np.float32, copy=False) + np.float32(self.shift)) * self.scale)
        return found.astype(np.float16) if self.half else found
