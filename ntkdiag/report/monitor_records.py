"""Records of a monitor for a report.

A monitor writes numbers under names that begin with its own, "ntk_trace" or "probe1_trace". A
report draws those of one monitor:

1. read the rows, where they are not in memory already;
2. find the name of the monitor: "ntk", or the only one there is;
3. keep the last row of each step, under the names that a monitor called "ntk" writes.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ntkdiag import errors
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
    return _rows_of(_monitor_in(history), history, records)


def measured_in(rows: Sequence[Row], records: Sequence[Row]) -> dict[str, list[Row]]:
    """The measurements of every monitor that wrote some of the rows, "ntk" first."""
    names = set()
    for row in rows:
        names |= _names_in(row)
    in_order = sorted(names, key=lambda name: (name != "ntk", name))
    return {name: _rows_of(name, rows, records) for name in in_order}


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
        if record.get("name") == name and reduction is not None:
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


def _has_values(eigenvalues: Sequence[float | None] | np.ndarray | None) -> bool:
    return eigenvalues is not None and len(eigenvalues) > 0


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
