"""What one sees while the demo trains: a progress bar and the latest numbers, or plain lines."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

# A measurement as writers get it: numbers by name, a list of them for the eigenvalues.
Values: TypeAlias = Mapping[str, Any]

# Numbers of a measurement that are shown, and what they are called.
_SHOWN = {
    "trace": "trace",
    "participation_ratio": "participation ratio",
    "drift": "drift since step 0, relative",
    "distance_centred": "drift since step 0, centred distance",
    "alignment": "alignment with the labels",
    "alignment_above": "alignment above chance",
    "step_error": "error of a linear step",
    "margin": "stability margin (1 = edge)",
}


class LiveView:
    """A writer for `watch` that draws in the terminal; a context manager around the training loop.

    Args:
        steps: Number of updates, for the progress bar.
        console: Where to draw.
    """

    def __init__(self, steps: int, console: Console) -> None:
        self.console = console
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("training", total=steps, loss="")
        self._table: Table | str = "compiling"
        self._reduction = ""  # of the kernel the alignment is of
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=8)

    def __enter__(self) -> "LiveView":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def advance(self, step: int, loss: float | None) -> None:
        """Show the step reached and the loss of the last batch."""
        text = "" if loss is None else f"loss {loss:.4f}"
        self._progress.update(self._task, completed=step, loss=text)

    def start(self, record: Mapping[str, Any]) -> None:
        """Note what the alignment is of: of another kernel it is another number."""
        self._reduction = record.get("alignment_reduction", record["reduction"])
        is_held_out = record.get("alignment_of") == "held_out"
        self._reduction += ", held out" if is_held_out else ", trained on"

    def write(self, step: int, values: Values) -> None:
        """Show one measurement."""
        # What is not a terminal, a file or a log, gets a line for each measurement.
        if self.console.is_terminal:
            self._table = _table(step, values, self._reduction)
        else:
            self.console.print(
                _line(step, values, self._reduction), soft_wrap=True, highlight=False
            )

    def _draw(self) -> Group:
        return Group(self._progress, self._table)


def _table(step: int, values: Values, reduction: str) -> Table:
    """The latest measurement, one number a line."""
    table = Table(
        title=f"step {step}",
        title_justify="left",
        title_style="bold",
        show_header=False,
        box=None,
    )
    table.add_column(style="dim")
    table.add_column(justify="right")
    eigenvalues = values.get("eigenvalues", ())
    if eigenvalues:
        table.add_row("top eigenvalues", "  ".join(_number(value) for value in eigenvalues))
    for name, title in _SHOWN.items():
        if name in values:
            table.add_row(_labelled(title, reduction), _with_interval(name, values))
    return table


def _line(step: int, values: Values, reduction: str) -> str:
    """A measurement as one line."""
    parts = [f"step {step:5d}"]
    eigenvalues = values.get("eigenvalues", ())
    if eigenvalues:
        parts.append(f"lambda {_number(eigenvalues[0])}")
    for name in _SHOWN:
        if name in values:
            label = _labelled(name, reduction)
            parts.append(f"{label} {_with_interval(name, values)}")
    return "  ".join(parts)


def _labelled(name: str, reduction: str) -> str:
    """A name; with the reduction of the kernel where it is an alignment."""
    return f"{name} ({reduction})" if name.startswith("alignment") else name


def _with_interval(name: str, values: Values) -> str:
    """A number, with the ends of its interval where it is estimated."""
    shown = _number(values[name])
    lower = values.get(f"{name}_lower")
    upper = values.get(f"{name}_upper")
    if lower is None or upper is None:
        return shown
    return f"{shown} [{_number(lower)}, {_number(upper)}]"


def _number(value: float) -> str:
    """Four significant digits; a dash for what is not finite."""
    return f"{value:.4g}" if math.isfinite(value) else "-"
