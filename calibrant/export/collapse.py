"""The alarm for collapsed outputs: a quantized model that answers the same whatever it is asked, or with NaN."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.export.metrics import has_classes, predicted_class

Array = npt.NDArray[Any]


class Spread:
    """What an output does over samples.

    Attributes:
        samples: how many were added.
        broken: numbers of the samples with NaN or infinity.
        classes: the classes that samples were put into, where each output is one vector of scores.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.broken: list[int] = []
        self.classes: set[int] = set()
        self._has_classes = True
        self._is_flat = True
        self._outputs: set[bytes] = set()

    def add(self, output: Array) -> None:
        """Look at the output of one more sample."""
        values = np.asarray(output)
        if not np.isfinite(values).all():
            self.broken.append(self.samples)
        self.samples += 1
        self._has_classes &= has_classes(values)
        if self._has_classes:
            self.classes.add(predicted_class(values))
        self._is_flat &= values.size > 1 and bool((values == values.flat[0]).all())
        if len(self._outputs) < 2:
            self._outputs.add(hashlib.blake2b(np.ascontiguousarray(values).tobytes()).digest())

    @property
    def is_constant(self) -> bool:
        """Whether all of several samples have the same output, bit for bit."""
        return self.samples > 1 and len(self._outputs) == 1

    @property
    def is_flat(self) -> bool:
        """Whether each sample's output has one value throughout."""
        return self.samples > 0 and self._is_flat

    @property
    def only_class(self) -> int | None:
        """The class of all of several samples, or None where there are several classes or none."""
        alone = self.samples > 1 and self._has_classes and len(self.classes) == 1
        return next(iter(self.classes)) if alone else None


def collapse(reference: Spread, variant: Spread) -> str | None:
    """Return how an output has collapsed where that of the float model has not, or None.

    Example:
        >>> spread, dead = Spread(), Spread()
        >>> for y in ([1.0, 2.0], [2.0, 1.0]):
        ...     spread.add(np.array(y)), dead.add(np.zeros(2))
        (None, None)
        (None, None)
        >>> collapse(spread, dead)
        'is the same for all 2 samples, where that of fp32 differs'
    """
    if variant.broken and not reference.broken:
        return f"has NaN or infinity in {len(variant.broken)} of {variant.samples} samples, where fp32 has none"
    if variant.is_constant and not reference.is_constant:
        return f"is the same for all {variant.samples} samples, where that of fp32 differs"
    if variant.is_flat and not reference.is_flat:
        return f"has one value throughout in each of {variant.samples} samples, where that of fp32 varies"
    if variant.only_class is not None and len(reference.classes) > 1 and reference.only_class is None:
        return f"puts all {variant.samples} samples into class {variant.only_class}, where fp32 has {len(reference.classes)} classes"
    return None
