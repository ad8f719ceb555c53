"""What is measured of one output of one model over samples, and its rows of the tables `evaluation` and `class_agreement`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, ShapeError
from calibrant.export.collapse import Spread
from calibrant.export.metrics import Metric, Terms, has_classes, is_class, predicted_class
from calibrant.stats.bootstrap import interval

Array = npt.NDArray[Any]
Row = dict[str, Any]


class OutputTally:
    """One output of a variant beside that of the float model, sample by sample; a few numbers a sample are held.

    Args:
        variant: name of the model, for messages.
        output: name of the output.
        metrics: what to measure.
    """

    def __init__(self, variant: str, output: str, metrics: Sequence[Metric]) -> None:
        self.spread = Spread()
        self._where = f"'{variant}': output '{output}'"
        self._metrics = metrics
        self._terms: dict[str, list[Terms]] = {metric.name: [] for metric in metrics}
        self._classes: list[tuple[int, int]] = []
        self._has_classes = True
        self._has_vectors = False

    def add(self, reference: Array, output: Array, label: int | None) -> None:
        """Measure one more sample.

        Raises:
            ShapeError: the output has another number of values than that of the float model.
            DataError: the label is no index of the output.
        """
        output = self._like(reference, output)
        self.spread.add(output)
        self._has_classes &= has_classes(reference)
        self._has_vectors |= np.size(reference) != 1
        if self._has_classes:
            self._classes.append((predicted_class(reference), predicted_class(output)))
        for metric in self._metrics:
            if metric.needs_labels:
                self._check_label(output, label)
            self._terms[metric.name].append(metric.per_sample(reference, output, label))

    def rows(self, *, all_metrics: bool) -> Iterator[Row]:
        """Yield the value of each metric with its interval; without `all_metrics` only of those that the output has a meaning for."""
        for metric in self._metrics:
            if all_metrics or self._is_meant(metric):
                terms = np.asarray(self._terms[metric.name], np.float64)
                low, high = interval(terms, metric.combine)
                yield value_row(metric.name, metric.combine(terms), low, high, len(terms))

    def _is_meant(self, metric: Metric) -> bool:
        """Return whether a metric means something for this output."""
        return (self._has_classes or not metric.needs_classes) and (self._has_vectors or not metric.needs_vectors)

    def class_rows(self) -> Iterator[Row]:
        """Yield the agreement within each class of the float model, where outputs are vectors of scores."""
        if not self._has_classes:
            return
        found: dict[int, list[int]] = {}
        for reference, other in self._classes:
            found.setdefault(reference, []).append(other)
        for number in sorted(found):
            yield _class_row(number, found[number])

    def _like(self, reference: Array, output: Array) -> Array:
        if np.shape(output) == np.shape(reference):
            return output
        if np.size(output) != np.size(reference):
            message = (
                f"{self._where}, sample {self.spread.samples}: shape {list(np.shape(output))}, that of the float model is "
                f"{list(np.shape(reference))}; compare outputs of equal size, or choose --output-name"
            )
            raise ShapeError(message)
        return np.reshape(output, np.shape(reference))

    def _check_label(self, output: Array, label: int | None) -> None:
        if not is_class(output) and (label is None or not 0 <= label < np.size(output)):
            message = (
                f"--labels: label {label} of sample {self.spread.samples - 1} is no class of {self._where}, which has "
                f"{np.size(output)} (0 to {np.size(output) - 1}); choose another --output-name, or count labels from 0"
            )
            raise DataError(message)


def _class_row(number: int, found: Sequence[int]) -> Row:
    agreed = np.asarray([other == number for other in found], np.float64)
    low, high = interval(agreed)
    others = Counter(other for other in found if other != number)
    return {
        "class_id": number,
        "samples": len(found),
        "agreement": float(agreed.mean()),
        "low": _known(low),
        "high": _known(high),
        "confused_with": min(others, key=lambda other: (-others[other], other)) if others else None,
    }


def value_row(metric: str, value: float, low: float, high: float, samples: int) -> Row:
    """Return the columns of `evaluation` that a value fills; an interval that is not known is NULL."""
    return {"metric": metric, "value": value, "low": _known(low), "high": _known(high), "samples": samples}


def _known(value: float) -> float | None:
    return None if isnan(value) else value
