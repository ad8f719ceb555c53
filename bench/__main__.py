"""``python -m bench [--size F] [--only WORD]``: measure, print a Markdown table, keep the figures in bench/results."""

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


def save(outcomes: list[Outcome]) -> Path:
    """Write the figures with what they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime("quantizers-%Y%m%dT%H%M%S.json")
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__}
    path.write_text(json.dumps({"machine": machine, "cases": [outcome.record() for outcome in outcomes]}, indent=2))
    return path


def main() -> int:
    """Run the cases; 0 whether or not bars are met, since a busy machine is no failure of the code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="share of the full inputs, for a quick look")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    outcomes = []
    print(HEADER)
    for case in CASES:
        if arguments.only in case.name:
            outcomes.append(run(case, arguments.size))
            print(outcomes[-1].row(), flush=True)
    missed = sum(not outcome.met for outcome in outcomes)
    print(f"\n{len(outcomes)} cases, {missed} below their bar; results: {save(outcomes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
