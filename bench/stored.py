"""`calibrant stats` from Parquet against reading the same files with pyarrow.dataset and taking the maximum."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds

import calibrant
from bench import bars
from bench.captures import captured, subjects
from bench.contest import Case, Contest, Figure, Setting, over


def largest(run: Path) -> float:
    """Return the greatest value of all captures, read as pyarrow reads them."""
    found = []
    for folder in sorted(run.glob("captures/tensor_id=*")):
        for batch in ds.dataset(folder, format="parquet").to_batches(columns=["values"]):
            values = batch.column("values").flatten().to_numpy(zero_copy_only=False)
            found.append(values.max() if values.size else 0.0)
    return max(found)


def cases(setting: Setting) -> Iterator[Case]:
    figure = Figure("times pyarrow.dataset and the maximum", over("calibrant", "pyarrow"), bar=bars.STATS)
    for name, one in subjects(setting).items():

        def prepare(_: Setting, one=one) -> Contest:
            prepared = one()
            run = captured(prepared, "raw")
            works = {"calibrant": lambda: calibrant.stats(run), "pyarrow": lambda: largest(run)}
            return Contest(works, prepared.moved, threads=2)

        yield Case(f"stored/{name}", prepare, (figure,), rounds=3)
