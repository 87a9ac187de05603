"""The tables."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import workloads
from benchmarks.results import Result, best

# float32 against float64: what is beyond this is red.
TOLERATED = 1e-5
OURS = "ntkdiag"


def table(results: Iterable[Result], tiny: bool = False) -> Table:
    """Rows by workload; times are medians, ratios are theirs over ours."""
    made = Table(title="Empirical NTK, x2=None, float32", title_justify="left", header_style="bold")
    for name in ("workload", "reduction", "peer"):
        made.add_column(name)
    numbers = ("first [s]", "median [s]", "/ ntkdiag", "cpu / ntkdiag", "peak", "planned")
    for name in (*numbers, "error"):
        made.add_column(name, justify="right")
    for group in _grouped(results):
        ours = _by_peer(group).get(OURS, _nothing())
        fastest = best(group)
        for result in group:
            heading = ["", ""]
            if result is group[0]:
                heading = [_title(result, tiny), result.reduction]
            is_bold = result is fastest or result is ours
            peer = Text(result.peer, style="bold" if is_bold else "")
            cells = _cells(result, ours, result is fastest)
            made.add_row(*heading, peer, *cells)
        made.add_section()
    return made


def _cells(result: Result, ours: Result, is_fastest: bool) -> list[str | Text]:
    """What was measured of one peer, or why nothing was."""
    if result.median is None or result.failed:
        reason = Text(result.failed or "not run", style="yellow")
        return [reason, *[""] * 6]

    seconds = f"{result.median:.3g}"
    if result.scale > 1:
        seconds += f" (1/{result.scale:.0f} run)"

    ratio = _ratio(result.median, ours.median)
    if is_fastest:
        ratio += " best"
    return [
        f"{result.first:.2f}",
        seconds,
        Text(ratio, style="bold" if is_fastest else ""),
        _ratio(result.median_cpu, ours.median_cpu),
        _mebibytes(result.peak_bytes),
        _mebibytes(result.plan.get("peak_bytes")),
        _error(result),
    ]


def _error(result: Result) -> Text:
    if result.error is None:
        return Text("")
    return Text(f"{result.error:.1e}", style="red" if result.error > TOLERATED else "")


def summary(results: Iterable[Result], tiny: bool = False) -> Table:
    """One row for each workload: ntkdiag against the best of all others, and its own prediction."""
    made = Table(title="ntkdiag and the best peer", title_justify="left", header_style="bold")
    for name in ("workload", "reduction", "best peer"):
        made.add_column(name)
    for name in ("time", "cpu", "first", "naive", "peak of planned", "error"):
        made.add_column(name, justify="right")
    for group in _grouped(results):
        peers = _by_peer(group)
        ours, fastest = peers.get(OURS), best(group)
        if ours is None or ours.failed or fastest is None:
            continue
        others = [result for result in group if result is not ours and result.seconds]
        first_of_others = min(result.first for result in others)
        made.add_row(
            _title(ours, tiny),
            ours.reduction,
            fastest.peer,
            _ratio(fastest.median, ours.median) + "x",
            _ratio(fastest.median_cpu, ours.median_cpu) + "x",
            _ratio(first_of_others, ours.first) + "x",
            _ratio(peers.get("naive", _nothing()).median, ours.median),
            _ratio(ours.peak_bytes, ours.plan.get("peak_bytes")),
            f"{ours.error:.1e}",
        )
    return made


def show(made: Table, console: Console | None = None) -> None:
    """Print it, wide enough for every column."""
    (console or Console(width=150)).print(made)


def _grouped(results: Iterable[Result]) -> list[list[Result]]:
    """The results of one workload and one reduction, one list for each pair."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.workload, result.reduction), []).append(result)
    return list(groups.values())


def _by_peer(group: list[Result]) -> dict[str, Result]:
    return {result.peer: result for result in group}


def _nothing() -> Result:
    """A peer that did not run."""
    return Result("", "", "")


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.2f}" if theirs and ours else ""


def _title(result: Result, tiny: bool) -> str:
    workload = workloads.get(result.workload, tiny)
    return f"{result.workload} {workload.title.split(',')[0]}, N={workload.n}"


def _mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.0f} MiB"
