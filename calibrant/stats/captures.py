"""The Parquet files of captured activations: what their metadata says, and reading them back.

A tensor is a dataset ``captures/tensor_id=T/part-*.parquet`` with one row a sample: ``sample``, ``values`` (its own array,
flat, in C order) and, where the shape varies, ``shape``. A tensor that is the same for all samples has sample -1.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrant.errors import RunError

Array = npt.NDArray[Any]

CONSTANT_SAMPLE: Final = -1  # the `sample` of a tensor that is counted once because it is the same for all
PAGES_KEY: Final = (
    b"calibrant.pages"  # where the values of whole rows lie: (offset of the first number, rows), in order
)
_METADATA_KEY: Final = b"calibrant.capture"


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What a file of captures says about its tensor.

    Attributes:
        tensor: value name in the prepared model.
        dtype: float32 or float16.
        rank: of a sample's own array.
        sample_axis: the model's axis that holds the samples, or None.
        shape: of a sample's own array (batch axis 1), or None where it varies: then each row has its `shape`.
    """

    tensor: str
    dtype: str
    rank: int
    sample_axis: int | None
    shape: tuple[int, ...] | None

    def to_metadata(self) -> dict[bytes, bytes]:
        """Return the schema metadata that carries this."""
        return {_METADATA_KEY: json.dumps(asdict(self)).encode()}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes] | None, path: Path) -> "CaptureInfo":
        """Read it back.

        Raises:
            RunError: the file has none.
        """
        if not metadata or _METADATA_KEY not in metadata:
            message = f"{path}: not a capture of calibrant (no '{_METADATA_KEY.decode()}' in its metadata); capture the run again"
            raise RunError(message)
        raw = json.loads(metadata[_METADATA_KEY])
        raw["shape"] = None if raw["shape"] is None else tuple(raw["shape"])
        return cls(**raw)


def capture_folder(folder: Path, tensor_id: int) -> Path:
    """Return the folder of a tensor's captures inside a run folder."""
    return folder / "captures" / f"tensor_id={tensor_id}"


def _parts(folder: Path, tensor_id: int) -> list[Path]:
    place = capture_folder(folder, tensor_id)
    parts = sorted(place.glob("part-*.parquet"))
    if not parts:
        message = f"{place}: no captured activations; only statistics were kept, capture again with --keep raw"
        raise RunError(message)
    return parts


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        message = f"{path}: cannot be read as Parquet ({error}); capture the run again"
        raise RunError(message) from error


def read_capture_info(folder: Path, tensor_id: int) -> CaptureInfo:
    """Return what the files of a tensor say about it.

    Raises:
        RunError: there are none, or they are damaged.
    """
    path = _parts(folder, tensor_id)[0]
    with _open(path) as file:
        return CaptureInfo.from_metadata(file.schema_arrow.metadata, path)


def _runs_of_equal_shape(shapes: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    start = 0
    for stop in range(1, len(shapes) + 1):
        if stop == len(shapes) or shapes[stop] != shapes[start]:
            yield start, stop
            start = stop


def _group_rows(table: pa.Table, info: CaptureInfo) -> Iterator[tuple[Array, Array]]:
    """Yield (sample numbers, rows) of neighbours of equal shape in a row group."""
    for batch in table.combine_chunks().to_batches():
        samples = batch.column("sample").to_numpy()
        flat = batch.column("values").flatten().to_numpy(zero_copy_only=True)
        if info.shape is not None:
            yield samples, flat.reshape(len(samples), *info.shape)
            continue
        shapes = [tuple(shape) for shape in batch.column("shape").to_pylist()]
        offset = 0
        for start, stop in _runs_of_equal_shape(shapes):
            size = int(np.prod(shapes[start], dtype=np.int64)) * (stop - start)
            yield samples[start:stop], flat[offset : offset + size].reshape(stop - start, *shapes[start])
            offset += size


def _read_groups(file: pq.ParquetFile, info: CaptureInfo) -> Iterator[tuple[Array, Array]]:
    for group in range(file.num_row_groups):
        yield from _group_rows(file.read_row_group(group), info)


def _read_pages(
    path: Path, file: pq.ParquetFile, info: CaptureInfo, pages: list[list[int]], wanted: Collection[int] | None
) -> Iterator[tuple[Array, Array]]:
    """Yield rows from where their numbers lie in the file: nothing has to be decoded, and pages without wanted samples not be read."""
    table = file.read(columns=["sample"] if info.shape is not None else ["sample", "shape.list.element"])
    samples = table["sample"].to_numpy()
    shapes = None if info.shape is not None else table["shape"]
    first = 0
    for offset, rows in pages:
        numbers = samples[first : first + rows]
        own = info.shape if shapes is None else tuple(shapes[first].as_py())
        first += rows
        if wanted is not None and not np.isin(numbers, [*wanted, CONSTANT_SAMPLE]).any():
            continue
        count = rows * int(np.prod(own or (), dtype=np.int64))
        values = np.fromfile(path, info.dtype, count, offset=offset)
        if values.size < count:
            message = f"ends at {offset + values.nbytes} bytes inside a page"
            raise OSError(message)
        yield numbers, values.reshape(rows, *(own or ()))


def _read_file(path: Path, file: pq.ParquetFile, wanted: Collection[int] | None) -> Iterator[tuple[Array, Array]]:
    metadata = file.schema_arrow.metadata
    info = CaptureInfo.from_metadata(metadata, path)
    pages = file.metadata.metadata.get(PAGES_KEY)
    if pages is None:
        yield from _read_groups(file, info)
    else:
        yield from _read_pages(path, file, info, json.loads(pages), wanted)


def read_capture_rows(
    folder: Path, tensor_id: int, wanted: Collection[int] | None = None
) -> Iterator[tuple[Array, Array]]:
    """Yield (sample numbers, rows) of a tensor, some neighbours at a time.

    Args:
        folder: the run folder.
        tensor_id: which tensor.
        wanted: numbers of samples; neighbours without any of them may be left out. None: all are read.

    Yields:
        sample numbers, shape (n,), int64, and rows, shape (n, ...): own arrays, stacked; at most 32 MB, or one row.

    Raises:
        RunError: there are no captures, or they are damaged.
    """
    for path in _parts(folder, tensor_id):
        with _open(path) as file:
            try:
                yield from _read_file(path, file, wanted)
            except (pa.ArrowException, OSError) as error:
                message = f"{path}: cannot be read as Parquet ({error}); capture the run again"
                raise RunError(message) from error


def read_captures(folder: Path, tensor_id: int) -> Iterator[tuple[int, Array]]:
    """Yield (sample, activation) of a captured tensor in the order of the samples.

    Args:
        folder: the run folder.
        tensor_id: as in the `tensors` table.

    Yields:
        the sample's number (-1 where the tensor is the same for all) and its own array: the model's rank, batch axis 1;
        a view.

    Raises:
        RunError: only statistics were kept, or a file is damaged.
    """
    _parts(folder, tensor_id)
    return (
        (int(s), row)
        for samples, rows in read_capture_rows(folder, tensor_id)
        for s, row in zip(samples, rows, strict=True)
    )
