"""`python -m benchmarks.alarms`: trains the runs that are missing, then says what warned of what.

    python -m benchmarks.alarms --out alarms_runs            all that is missing, then the table
    python -m benchmarks.alarms --out alarms_runs --train GPT      of some networks, without a table

It can be stopped at any time, and goes on where it was; two processes may train other networks. A
run takes some ten seconds of a processor, and each pair of network and optimizer half a minute more
to compile.
"""

import argparse
import pathlib
import sys

from rich.console import Console

from benchmarks.alarms import report
from benchmarks.alarms.networks import NETWORKS
from benchmarks.alarms.runs import FULL_BATCH, Run, all_runs
from benchmarks.alarms.training import train


def main(argv: list[str] | None = None) -> int:
    """Train what is missing, and print the table."""
    arguments = _parser().parse_args(argv)
    console = Console(width=130)
    networks = arguments.train or list(NETWORKS)
    missing = [
        run
        for run in sorted(all_runs(), key=_program)
        if run.network in networks and not (_folder(arguments.out, run) / "steps.jsonl").exists()
    ]
    for k, run in enumerate(missing):
        console.print(f"{k + 1} of {len(missing)}: {run.network}, {run.optimizer}, {run.cause}")
        train(run, _folder(arguments.out, run))
    if not arguments.train:
        report.write(arguments.out, console)
    return 0


def _program(run: Run) -> tuple[str, str, str, bool]:
    """Runs that share a compiled program stand side by side."""
    return run.network, run.optimizer, run.dtype, run.cause in FULL_BATCH


def _folder(out: pathlib.Path, run: Run) -> pathlib.Path:
    return out / f"{run.number:03d}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.alarms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=pathlib.Path, default="alarms_runs", help="run directories")
    parser.add_argument("--train", nargs="+", choices=list(NETWORKS), help="train these alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
