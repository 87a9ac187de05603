"""Where measurements go: the Writer protocol, and writers that need nothing beyond ntkdiag."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import jax

from ntkdiag import errors
from ntkdiag.monitor.alerting.alert import Alert, alert_from_dict
from ntkdiag.runs.json_lines import (
    append_line,
    has_content,
    is_alert,
    json_objects,
    line_of,
    records_and_rows,
)

if TYPE_CHECKING:
    from rich.console import Console

Numbers: TypeAlias = float | int | list[float]
Values: TypeAlias = Mapping[str, Numbers]


@runtime_checkable
class Writer(Protocol):
    """Receives one call per measurement, on the host.

    Four methods are optional. `remember_in(folder)` is called where the monitor is made, with its
    run directory, if it has one. `start(record)` is called once, before the first `write`, with the
    convention record: what the numbers mean (reduction, probe, loss, schedule, notes), as plain
    JSON values. `alert(alert)` takes an `Alert`, after the record that it is about. `close()` ends
    the writer. All but the first are called on a thread of their own, one after the other, so that
    a writer that hangs does not hold up training.
    """

    def write(self, step: int, values: Values) -> None:
        """Take the measurement of one step: a float or a list of floats under each name."""
        ...


class InMemory:
    """Keeps everything in lists, for notebooks and tests.

    Attributes:
        record: The convention record, None before the first measurement.
        steps: The measured steps.
        rows: One dict per measurement, with its step under "step".
        alerts: The alerts, in the order raised.
    """

    def __init__(self) -> None:
        self.record: dict[str, Any] | None = None
        self.steps: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.alerts: list[Alert] = []

    def start(self, record: Mapping[str, Any]) -> None:
        """Keep the convention record."""
        self.record = dict(record)

    def write(self, step: int, values: Values) -> None:
        """Append one measurement."""
        self.steps.append(step)
        self.rows.append({"step": step, **values})

    def alert(self, alert: Alert) -> None:
        """Append one alert."""
        self.alerts.append(alert)

    def series(self, name: str) -> list[Numbers]:
        """The values of one name, in the order written."""
        return [row[name] for row in self.rows]


class JsonLines:
    """Appends one JSON object per line to a file, so that a killed run loses nothing.

    Each session of writing begins with a line ``{"record": {...}}``, the convention record of the
    lines that follow; an alert is a line ``{"alert": {...}}``, and every other line is
    ``{"step": ..., name: value, ...}``. Numbers that are not finite are null. An existing file is
    never overwritten: its lines stay and new ones follow. Read it back with `read_json_lines`, and
    its alerts with `read_alerts`. Of the processes of one JAX program, which all measure the same,
    the first one writes, and the others do nothing.

    Args:
        path: The file, or a named pipe; folders are made as needed. It is open only while a line is
            written.

    Raises:
        InvalidInputError: When it is a folder.
    """

    @errors.public
    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Absolute from the beginning: a script may change its folder later.
        self.path = pathlib.Path(path).expanduser().absolute()
        self._record: dict[str, Any] = {}
        if self.path.is_dir():
            raise errors.InvalidInputError(
                call=f"JsonLines({str(path)!r})",
                expected="a file",
                got="a folder",
                do="Name a file in it: run.jsonl.",
            )

    def start(self, record: Mapping[str, Any]) -> None:
        """Write the convention record on its own line."""
        self._record = dict(record)
        self._append({"record": self._record})

    def write(self, step: int, values: Values) -> None:
        """Append one measurement."""
        # Where the file was moved away, the new one has to say what its numbers mean, too.
        if self._record and not self._has_begun():
            self._append({"record": self._record})
        self._append({"step": step, **values})

    def alert(self, alert: Alert) -> None:
        """Append one alert."""
        self._append({"alert": alert.to_dict()})

    def close(self) -> None:
        """Have the system put on the disk what it still holds in memory: it may lose its power."""
        if not self.path.is_file():
            return  # nothing was written, or it went into a pipe
        with self.path.open("rb") as file:
            os.fsync(file.fileno())

    def _has_begun(self) -> bool:
        """Whether the record went to where the next line goes; a pipe keeps nothing to look at."""
        if self.path.exists() and not self.path.is_file():
            return True
        return has_content(self.path)

    def _append(self, content: Mapping[str, Any]) -> None:
        """Append one line to the file."""
        if jax.process_index() != 0:
            return
        append_line(self.path, line_of(content))


@dataclasses.dataclass
class Terminal:
    """Prints one line per measurement with rich, and one that begins with ALERT per alert.

    Attributes:
        digits: Significant digits.
        console: A `rich.console.Console`; None is the default console.
    """

    digits: int = 4
    console: "Console | None" = None
    # Name of a monitor -> the reduction its alignment is of, and the examples.
    _reductions: dict[str, str] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def start(self, record: Mapping[str, Any]) -> None:
        """Note what the alignment is of: of another kernel it is another number."""
        reduction = record.get("alignment_reduction", record.get("reduction"))
        if "alignment_of" in record:
            is_held_out = record["alignment_of"] == "held_out"
            reduction = f"{reduction}, {'held out' if is_held_out else 'trained on'}"
        if reduction is not None:
            self._reductions[record["name"]] = reduction

    def write(self, step: int, values: Values) -> None:
        """Print the step, then every name that has a number, with its interval."""
        parts = [f"step {step}"]
        for name, value in values.items():
            # Numbers by layer are for files; the ends of an interval stand beside its number.
            if "_layer_" in name or name.endswith(("_lower", "_upper")):
                continue
            part = f"{self._label(name)} {self._written(value)}"
            if f"{name}_lower" in values and not isinstance(value, list):
                lower, upper = values[f"{name}_lower"], values[f"{name}_upper"]
                part += f" [{self._written(lower)}, {self._written(upper)}]"
            parts.append(part)
        self._print("  ".join(parts))

    def alert(self, alert: Alert) -> None:
        """Print one alert."""
        self._print(str(alert))

    def _print(self, line: str) -> None:
        """Print one line as it is."""
        if self.console is None:
            from rich.console import Console

            self.console = Console()
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _label(self, name: str) -> str:
        """A name; with the reduction of the kernel where it is an alignment."""
        monitor, _, _ = name.partition("_alignment")
        reduction = self._reductions.get(monitor)
        return name if reduction is None else f"{name} ({reduction})"

    def _written(self, value: Numbers) -> str:
        """A number with its digits, a list of them in brackets; a dash for what is not finite."""
        if isinstance(value, list):
            return "[" + " ".join(self._written(item) for item in value) + "]"
        if not math.isfinite(value):
            return "-"
        return f"{value:.{self.digits}g}"


@errors.public
def read_json_lines(
    path: str | os.PathLike[str],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read a file that `JsonLines` wrote.

    Args:
        path: The file.

    Returns:
        The convention records, one per session of writing, and the measurements in the order
        written, with NaN for what is null. Lines that are not complete, as a killed run may leave,
        are dropped.
    """
    return records_and_rows(path)


@errors.public
def read_alerts(path: str | os.PathLike[str]) -> list[Alert]:
    """Read the alerts of a file that `JsonLines` wrote, or that an alert left in its folder.

    Args:
        path: The file.

    Returns:
        The alerts in the order written, with NaN for numbers that are null. Lines that are not
        complete are dropped.
    """
    return [alert_from_dict(line["alert"]) for line in json_objects(path) if is_alert(line)]
