"""One stream of a run directory: the lines of a file, and the arrays of each step beside it.

    run/
        track.jsonl                 {"record": {...}}, then {"step": 100, ..., "arrays": {...}}
        arrays/track/100/kernel.npy an array, by the name in its line
        .track.lock                 held by whoever writes; says nothing when nobody does

A line is written after its arrays and names each with its SHA-256: it is what finishes a step. Of
two lines of one step the later one holds. Lines without "arrays" are the rows of a monitor, kept in
the order written.
"""

import dataclasses
import pathlib
import re
from typing import Any

import numpy as np

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.runs.json_lines import LinesOfFile, Row, read_lines
from ntkdiag.runs.npy_array import damaged, read_array

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclasses.dataclass(frozen=True)
class RunStream:
    """Where a stream of a run directory is, and what its file says now."""

    root: pathlib.Path  # the run directory
    name: str  # the name of the stream

    @property
    def path(self) -> pathlib.Path:
        """The file of its lines."""
        return self.root / f"{self.name}.jsonl"

    def array_path(self, step: int, key: str) -> pathlib.Path:
        """The file of one array."""
        return self.root / "arrays" / self.name / str(step) / f"{key}.npy"

    def array(self, committed: "CommittedStep", key: str) -> np.ndarray:
        """An array of a finished step; refused where it is not the one that the line names."""
        path = self.array_path(committed.row["step"], key)
        if key not in committed.sha256s:
            raise damaged(path, "a line of its step that does not name it")
        return read_array(path, committed.sha256s[key])

    def arrays(self, committed: "CommittedStep") -> dict[str, np.ndarray] | None:
        """The arrays of a finished step by name; None where one of them is damaged."""
        try:
            return {key: self.array(committed, key) for key in committed.sha256s}
        except errors.CheckpointError:
            return None

    def read(self) -> "StreamContents":
        """Read the lines; no array is opened."""
        contents = StreamContents(**vars(read_lines(self.path)))
        rows, contents.rows = contents.rows, []
        for row in rows:
            sha256s = row.pop("arrays", None)
            if sha256s is None:
                contents.rows.append(row)
            elif _are_sha256s(sha256s):
                contents.committed[row["step"]] = CommittedStep(row, sha256s)
            else:
                contents.passed_over += 1
        contents.committed = dict(sorted(contents.committed.items()))
        contents.rows = [step.row for step in contents.committed.values()] + contents.rows
        return contents


@dataclasses.dataclass(frozen=True)
class CommittedStep:
    """A finished step: its line was written, after its arrays."""

    row: Row  # its scalars
    sha256s: dict[str, str]  # name of an array -> its SHA-256


@dataclasses.dataclass
class StreamContents(LinesOfFile):
    """What the file of a stream says; its rows are those of finished steps by step, then others."""

    committed: dict[int, CommittedStep] = dataclasses.field(default_factory=dict)  # by step


def require_name(name: str, of: str) -> None:
    """Refuse the name of a stream or an array that cannot be one of a file on every system."""
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise errors.InvalidInputError(
            expected=f"a name for {of} of at most 128 letters, digits, _, - and .",
            got=shortened(name),
            do="It is the name of a file: choose another one.",
        )


def _are_sha256s(value: Any) -> bool:
    """Whether what a line says of its arrays can be true, and leads to no other folder."""
    return isinstance(value, dict) and all(
        _FILE_NAME.fullmatch(key) and isinstance(item, str) for key, item in value.items()
    )
