"""Two versions of ntkdiag on the same kernels: `python -m benchmarks.versions --old FOLDER`.

FOLDER is another checkout; this one is the new version. Each of them computes in a process of its
own, and the two take turns, so that whatever else the machine does disturbs both alike. Every
round gives one ratio, new over old, of the median call of either process; what is printed is the
median of these ratios and, behind it, their lower and upper quartiles. Peak memory is compared in
the same way. With `--tiny` the numbers are those of the calls themselves: of reading arguments,
looking programs up and checking.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from benchmarks.process import ROOT, Failed, Process

SIDES = ("new", "old")
MEMORY_LIMIT = 14 * 2**30
MEMORY_ROUNDS = 3
SMALLEST_PEAK = 10 * 2**20


@dataclasses.dataclass
class Cell:
    """One workload with one reduction, measured with both versions.

    Attributes:
        workload: Its name.
        reduction: "trace" or "full".
        first: Seconds of the first call by version: tracing, compiling, running.
        median: Seconds of the median call by version.
        seconds: Ratios new over old of the time by the clock, one for each round.
        cpu: The same of the processor time of all threads.
        memory: The same of the peak resident set; empty where it is too small to say anything.
        failed: The reason, where there is no number.
    """

    workload: str
    reduction: str
    first: dict[str, float] = dataclasses.field(default_factory=dict)
    median: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    memory: list[float] = dataclasses.field(default_factory=list)
    failed: str | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        old: The other checkout.
        rounds: Turns of either process.
        limit: Seconds for any one answer.
        tiny: Smoke-test sizes.
    """

    old: str
    rounds: int
    limit: float
    tiny: bool


@contextlib.contextmanager
def stage(checkout: str) -> Iterator[str]:
    """A folder with the benchmarks of this checkout beside the package of another one."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(ROOT, "benchmarks"), os.path.join(folder, "benchmarks"))
        package = os.path.abspath(os.path.join(checkout, "ntkdiag"))
        os.symlink(package, os.path.join(folder, "ntkdiag"))
        yield folder


@contextlib.contextmanager
def processes(cell: Cell, options: Options) -> Iterator[dict[str, Process]]:
    """A worker of either version, ended at the end."""
    worker = ["benchmarks.worker", "--peer", "ntkdiag"]
    worker += ["--workload", cell.workload, "--reduction", cell.reduction]
    if options.tiny:
        worker.append("--tiny")
    with contextlib.ExitStack() as stack:
        running = {}
        for side, checkout in zip(SIDES, (ROOT, options.old), strict=True):
            root = stack.enter_context(stage(checkout))
            process = Process(sys.executable, worker, MEMORY_LIMIT, root=root)
            stack.callback(process.close)
            running[side] = process
        yield running


def measure(cell: Cell, options: Options) -> None:
    """Fill a cell; a version that fails is its reason."""
    try:
        with processes(cell, options) as running:
            _measure(cell, running, options)
    except Failed as failure:
        cell.failed = str(failure)


def _measure(cell: Cell, running: dict[str, Process], options: Options) -> None:
    """First calls, then peak memory, then times: in turns all along."""
    for side, process in running.items():
        process.ask(options.limit)
        prepared = process.ask(options.limit, do="prepare", reference=None)
        cell.first[side] = prepared["seconds"]

    for turn in range(MEMORY_ROUNDS):
        peaks = {}
        for side in _order(turn):
            peaks[side] = running[side].ask(options.limit, do="memory")["bytes"]
        # Below some ten MiB the peak is what the allocator does.
        if None not in peaks.values() and min(peaks.values()) > SMALLEST_PEAK:
            cell.memory.append(peaks["new"] / peaks["old"])

    calls: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(options.rounds):
        answers = {}
        for side in _order(turn):
            answers[side] = running[side].ask(options.limit, do="run")
            calls[side] += answers[side]["seconds"]
        for measure_of, ratios in (("seconds", cell.seconds), ("cpu", cell.cpu)):
            new, old = (statistics.median(answers[side][measure_of]) for side in SIDES)
            ratios.append(new / old)
    cell.median = {side: statistics.median(seconds) for side, seconds in calls.items()}


def _order(turn: int) -> tuple[str, ...]:
    """Who comes second finds other caches: they swap places from turn to turn."""
    return SIDES if turn % 2 == 0 else SIDES[::-1]


def spread(ratios: list[float]) -> str:
    """The median of some ratios and, behind it, their quartiles."""
    if not ratios:
        return ""
    if len(ratios) == 1:
        return f"{ratios[0]:.3f}"
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.3f} [{lower:.3f}, {upper:.3f}]"


def table(cells: list[Cell]) -> Table:
    """One row for each cell."""
    made = Table(title="new / old: median of the rounds [quartiles]", title_justify="left")
    for name in ("workload", "reduction"):
        made.add_column(name)
    for name in ("new", "old", "time", "cpu", "peak memory", "first call"):
        made.add_column(name, justify="right")
    for cell in cells:
        if cell.failed:
            made.add_row(cell.workload, cell.reduction, cell.failed)
            continue
        made.add_row(
            cell.workload,
            cell.reduction,
            *(f"{1e3 * cell.median[side]:.3g} ms" for side in SIDES),
            *(spread(ratios) for ratios in (cell.seconds, cell.cpu, cell.memory)),
            f"{cell.first['new'] / cell.first['old']:.2f}",
        )
    return made


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 1 where a version failed."""
    arguments = _parser().parse_args(argv)
    options = Options(arguments.old, arguments.rounds, arguments.limit, arguments.tiny)
    progress = Console(stderr=True)
    cells: list[Cell] = []
    for name in arguments.workloads.split(","):
        for reduction in workloads.get(name).reductions:
            if reduction in arguments.reduction.split(","):
                progress.print(f"{name} {reduction}")
                cells.append(Cell(name, reduction))
                measure(cells[-1], options)
                if arguments.json:
                    rows = [dataclasses.asdict(cell) for cell in cells]
                    pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
    Console(width=150).print(table(cells))
    return int(any(cell.failed for cell in cells))


def _parser() -> argparse.ArgumentParser:
    names = ",".join(workload.name for workload in workloads.ALL)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("--old", required=True, help="a folder that holds another `ntkdiag`")
    parser.add_argument("--workloads", default=names, help="such as W1,W3")
    parser.add_argument("--reduction", default="trace,full")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for any one answer")
    parser.add_argument("--tiny", action="store_true", help="smoke-test sizes")
    parser.add_argument("--json", help="where to write every ratio")
    return parser


if __name__ == "__main__":
    sys.exit(main())
