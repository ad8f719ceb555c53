"""Outputs that were dumped elsewhere, e.g. by an om model on the NPU, matched to samples; the layout is in docs/evaluation.md."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibrant.errors import DataError, nearest
from calibrant.ingest.npy_folder import folder_name
from calibrant.ingest.samples import Sample

Array = npt.NDArray[Any]

_ENDINGS: Final = (".npy", ".bin")
_TYPED: Final = re.compile(r"\.(?P<shape>\d+(?:x\d+)*)\.(?P<dtype>[a-z]+\d*)$")  # at the end of a name without .bin
_NUMBERED: Final = re.compile(r"_(?:output_)?(?P<index>\d+)$")  # how msame and ais_bench number outputs
_TYPES: Final = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "bool",
)
LAYOUT: Final = "one file a sample, or one a batch, in the order of their names (docs/evaluation.md)"


@dataclass(frozen=True, slots=True)
class Dumps:
    """A folder of dumped outputs.

    Attributes:
        folder: where they lie: .npy or .bin files, or one sub-folder an output.
        dtype: of .bin files that say nothing themselves; their shape is then that of the float model's output.
    """

    folder: Path
    dtype: str = "float32"

    def each(
        self,
        samples: Iterable[Sample],
        references: Iterable[Mapping[str, Array]],
        chosen: Sequence[str],
        outputs: Sequence[str],
    ) -> Iterator[dict[str, Array]]:
        """Yield the dumped outputs of each sample.

        Args:
            samples: in the order of the data.
            references: outputs of the float model for the same samples; read once an output.
            chosen: the outputs to read.
            outputs: all outputs of the model, in order.

        Raises:
            DataError: no or too many files, wrong sizes, shapes or types; the message names the file.
        """
        _check_dtype(self.dtype, f"--dumps-type {self.dtype}")
        files = find_files(self.folder, chosen, outputs)
        places = [Path(sample.source).stem for sample in samples]
        streams = {
            name: _one_by_one(_in_order(files[name], places), _of(references, name), len(places), self.dtype)
            for name in chosen
        }
        for arrays in zip(*streams.values(), strict=True):
            yield dict(zip(streams, arrays, strict=True))


def find_files(folder: Path, chosen: Sequence[str], outputs: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of each chosen output, in the order of their names as text.

    Raises:
        DataError: no such folder or files, or files of which no output can be told.
    """
    if not folder.is_dir():
        message = f"--dumps {folder}: no such folder; expected {LAYOUT}"
        raise DataError(message)
    subfolders = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    if subfolders:
        return _by_folder(folder, subfolders, chosen, outputs)
    files = _dumped(folder)
    return {outputs[0]: files} if len(outputs) == 1 else _by_number(folder, files, chosen, outputs)


def _dumped(folder: Path) -> list[Path]:
    files = [entry for entry in sorted(folder.iterdir()) if entry.suffix in _ENDINGS and not entry.name.startswith(".")]
    if not files:
        message = f"--dumps {folder}: no .npy or .bin files; expected {LAYOUT}"
        raise DataError(message)
    if len({file.suffix for file in files}) > 1:
        message = f"--dumps {folder}: holds both .npy and .bin files, e.g. {files[0].name}; keep one kind"
        raise DataError(message)
    return files


def _by_folder(
    folder: Path, subfolders: Sequence[Path], chosen: Sequence[str], outputs: Sequence[str]
) -> dict[str, list[Path]]:
    names = {folder_name(name): name for name in outputs}
    for entry in subfolders:
        if entry.name not in names:
            listed = ", ".join(names)
            message = f"--dumps {folder}: sub-folder '{entry.name}' is of no output; the model's are {listed}{nearest(entry.name, names)}"
            raise DataError(message)
    found = {names[entry.name]: entry for entry in subfolders}
    for name in chosen:
        if name not in found:
            message = f"--dumps {folder}: no sub-folder '{folder_name(name)}' for output '{name}'; dump it, or choose --output-name"
            raise DataError(message)
    return {name: _dumped(found[name]) for name in chosen}


def _by_number(
    folder: Path, files: Sequence[Path], chosen: Sequence[str], outputs: Sequence[str]
) -> dict[str, list[Path]]:
    """Tell outputs apart by the number behind the file's name."""
    found: dict[str, list[Path]] = {name: [] for name in outputs}
    for file in files:
        number = _NUMBERED.search(_plain_stem(file))
        if number is None or int(number["index"]) >= len(outputs):
            message = (
                f"--dumps {file}: of which of the {len(outputs)} outputs? End the name with _0 to _{len(outputs) - 1}, "
                "or make a sub-folder for each output"
            )
            raise DataError(message)
        found[outputs[int(number["index"])]].append(file)
    for name in chosen:
        if not found[name]:
            place = list(outputs).index(name)
            message = (
                f"--dumps {folder}: no file ends with _{place} for output '{name}'; dump it, or choose --output-name"
            )
            raise DataError(message)
    return {name: found[name] for name in chosen}


def _plain_stem(file: Path) -> str:
    """Return the name without its ending, shape and type."""
    return _TYPED.sub("", file.name.removesuffix(file.suffix))


def _in_order(files: list[Path], places: Sequence[str]) -> list[Path]:
    """Return files in the order of the samples: by the names of the data's files, else by their own.

    Names whose order as text is another than their order as numbers are refused.
    """
    plain = [_plain_stem(file) for file in files]
    for stems in (plain, [_NUMBERED.sub("", stem) for stem in plain]):
        if len(set(stems)) == len(stems) == len(places) and set(stems) == set(places):
            named = dict(zip(stems, files, strict=True))
            return [named[place] for place in places]
    for before, after in zip(files, sorted(files, key=_natural), strict=True):
        if before != after:
            message = (
                f"--dumps {before}: the names sort differently as text and as numbers, so which sample is whose cannot be told; "
                "pad the numbers with zeros"
            )
            raise DataError(message)
    return files


def _natural(file: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", _plain_stem(file))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _of(references: Iterable[Mapping[str, Array]], name: str) -> Iterator[Array]:
    return (entry[name] for entry in references)


def _one_by_one(files: Sequence[Path], likes: Iterator[Array], count: int, dtype: str) -> Iterator[Array]:
    """Yield one array a sample: a file each, or the rows of files that hold a batch each."""
    if len(files) == count:
        for file, like in zip(files, likes, strict=True):
            array = _read(file, like, dtype, rows=1)
            yield _shaped(array, like.shape if _fits(array, like.shape) else None, file, like)
        return
    like = next(likes)
    found = 0
    for file in files:
        rows = _rows(_read(file, like, dtype, rows=None), file, like)
        found += len(rows)
        yield from rows if found <= count else ()
    if found != count:
        message = f"--dumps {files[0].parent}: {len(files)} files hold {found} samples, the data has {count}; expected {LAYOUT}"
        raise DataError(message)


def _fits(array: Array, shape: Sequence[int]) -> bool:
    """Return whether two shapes are equal but for axes of 1."""
    return [size for size in array.shape if size != 1] == [size for size in shape if size != 1]


def _shaped(array: Array, shape: Sequence[int] | None, file: Path, like: Array) -> Array:
    if shape is None:
        message = (
            f"--dumps {file}: shape {list(array.shape)}; expected that of the float model's output, {list(like.shape)}"
        )
        raise DataError(message)
    return array.reshape(shape)


def _rows(array: Array, file: Path, like: Array) -> list[Array]:
    """Split the first axis of a batch into samples."""
    inner = like.shape[1:] if like.ndim and like.shape[0] == 1 else like.shape
    if not array.ndim or not _fits(array[0] if len(array) else array, inner):
        message = f"--dumps {file}: shape {list(array.shape)}; expected a batch of outputs of the float model, {['N', *inner]}"
        raise DataError(message)
    return [row.reshape(like.shape) for row in array]


def _read(file: Path, like: Array, dtype: str, rows: int | None) -> Array:
    if file.suffix == ".bin":
        return _read_bin(file, like, dtype, rows)
    try:
        array: Array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        message = f"--dumps {file}: cannot be read as .npy: {error}; write it with numpy.save"
        raise DataError(message) from error
    if array.dtype.kind not in "biuf":
        message = f"--dumps {file}: holds {array.dtype}, expected numbers"
        raise DataError(message)
    return array


def _read_bin(file: Path, like: Array, dtype: str, rows: int | None) -> Array:
    """Read raw values; shape and type come from the name, a sidecar, or the float model's output and the option."""
    shape, kind = _described(file)
    values = _raw(file, kind or dtype)
    if shape is None:
        size = max(like.size, 1)
        inner = like.shape[1:] if like.ndim and like.shape[0] == 1 else like.shape
        shape = like.shape if rows == 1 else (values.size // size, *inner)
    if values.size != math.prod(shape) or not values.size:
        message = (
            f"--dumps {file}: holds {values.size} values of {kind or dtype}, shape {list(shape)} has {math.prod(shape)}; "
            "name the file NAME.1x1000.float16.bin by its shape and type, or pass --dumps-type"
        )
        raise DataError(message)
    return values.reshape(shape)


def _raw(file: Path, kind: str) -> Array:
    _check_dtype(kind, f"--dumps {file}")
    try:
        data = file.read_bytes()
    except OSError as error:
        message = f"--dumps {file}: cannot be read: {error.strerror}"
        raise DataError(message) from error
    width = np.dtype(kind).itemsize
    if len(data) % width:
        message = f"--dumps {file}: {len(data)} bytes are no whole number of values of {kind}; it was cut, or --dumps-type is another"
        raise DataError(message)
    return np.frombuffer(data, np.dtype(kind))


def _check_dtype(kind: str, where: str) -> None:
    if kind not in _TYPES:
        message = f"{where}: no type '{kind}'{nearest(kind, _TYPES)}; types: {', '.join(_TYPES)}"
        raise DataError(message)


def _described(file: Path) -> tuple[tuple[int, ...] | None, str | None]:
    """Return what a file's name or its sidecar says of shape and type."""
    stem = file.name.removesuffix(".bin")
    if named := _TYPED.search(stem):
        return tuple(map(int, named["shape"].split("x"))), named["dtype"]
    for sidecar in (file.with_name(file.name + ".json"), file.with_suffix(".json")):
        if sidecar.is_file():
            return _sidecar(sidecar)
    return None, None


def _sidecar(path: Path) -> tuple[tuple[int, ...] | None, str | None]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return tuple(int(size) for size in found["shape"]), str(found["dtype"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f'--dumps {path}: cannot be read ({error!r}); expected {{"shape": [1, 1000], "dtype": "float32"}}'
        raise DataError(message) from error
