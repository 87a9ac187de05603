"""Judges a training after each row that was written."""

from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.live_findings.finding_writer import FindingWriter


class LiveJudge:
    """Looks at one row after the other; returns what is new."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._writer = FindingWriter((), self._found.append, is_heard=True, call="")

    def __call__(self, row: Mapping[str, Any], record: Mapping[str, Any]) -> Sequence[Finding]:
        """The findings that begin with this row; `record` says what its numbers mean."""
        self._found.clear()
        self._writer.start(record)
        numbers = {name: number for name, number in row.items() if name != "step"}
        self._writer.write(row["step"], numbers)
        return tuple(self._found)
