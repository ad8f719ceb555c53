"""Samples from a folder of ``.npy`` files: a file is one sample, a sub-folder is one input."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from calibrant.errors import DataError, EmptyDataError, nearest
from calibrant.ingest.model import ModelInput
from calibrant.ingest.npz import read_header
from calibrant.ingest.samples import Array, Sample, check_dtype, check_names, make_sample, single_sample_shape

_NOT_IN_FILE_NAMES = re.compile(r'[\\/:*?"<>|]')


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def folder_name(name: str) -> str:
    """Return the sub-folder name for an input whose own name no file system takes.

    Example:
        >>> folder_name("serving/x:0")
        'serving_x_0'
    """
    return _NOT_IN_FILE_NAMES.sub("_", name)


def _npy_names(folder: Path) -> list[str]:
    names = []
    for entry in _entries(folder):
        if entry.suffix != ".npy" or not entry.is_file():
            message = (
                f"{folder}: '{entry.name}' is no .npy file; a data folder holds one .npy file a sample and nothing else"
            )
            raise DataError(message)
        names.append(entry.name)
    if not names:
        message = f"{folder}: no .npy files; expected one a sample"
        raise EmptyDataError(message)
    return names


def _input_folders(folder: Path, inputs: Sequence[ModelInput]) -> dict[str, Path]:
    """Find the folder of each input: sub-folders by name, or the folder itself for a single input."""
    subfolders = [entry for entry in _entries(folder) if entry.is_dir()]
    if not subfolders and len(inputs) == 1:
        return {inputs[0].name: folder}
    by_folder = {folder_name(spec.name): spec.name for spec in inputs}
    for entry in _entries(folder):
        if not entry.is_dir():
            message = f"{folder}: '{entry.name}' lies beside sub-folders; expected only one sub-folder an input"
            raise DataError(message)
    found = {by_folder.get(entry.name, entry.name): entry for entry in subfolders}
    check_names(found, inputs, str(folder))
    return found


def _matched_names(folders: dict[str, Path]) -> list[str]:
    """The file names, equal in all sub-folders."""
    names = {name: _npy_names(path) for name, path in folders.items()}
    first_input, first_names = next(iter(names.items()))
    for name, files in names.items():
        for lonely in sorted(set(files) ^ set(first_names)):
            there, other = (name, first_input) if lonely in files else (first_input, name)
            message = (
                f"{folders[there] / lonely}: input '{other}' has no file of this name in {folders[other]}"
                f"{nearest(lonely, names[other])}"
            )
            raise DataError(message)
    return first_names


def _unreadable(path: Path, error: Exception, where: str) -> DataError:
    return DataError(f"{where}: {path} cannot be read as .npy: {error}; write it with numpy.save")


def _check_file(path: Path, spec: ModelInput, where: str) -> None:
    """Check dtype and shape from the file's header."""
    try:
        with path.open("rb") as stream:
            header = read_header(stream, f"{where}: {path}")
    except OSError as error:
        raise _unreadable(path, error, where) from error
    check_dtype(header.dtype, spec, where)
    single_sample_shape(header.shape, spec, where)


def _read_array(path: Path, spec: ModelInput, where: str) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise _unreadable(path, error, where) from error
    return np.ascontiguousarray(array).reshape(single_sample_shape(array.shape, spec, where))


def count_files(folder: Path, inputs: Sequence[ModelInput]) -> int:
    """Check the headers of all files against the model and return the number of samples.

    Raises:
        DataError: sub-folders or file names that do not match, other files, or a wrong dtype or shape.
    """
    folders = _input_folders(folder, inputs)
    names = _matched_names(folders)
    for number, name in enumerate(names):
        for spec in inputs:
            _check_file(folders[spec.name] / name, spec, f"sample {number} ({name})")
    return len(names)


def read_npy_folder(folder: Path, inputs: Sequence[ModelInput]) -> Iterator[Sample]:
    """Yield the samples of a folder, sorted by file name.

    Raises:
        DataError: a file is cut, damaged or gone.
    """
    folders = _input_folders(folder, inputs)
    for number, name in enumerate(_matched_names(folders)):
        where = f"sample {number} ({name})"
        values = {spec.name: _read_array(folders[spec.name] / name, spec, where) for spec in inputs}
        yield make_sample(values, name, 0)
