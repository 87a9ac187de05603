"""One stream of a run directory: the lines of a file, and the arrays of each step beside it.

    run/
        track.jsonl                 {"record": {...}}, then {"step": 100, ..., "arrays": {...}}
        arrays/track/100/kernel.npy an array, by the name in its line
        .track.lock                 held by whoever writes; says nothing when nobody does

A line is written after its arrays and names each with its SHA-256: it is what makes a step a
finished one. Of two lines of one step the later one holds. Lines without "arrays" are those of a
monitor: rows without arrays, kept in the order written.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.runs.json_lines import Row, read_lines
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

    @property
    def lock_path(self) -> pathlib.Path:
        """The file that whoever writes holds locked."""
        return self.root / f".{self.name}.lock"

    @property
    def arrays(self) -> pathlib.Path:
        """The folder of the arrays of all its steps."""
        return self.root / "arrays" / self.name

    def folder_of(self, step: int) -> pathlib.Path:
        """The folder of the arrays of one step."""
        return self.arrays / str(step)

    def array_path(self, step: int, key: str) -> pathlib.Path:
        """The file of one array."""
        return self.folder_of(step) / f"{key}.npy"

    def array(self, committed: "CommittedStep", key: str) -> np.ndarray:
        """An array of a step, which is the one that its line names."""
        path = self.array_path(committed.row["step"], key)
        if key not in committed.sha256s:
            raise damaged(path, "a line of its step that does not name it")
        return read_array(path, committed.sha256s[key])

    def each_array(self, key: str, steps: Sequence[int]) -> Iterator[np.ndarray]:
        """An array of each of these steps, one after the other; the lines are read once."""
        committed = self.read().committed
        for step in steps:
            if step not in committed:
                raise damaged(self.array_path(step, key), "no line of its step")
            yield self.array(committed[step], key)

    def read(self) -> "StreamContents":
        """Read the lines; no array is opened."""
        lines = read_lines(self.path)
        passed_over = lines.passed_over
        committed: dict[int, CommittedStep] = {}
        loose = []
        for row in lines.rows:
            sha256s = row.pop("arrays", None)
            if sha256s is None:
                loose.append(row)
            elif _are_sha256s(sha256s):
                committed[row["step"]] = CommittedStep(row, sha256s)
            else:
                passed_over += 1
        return StreamContents(lines.records, dict(sorted(committed.items())), loose, passed_over)


@dataclasses.dataclass(frozen=True)
class CommittedStep:
    """A step whose line was written, after its arrays."""

    row: Row  # its scalars
    sha256s: dict[str, str]  # name of an array -> its SHA-256


@dataclasses.dataclass(frozen=True)
class StreamContents:
    """What the file of a stream says."""

    # The convention records, one for each session of writing that needed its own.
    records: list[Row]
    committed: dict[int, CommittedStep]  # steps in ascending order
    loose: list[Row]  # rows without arrays, in the order written
    passed_over: int  # how many lines say nothing: torn, damaged, or of something else

    @property
    def latest(self) -> "StreamContents":
        """The same with one row for each step: of those without arrays the later one."""
        by_step = {row["step"]: row for row in self.loose}
        return dataclasses.replace(self, loose=[by_step[step] for step in sorted(by_step)])

    @property
    def rows(self) -> list[Row]:
        """All rows: those of finished steps by step, then those without arrays."""
        return [step.row for step in self.committed.values()] + self.loose


def axes_of(record: Mapping[str, Any], key: str, n_axes: int) -> list[str] | None:
    """The names of the axes of an array: those of "dims" in the record, or made of its own name.

    None where what the record says cannot be the names of that many axes.
    """
    dims = record.get("dims") or {}
    if not isinstance(dims, dict):
        return None
    names = dims.get(key) or [f"{key}_{axis}" for axis in range(n_axes)]
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not are_names or len(names) != n_axes or len({*names, "step"}) != n_axes + 1:
        return None
    return names


def require_name(name: str, of: str) -> None:
    """Refuse the name of a stream or an array that cannot be one of a file."""
    if not _is_file_name(name):
        raise errors.InvalidInputError(
            expected=f"a name for {of} of at most 128 letters, digits, _, - and .",
            got=shortened(name),
            do="It is the name of a file: take one that every system can have.",
        )


def _is_file_name(name: Any) -> bool:
    """Whether a file can have that name."""
    return isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None


def _are_sha256s(value: object) -> bool:
    """Whether what a line says of its arrays can be true, and leads to no other folder."""
    if not isinstance(value, dict):
        return False
    return all(_is_file_name(key) and isinstance(item, str) for key, item in value.items())
