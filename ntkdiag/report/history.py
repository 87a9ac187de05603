"""Records of a monitor for a report."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.monitor import read_json_lines

History: TypeAlias = str | os.PathLike[str] | Sequence[Mapping[str, Any]]


def read_history(history: History | None) -> list[Mapping[str, Any]]:
    """Read the rows of a monitor, in the order of their steps.

    Args:
        history: File written by `JsonLines`, or its rows; None is no history.

    Returns:
        Rows with at least ``step`` and ``ntk_eigenvalues``; of steps written twice the later.

    Raises:
        InvalidInputError: There is no such file, or it holds no measurement.
    """
    if history is None:
        return []
    if isinstance(history, str | os.PathLike):
        if not os.path.isfile(history):
            raise _error(f"no file at {os.fspath(history)!r}")
        history = read_json_lines(history)[1]
    rows = {row["step"]: row for row in history if "step" in row and row.get("ntk_eigenvalues")}
    if not rows:
        raise _error("no measurement in it")
    return [rows[step] for step in sorted(rows)]


def _error(got: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        errors.message(
            "Comparison.save(..., history=...)",
            expected="measurements written by ntkdiag.watch through JsonLines",
            got=got,
            do="Pass the path given to JsonLines, or leave history out.",
        )
    )
