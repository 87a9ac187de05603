"""One stream of a run directory: the lines of a file, and the arrays of each step beside it.

    run/
        track.jsonl             {"record": {...}}, then {"step": 100, ..., "arrays": ["kernel"]}
        arrays/track/100.npz    the arrays that the line of step 100 names
        .track.lock             held by whoever writes; says nothing when nobody does

A line is written after its arrays and names them: it is what finishes a step. Of two lines of one
step the later one holds. Lines without "arrays" are the rows of a monitor, kept in the order
written.
"""

import dataclasses
import pathlib
import re

import numpy as np

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.runs.json_lines import Row, lines_of_file, object_of, row_of
from ntkdiag.runs.npz_file import damaged, read_arrays

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

    def array_path(self, step: int) -> pathlib.Path:
        """The file of the arrays of one step."""
        return self.root / "arrays" / self.name / f"{step}.npz"

    def array(self, committed: "CommittedStep", key: str) -> np.ndarray:
        """An array of a finished step; refused where it is damaged, or its line names no such."""
        path = self.array_path(committed.row["step"])
        if key not in committed.arrays:
            raise damaged(path, f"a line of its step that does not name {shortened(key)}")
        return read_arrays(path, [key])[key]

    def arrays(self, committed: "CommittedStep") -> dict[str, np.ndarray] | None:
        """The arrays of a finished step by name; None where one of them is damaged."""
        try:
            return read_arrays(self.array_path(committed.row["step"]), committed.arrays)
        except errors.CheckpointError:
            return None

    def read(self) -> "StreamContents":
        """Read the lines; no array is opened."""
        contents = StreamContents()
        loose: list[Row] = []
        for line in lines_of_file(self.path):
            content = object_of(line) or {}
            match content:
                case {"record": dict(record)} if len(content) == 1:
                    contents.records.append(record)
                case {"step": int(step)} if not isinstance(step, bool):
                    row = row_of(content) if b"null" in line else content
                    match row.pop("arrays", None):
                        case None:
                            loose.append(row)
                        case [*arrays] if all(isinstance(key, str) for key in arrays):
                            contents.committed[step] = CommittedStep(row, arrays)
                        case _:
                            contents.passed_over += 1
                case _:
                    contents.passed_over += 1
        contents.committed = dict(sorted(contents.committed.items()))
        contents.rows = [finished.row for finished in contents.committed.values()] + loose
        return contents


@dataclasses.dataclass(frozen=True)
class CommittedStep:
    """A finished step: its line was written, after its arrays."""

    row: Row  # its scalars
    arrays: list[str]  # names of its arrays


@dataclasses.dataclass
class StreamContents:
    """What the file of a stream says."""

    records: list[Row] = dataclasses.field(default_factory=list)  # in the order written
    # Those of finished steps by step, then others in the order written; with NaN for null.
    rows: list[Row] = dataclasses.field(default_factory=list)
    committed: dict[int, CommittedStep] = dataclasses.field(default_factory=dict)  # by step
    passed_over: int = 0  # lines that say nothing: torn, damaged, or of something else


def require_name(name: str) -> None:
    """Refuse the name of a stream that cannot be one of a file on every system."""
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise errors.InvalidInputError(
            expected="a name for a stream of at most 128 letters, digits, _, - and .",
            got=shortened(name),
            do="It is the name of a file: choose another one.",
        )
