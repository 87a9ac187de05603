"""The tables; `python -m benchmarks.table results.json` prints those of an earlier run again."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import workloads
from benchmarks.results import Result, best, load

TOLERATED = 1e-5  # float32 against float64


def table(results: Iterable[Result], tiny: bool = False) -> Table:
    """Rows by workload; times are medians, ratios are theirs over ours."""
    made = Table(title="Empirical NTK, x2=None, float32", title_justify="left", header_style="bold")
    for name in ("workload", "outputs", "peer"):
        made.add_column(name)
    for name in ("first [s]", "median [s]", "/ ntkdiag", "cpu / ntkdiag", "GF/s", "peak", "planned", "error"):
        made.add_column(name, justify="right")
    for group in _grouped(results):
        ours = next((result for result in group if result.peer == "ntkdiag"), None)
        fastest = best(group)
        for result in group:
            made.add_row(*_cells(result, ours, result is fastest, result is group[0], tiny))
        made.add_section()
    return made


def summary(results: Iterable[Result], tiny: bool = False) -> Table:
    """One row for each workload: ntkdiag against the best of all others, and against what was promised or predicted."""
    made = Table(title="ntkdiag and the best peer", title_justify="left", header_style="bold")
    for name in ("workload", "outputs", "best peer"):
        made.add_column(name)
    for name in ("time", "cpu", "first", "naive", "GF/s of gemm", "peak of planned", "error"):
        made.add_column(name, justify="right")
    for group in _grouped(results):
        by_peer = {result.peer: result for result in group}
        ours, fastest = by_peer.get("ntkdiag"), best(group)
        if ours is None or ours.failed or fastest is None:
            continue
        naive, gemm = by_peer.get("naive", Result("", "", "")), by_peer.get("gemm", Result("", "", ""))
        firsts = [result.first for result in group if result.peer not in ("ntkdiag", "gemm") and result.seconds]
        made.add_row(
            _title(ours, tiny),
            ours.outputs,
            fastest.peer,
            _ratio(fastest.median, ours.median) + "x",
            _ratio(fastest.median_cpu, ours.median_cpu) + "x",
            _ratio(min(firsts), ours.first) + "x",
            _ratio(naive.median, ours.median),
            _ratio(ours.rate, gemm.rate),
            _ratio(ours.peak_bytes, ours.plan.get("peak_bytes")),
            f"{ours.error:.1e}",
        )
    return made


def show(made: Table, console: Console | None = None) -> None:
    """Print it, wide enough for every column."""
    (console or Console(width=150)).print(made)


def _grouped(results: Iterable[Result]) -> list[list[Result]]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.workload, result.outputs), []).append(result)
    return list(groups.values())


def _cells(result: Result, ours: Result | None, fastest: bool, first: bool, tiny: bool) -> list[str | Text]:
    head = [_title(result, tiny), result.outputs] if first else ["", ""]
    name = Text(result.peer, style="bold" if fastest or result is ours else "")
    if result.median is None or result.failed:
        return [*head, name, Text(result.failed or "not run", style="yellow"), "", "", "", "", "", "", ""]
    ratio = "" if result.peer == "gemm" else _ratio(result.median, ours and ours.median) + (" best" if fastest else "")
    seconds = f"{result.median:.3g}" + (f" (1/{result.scale:.0f} run)" if result.scale > 1 else "")
    return [
        *head,
        name,
        f"{result.first:.2f}",
        seconds,
        Text(ratio, style="bold" if fastest else ""),
        "" if result.peer == "gemm" else _ratio(result.median_cpu, ours and ours.median_cpu),
        f"{result.rate / 1e9:.0f}" if result.rate else "",
        _mebibytes(result.peak_bytes),
        _mebibytes(result.plan.get("peak_bytes")),
        "" if result.error is None else Text(f"{result.error:.1e}", style="red" if result.error > TOLERATED else ""),
    ]


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.2f}" if theirs and ours else ""


def _title(result: Result, tiny: bool) -> str:
    workload = workloads.get(result.workload, tiny)
    return f"{result.workload} {workload.title.split(',')[0]}, N={workload.n}"


def _mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.0f} MiB"


if __name__ == "__main__":
    earlier = [result for path in sys.argv[1:] for result in load(path)]
    show(table(earlier))
    show(summary(earlier))
