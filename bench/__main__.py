"""Measure calibrant against floors and rivals, side by side in one run: a Markdown table on stdout, the figures in bench/results.

WORDS choose cases: a family (kernels, searches, captures, stored, memory, reports, cold) or any part of a case's name; none means all.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from bench import table
from bench.contest import Case, Outcome, Setting, run
from bench.models import find_models

RESULTS: Final = Path(__file__).parent / "results"
FAMILIES: Final = ("kernels", "searches", "cold_start", "reports", "captures", "stored", "memory")


def chosen(setting: Setting, words: Sequence[str]) -> Iterator[Case]:
    """Return the cases whose name holds one of the words."""
    for family in FAMILIES:
        for case in import_module(f"bench.{family}").cases(setting):
            if not words or any(word.lower() in case.name.lower() for word in words):
                yield case


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="just bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="which cases")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and measure nothing")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument("--fail", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--size", type=float, default=1.0, help="share of the full inputs, for a quick look")
    parser.add_argument("--rounds", type=int, help="timed rounds of every case [default: the case's own]")
    models, data = (os.environ.get(f"CALIBRANT_BENCH_{name}") for name in ("MODELS", "DATA"))
    parser.add_argument(
        "--models", type=Path, default=models and Path(models), help="folder of .onnx models [CALIBRANT_BENCH_MODELS]"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=data and Path(data),
        help="folder of .npz samples of the same names [CALIBRANT_BENCH_DATA; beside the models]",
    )
    parser.add_argument(
        "--docs", type=Path, help="put the figures that have a bar into the table of this document; other rows stay"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    return parser.parse_args(argv)


def measure(cases: Sequence[Case], setting: Setting, *, quiet: bool) -> list[Outcome]:
    """Run the cases; tell which one runs on stderr, and each row when it is there."""
    outcomes = []
    if not quiet:
        print(table.HEADER)
    for number, case in enumerate(cases, 1):
        print(f"[{number}/{len(cases)}] {case.name}", file=sys.stderr, flush=True)
        try:
            outcomes.append(run(case, setting))
        except Exception as error:  # one rival that fails must not cost the figures of all
            print(f"case failed: {case.name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if not quiet:
            print(*table.rows(outcomes[-1]), sep="\n", flush=True)
    return outcomes


def tell(outcomes: Sequence[Outcome], arguments: argparse.Namespace) -> int:
    """Keep the figures; say which bars are missed."""
    if arguments.json:
        print(json.dumps(table.record(outcomes, arguments.size), indent=2))
    if arguments.docs is not None:
        table.refresh(outcomes, arguments.docs)
    path = table.save(outcomes, arguments.size, arguments.out)
    missed = table.missed(outcomes) if arguments.size == 1 else []
    verdict = f"{len(missed)} bars missed" if arguments.size == 1 else "bars hold for full size only"
    print(*missed, f"{len(outcomes)} cases, {verdict}; figures: {path}", sep="\n", file=sys.stderr)
    return int(arguments.fail and bool(missed))


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, also where bars are missed, since a busy machine is no failure of the code; 1 with --fail, or where a case failed."""
    arguments = arguments_of(argv)
    with tempfile.TemporaryDirectory() as folder:
        models = find_models(arguments.models, arguments.data)
        setting = Setting(arguments.size, Path(folder), models, arguments.rounds)
        cases = list(chosen(setting, arguments.words))
        if arguments.list:
            print(*(case.name for case in cases), sep="\n")
            return 0
        if not cases:
            print(f"no case matches {' '.join(arguments.words)}; --list names them", file=sys.stderr)
            return 2
        outcomes = measure(cases, setting, quiet=arguments.json)
        return tell(outcomes, arguments) or int(len(outcomes) < len(cases))


if __name__ == "__main__":
    sys.exit(main())
