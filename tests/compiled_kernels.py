"""Runs in a process of their own: which kernels they needed that `compile_kernels` had not called, and which no cache held.

``python compiled_kernels.py FOLDER`` prints both lists as JSON. The batches of the convolution are counted in the flat table and in pages,
those of the matrix are sorted; both searches and the checks of the exported models take part.
"""

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import models
import numpy as np
from numba.core.dispatcher import Dispatcher

import calibrant
from calibrant.warm import compile_kernels

HFMG = "common_config { hfmg_quantize { num_of_bins: 4096 } }"


def kernels() -> Iterator[Dispatcher]:
    """The package's kernels, called or not."""
    found = (thing for thing in gc.get_objects() if isinstance(thing, Dispatcher))
    return (kernel for kernel in found if kernel.py_func.__module__.startswith("calibrant."))


def called() -> set[str]:
    """Which kernels were called with which types."""
    return {f"{kernel.py_func.__name__}{types}" for kernel in kernels() for types in kernel.signatures}


def run_all(folder: Path) -> None:
    """Run a convolution with IFMR and a matrix with HFMG, each from arrays to verified models."""
    images = np.random.default_rng(0).standard_normal((9, 3, 128, 128), dtype=np.float32)
    np.savez(folder / "images.npz", x=images)
    convolution = models.save(models.conv_relu(size=128), folder / "convolution.onnx")
    calibrant.run(convolution, folder / "images.npz", run=folder / "convolution.run", batch_size=8)
    (folder / "hfmg.cfg").write_text(HFMG)
    matrix = models.save(models.gemm(), folder / "matrix.onnx")
    rows = np.random.default_rng(1).standard_normal((5, 4), dtype=np.float32)
    np.savez(folder / "rows.npz", x=rows)
    config = folder / "hfmg.cfg"
    calibrant.run(matrix, folder / "rows.npz", run=folder / "matrix.run", batch_size=2, config=config, keep="stats")


def main(folder: Path) -> None:
    """Print what was needed beyond `compile_kernels`, and what had to be compiled at all."""
    compile_kernels()
    known = called()
    run_all(folder)
    compiled = sorted(kernel.py_func.__name__ for kernel in kernels() if sum(kernel.stats.cache_misses.values()))
    print(json.dumps({"beyond": sorted(called() - known), "compiled": compiled}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
