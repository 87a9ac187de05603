"""Judges a training after each row that was written."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_rows import found_in, remember

QUIET = 8  # rows without a finding after which it is new again


class LiveJudge:
    """Takes one row after the other, and returns what is new."""

    def __init__(self) -> None:
        self._rows: list[Mapping[str, Any]] = []
        self._n_rows = 0
        self._last: dict[object, int] = {}  # subject of a finding -> the last row that has it

    def __call__(self, row: Mapping[str, Any], record: Mapping[str, Any]) -> Sequence[Finding]:
        """The findings that begin with this row; `record` says what its numbers mean."""
        step = self._rows[-1]["step"] if self._rows else -math.inf
        if row["step"] == step:
            return ()
        if row["step"] < step:  # training began again
            self.__init__()
        remember(self._rows, row)
        self._n_rows += 1
        found = found_in(self._rows, record)
        since = {one.subject: self._n_rows - self._last.get(one.subject, -QUIET) for one in found}
        self._last |= dict.fromkeys(since, self._n_rows)
        return [finding for finding in found if since[finding.subject] > QUIET]
