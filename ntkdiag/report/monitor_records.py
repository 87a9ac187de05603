"""Records of a monitor for a report.

A monitor writes numbers under names that begin with its own, "ntk_trace" or "probe1_trace". A
report draws those of one monitor:

1. read the rows, where they are not in memory already;
2. find the name of the monitor: "ntk", or the only one there is;
3. keep the last row of each step.

The page of a comparison has the rows under the names that a monitor called "ntk" writes. That of a
run, which may have very many, takes a column at a time: `Measurements`.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.monitor.writers import read_json_lines

# Every measurement has a status: "<name>_status" tells the name of the monitor. Those of older
# versions have eigenvalues.
_STATUS = "_status"
_EIGENVALUES = "_eigenvalues"

Row: TypeAlias = Mapping[str, Any]  # one line of JSON: the step, and numbers by name
History: TypeAlias = str | os.PathLike[str] | Sequence[Row]


def read_history(history: History | None) -> list[Row]:
    """Read the rows of a monitor, in the order of their steps.

    Args:
        history: File written by `JsonLines`, or its rows; None is no history.

    Returns:
        Rows with at least ``step`` and the numbers of the instruments, under names that begin with
        ``ntk_`` whatever name the monitor had; of steps written twice the later.

    Raises:
        InvalidInputError: There is no such file, or it holds no measurement, or those of several
            monitors.
    """
    if history is None:
        return []
    records = []
    if isinstance(history, str | os.PathLike):
        path = os.path.expanduser(history)
        if not os.path.isfile(path):
            raise _error(f"no file at {os.fspath(path)!r}")
        records, history = read_json_lines(path)
    if not isinstance(history, Sequence) or not all(isinstance(row, Mapping) for row in history):
        raise _error(f"{shortened(history)}, which are no rows")
    return _rows_of(_monitor_in(history), history, records)


@dataclasses.dataclass(frozen=True, eq=False)
class Measurements:
    """What one monitor measured over a training.

    Attributes:
        name: Of the monitor.
        rows: One for each step, in the order of the steps, as they were written.
    """

    name: str = "ntk"
    rows: Sequence[Row] = ()
    # What was looked up: names of numbers, or of arrays of numbers -> [s], or [s k].
    _numbers: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, init=False)
    _arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def steps(self) -> Float[np.ndarray, " s"]:
        """The steps that were measured."""
        return np.array([row["step"] for row in self.rows], np.float64)

    def numbers(self, name: str, place: int | None = None) -> Float[np.ndarray, " s"]:
        """A number over the steps, or one of an array of numbers; NaN where there is none."""
        if place is not None:
            array = self._array(name)
            has_place = place < array.shape[1]
            return array[:, place] if has_place else np.full(len(self.rows), np.nan)
        if name not in self._numbers:
            self._numbers[name] = numbers_of(self._values(name))
        return self._numbers[name]

    def _array(self, name: str) -> Float[np.ndarray, "s k"]:
        """Lists of numbers over the steps; NaN where one is shorter than others, or none."""
        if name not in self._arrays:
            self._arrays[name] = array_of(self._values(name))
        return self._arrays[name]

    def _values(self, name: str) -> list[Any]:
        """What the rows have under a name of the monitor."""
        name = f"{self.name}_{name}"
        return [row.get(name) for row in self.rows]


def measured_in(rows: Sequence[Row]) -> list[Measurements]:
    """The measurements of every monitor that wrote some of the rows, "ntk" first."""
    # Most rows have the same names: each set of them is looked through once.
    monitors_of: dict[tuple[str, ...], set[str]] = {}
    by_step: dict[str, dict[int, Row]] = {}
    for row in rows:
        names = tuple(row)
        if names not in monitors_of:
            monitors_of[names] = _names_in(row)
        for monitor in monitors_of[names]:
            by_step.setdefault(monitor, {})[row["step"]] = row
    measured = []
    for monitor in sorted(by_step, key=lambda name: (name != "ntk", name)):
        in_order = [by_step[monitor][step] for step in sorted(by_step[monitor])]
        measured.append(Measurements(monitor, in_order))
    return measured


def numbers_of(values: Sequence[Any]) -> Float[np.ndarray, " s"]:
    """Values as numbers; NaN for what is none."""
    try:
        return np.array(values, np.float64).reshape(len(values))
    except (TypeError, ValueError):  # some are lists, or text
        return np.array([_number(value) for value in values], np.float64)


def array_of(values: Sequence[Any]) -> Float[np.ndarray, "s k"]:
    """Lists of numbers as rows of an array; NaN for what is no number."""
    lists = [_entries(value) for value in values]
    longest = max(map(len, lists), default=0)
    array = np.full((len(lists), longest), np.nan)
    if longest == 0:
        return array
    for place, entries in enumerate(lists):
        array[place, : len(entries)] = numbers_of(entries)
    return array


def _entries(value: Any) -> Sequence[Any]:
    """The entries of a list or an array; none of anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value if isinstance(value, list | tuple) else []


def _number(value: Any) -> float:
    """A number; NaN for anything else."""
    return float(value) if isinstance(value, int | float) else math.nan


def _rows_of(name: str, rows: Sequence[Row], records: Sequence[Row]) -> list[Row]:
    """The measurements of one monitor under common names, in the order of their steps."""
    reduction = _reduction_in(records, name)
    # A run that was resumed writes some steps again: the later row takes the place of the earlier.
    by_step = {}
    for row in rows:
        if name in _names_in(row):
            by_step[row["step"]] = {**_under_common_names(row, name), **reduction}
    return [by_step[step] for step in sorted(by_step)]


def _monitor_in(rows: Sequence[Row]) -> str:
    """The name of the monitor that wrote the rows: "ntk", or that of the only one."""
    names = set()
    for row in rows:
        names |= _names_in(row)
    if not names:
        raise _error("no measurement in it")
    if "ntk" in names:
        return "ntk"
    if len(names) > 1:
        raise _error(
            f"those of several monitors: {', '.join(sorted(names))}",
            "Pass the rows of one of them.",
        )
    return names.pop()


def _reduction_in(records: Sequence[Row], name: str) -> dict[str, str]:
    """The reduction the alignment is of, where a record says it; all of them, where it changed."""
    reductions = set()
    for record in records:
        reduction = record.get("alignment_reduction", record.get("reduction"))
        if record.get("name") == name and isinstance(reduction, str):
            reductions.add(reduction)
    if not reductions:
        return {}
    return {"ntk_alignment_reduction": " and ".join(sorted(reductions))}


def _names_in(row: Row) -> set[str]:
    """The names of the monitors whose measurements a row holds."""
    names = set()
    if "step" not in row:
        return names
    for key, value in row.items():
        # The status of the optimizer is a number like others.
        if key.endswith(_STATUS) and not key.endswith(f"_optimizer{_STATUS}"):
            names.add(key.removesuffix(_STATUS))
        if key.endswith(_EIGENVALUES) and _has_values(value):
            names.add(key.removesuffix(_EIGENVALUES))
    return names


def _has_values(eigenvalues: Any) -> bool:
    return isinstance(eigenvalues, Sequence | np.ndarray) and len(eigenvalues) > 0


def _under_common_names(row: Row, name: str) -> Row:
    """A row of any monitor with the names that a monitor called "ntk" writes."""
    renamed = {}
    for key, value in row.items():
        if key.startswith(f"{name}_"):
            key = f"ntk_{key.removeprefix(f'{name}_')}"
        renamed[key] = value
    return renamed


def _error(
    got: str, do: str = "Pass the path given to JsonLines, or leave history out."
) -> errors.InvalidInputError:
    """What is wrong with a history."""
    return errors.InvalidInputError(
        call="Comparison.save(..., history=...)",
        expected="measurements written by ntkdiag.watch through JsonLines",
        got=got,
        do=do,
    )
