"""Records of a monitor for a report."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.monitor.writers import read_json_lines

_MARK = "_eigenvalues"

History: TypeAlias = str | os.PathLike[str] | Sequence[Mapping[str, Any]]


def read_history(history: History | None) -> list[Mapping[str, Any]]:
    """Read the rows of a monitor, in the order of their steps.

    Args:
        history: File written by `JsonLines`, or its rows; None is no history.

    Returns:
        Rows with at least ``step`` and ``ntk_eigenvalues``, whatever name the monitor had; of steps written twice the
        later.

    Raises:
        InvalidInputError: There is no such file, or it holds no measurement, or those of several monitors.
    """
    if history is None:
        return []
    if isinstance(history, str | os.PathLike):
        history = os.path.expanduser(history)
        if not os.path.isfile(history):
            raise _error(f"no file at {os.fspath(history)!r}")
        history = read_json_lines(history)[1]
    measured = [row for row in history if "step" in row]
    found = {key for row in measured for key in row if key.endswith(_MARK) and _measured(row[key])}
    names = sorted(key.removesuffix(_MARK) for key in found)
    if not names:
        raise _error("no measurement in it")
    name = "ntk" if "ntk" in names else names[0]
    if len(names) > 1 and name != "ntk":
        raise _error(
            f"those of several monitors: {', '.join(names)}", "Pass the rows of one of them."
        )
    rows = {
        row["step"]: _renamed(row, name) for row in measured if _measured(row.get(name + _MARK))
    }
    return [rows[step] for step in sorted(rows)]


def _measured(eigenvalues: Any) -> bool:
    return eigenvalues is not None and len(eigenvalues) > 0


def _renamed(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    prefix = name + "_"
    return {
        f"ntk_{key.removeprefix(prefix)}" if key.startswith(prefix) else key: row[key]
        for key in row
    }


def _error(
    got: str, do: str = "Pass the path given to JsonLines, or leave history out."
) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        call="Comparison.save(..., history=...)",
        expected="measurements written by ntkdiag.watch through JsonLines",
        got=got,
        do=do,
    )
