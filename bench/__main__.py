"""``python -m bench [--size F] [--only WORD] [--out DIR]``: measure, print a Markdown table, keep the figures in bench/results."""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

from bench.bench_quantizers import CASES, Outcome, run

RESULTS = Path(__file__).parent / "results"
HEADER = "| case | ours, ms | numpy, ms | figure | bar | met |\n|---|---|---|---|---|---|"


def save(outcomes: list[Outcome], folder: Path) -> Path:
    """Write the figures with what they were measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / time.strftime("quantizers-%Y%m%dT%H%M%S.json")
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__}
    path.write_text(json.dumps({"machine": machine, "cases": [outcome.record() for outcome in outcomes]}, indent=2))
    return path


def main() -> int:
    """Run the cases; 0 whether or not bars are met, since a busy machine is no failure of the code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="share of the full inputs, for a quick look")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    arguments = parser.parse_args()
    outcomes = []
    print(HEADER)
    for case in CASES:
        if arguments.only in case.name:
            outcomes.append(run(case, arguments.size))
            print(outcomes[-1].row(), flush=True)
    if arguments.size != 1.0:
        print(f"\nInputs were {arguments.size:g} of the size that the names say; bars hold for full size only.")
    missed = sum(not outcome.met for outcome in outcomes)
    print(f"\n{len(outcomes)} cases, {missed} that miss their bar; results: {save(outcomes, arguments.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
