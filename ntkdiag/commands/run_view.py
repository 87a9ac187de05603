"""A run directory as one looks at it while it grows: of each stream the latest numbers.

1. A stream is read again when its file has changed.
2. Of its rows every number is shown: the latest value, its interval where it is estimated, and all
   values as a sparkline.
3. What is looked at most stands first.
"""

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ntkdiag import display
from ntkdiag.commands.sparkline import sparkline
from ntkdiag.commands.streams_of_run import rows_of
from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.writers import read_findings
from ntkdiag.report.number_text import number
from ntkdiag.runs.run_reader import RunReader

# Numbers that stand above the others.
_FIRST = (
    "loss",
    "accuracy",
    "held_out_loss",
    "held_out_accuracy",
    "margin",
    "drift",
    "drift_distance_centred",
    "distance_centred",
    "alignment_above",
    "held_out_alignment_above",
    "step_error",
    "eigenvalues",
    "participation_ratio",
    "trace",
)
_WIDTH_OF_SPARKLINE = 20
_MOST_FINDINGS = 3  # the latest
_NOT_MEASURED = ("probe",)  # streams that hold examples


@dataclasses.dataclass(frozen=True)
class StreamView:
    """A stream as it is now.

    Attributes:
        name: Of the stream.
        record: What its numbers mean.
        rows: In the order of their steps, each with "step".
        findings: In the order found.
        written: When the last line came, in seconds since the epoch.
    """

    name: str
    record: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    findings: Sequence[Finding]
    written: float

    @property
    def steps(self) -> list[int]:
        """The steps of the rows."""
        return [row["step"] for row in self.rows]

    @property
    def age(self) -> float:
        """Seconds since the last line came."""
        return max(time.time() - self.written, 0.0)

    def series(self) -> dict[str, list[float]]:
        """Every number over the rows, NaN where it is not known; of a list the first entry."""
        names: dict[str, None] = {}  # in the order first seen
        for row in self.rows:
            names.update(dict.fromkeys(name for name in row if _is_shown(name, row[name])))
        names.pop("step", None)
        return {name: [_first(row.get(name)) for row in self.rows] for name in names}

    def to_dict(self) -> display.PlainValue:
        """The latest row, and how much there is."""
        steps = self.steps
        content = {
            "rows": len(steps),
            "first_step": steps[0] if steps else None,
            "last_step": steps[-1] if steps else None,
            "seconds_since_last_line": round(self.age, 1),
            "last": dict(self.rows[-1]) if steps else None,
            "findings": [finding.to_dict() for finding in self.findings],
        }
        return display.plain(content)

    def __rich__(self) -> RenderableType:
        steps = self.steps
        if not steps:
            return Text(f"{self.name}: no row yet, begun {_duration(self.age)} ago\n")
        rows = "1 row, step" if len(steps) == 1 else f"{len(steps)} rows, steps {steps[0]} to"
        title = f"{self.name}: {rows} {steps[-1]}, the last {_duration(self.age)} ago"
        table = display.terminal_table(title)
        table.expand = False
        table.add_column("number", overflow="fold")
        table.add_column("latest", justify="right", no_wrap=True)
        table.add_column("interval", no_wrap=True)
        table.add_column("over the steps", no_wrap=True)
        self._fill(table)
        findings = [Text(str(finding), "bold red") for finding in self.findings[-_MOST_FINDINGS:]]
        return Group(table, *findings)

    def _fill(self, table: Table) -> None:
        """A line for each number; the ends of an interval stand beside what they are of."""
        series = self.series()
        for name in sorted(series, key=_place):
            if _is_end_of_interval(name, series):
                continue
            lower = series.get(f"{name}_lower", [math.nan])[-1]
            upper = series.get(f"{name}_upper", [math.nan])[-1]
            interval = f"{number(lower)} to {number(upper)}" if lower <= upper else ""
            line = sparkline(series[name], _WIDTH_OF_SPARKLINE)
            table.add_row(Text(name), number(series[name][-1]), interval, line)


def _place(name: str) -> int:
    """Those that are looked at most stand first, the others stay as they come."""
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


class LiveRun:
    """Reads the streams of a run, those that have changed again.

    Args:
        run: The run.
        names: Its streams; None for all measurements that there are when it is asked.
    """

    def __init__(self, run: RunReader, names: Sequence[str] | None) -> None:
        self.run = run
        self.names = names
        self._views: dict[str, tuple[tuple[int, int], StreamView]] = {}

    def views(self) -> list[StreamView]:
        """All streams as they are now."""
        names = self.names
        if names is None:
            names = [name for name in self.run.names if name not in _NOT_MEASURED]
        return [self._view(name) for name in names]

    def _view(self, name: str) -> StreamView:
        path = self.run.root / f"{name}.jsonl"
        status = os.stat(path)
        stamp = (status.st_mtime_ns, status.st_size)
        if name not in self._views or self._views[name][0] != stamp:
            view = StreamView(
                name=name,
                record=self.run.record(name),
                rows=rows_of(self.run, name),
                findings=read_findings(path),
                written=status.st_mtime,
            )
            self._views[name] = (stamp, view)
        return self._views[name][1]


def _is_shown(name: str, value: object) -> bool:
    """Whether there is a number to show: one by itself, or the largest of the eigenvalues."""
    if isinstance(value, list):
        return name.endswith("eigenvalues") and len(value) > 0
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first(value: Any) -> float:
    """A number; the first one of a list."""
    if isinstance(value, list):
        value = value[0] if value else math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan


def _is_end_of_interval(name: str, names: Mapping[str, object]) -> bool:
    """Whether a number is an end of the interval of another one."""
    for ending in ("_lower", "_upper"):
        if name.endswith(ending) and name.removesuffix(ending) in names:
            return True
    return False


def _duration(seconds: float) -> str:
    """A time in its largest unit."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
