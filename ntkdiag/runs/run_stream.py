"""One stream of a run directory: the lines of a file, and the arrays of each step beside it.

    run/
        track.jsonl                 {"record": {...}}, then {"step": 100, ..., "arrays": {...}}
        arrays/track/100/kernel/    zarr.json and c.0.0
        .track.lock                 held by whoever writes; says nothing when nobody does

A line is written after its arrays and names each with its SHA-256: it is what makes a step a
finished one. Of two lines of one step the later one holds. Lines without "arrays" are those of a
monitor: rows without arrays, kept in the order written.
"""

import dataclasses
import pathlib
import re

from ntkdiag import errors
from ntkdiag.runs.json_lines import Row, records_and_rows

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class RunStream:
    """Where a stream of a run directory is, and what its file says now.

    Attributes:
        root: The run directory.
        name: The name of the stream.
    """

    root: pathlib.Path
    name: str

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

    def read(self) -> "StreamContents":
        """Read the lines; no array is opened."""
        records, rows = records_and_rows(self.path)
        records = [record for record in records if isinstance(record, dict)]
        committed: dict[int, CommittedStep] = {}
        loose = []
        for row in rows:
            if not isinstance(row.get("step"), int):
                continue
            sha256s = row.pop("arrays", None)
            if sha256s is None:
                loose.append(row)
            elif _are_sha256s(sha256s):
                committed[row["step"]] = CommittedStep(row, sha256s)
        return StreamContents(records, dict(sorted(committed.items())), loose)


@dataclasses.dataclass(frozen=True)
class CommittedStep:
    """A step whose line was written, after its arrays.

    Attributes:
        row: Its scalars.
        sha256s: Name of an array -> its SHA-256.
    """

    row: Row
    sha256s: dict[str, str]


@dataclasses.dataclass(frozen=True)
class StreamContents:
    """What the file of a stream says.

    Attributes:
        records: The convention records, one for each session of writing that needed its own.
        committed: Steps in ascending order.
        loose: Rows without arrays, in the order written.
    """

    records: list[Row]
    committed: dict[int, CommittedStep]
    loose: list[Row]

    @property
    def latest(self) -> "StreamContents":
        """The same with one row for each step: of those without arrays the later one."""
        by_step = {row["step"]: row for row in self.loose}
        return dataclasses.replace(self, loose=[by_step[step] for step in sorted(by_step)])

    @property
    def rows(self) -> list[Row]:
        """All rows: those of finished steps by step, then those without arrays."""
        return [step.row for step in self.committed.values()] + self.loose


def axes_of(record: Row, key: str, n_axes: int) -> list[str]:
    """The names of the axes of an array: those of "dims" in the record, or made of its own name."""
    named = record.get("dims") or {}
    return named.get(key) or [f"{key}_{axis}" for axis in range(n_axes)]


def require_name(name: str, of: str) -> None:
    """Refuse the name of a stream or an array that cannot be one of a file."""
    if not _is_file_name(name):
        raise errors.InvalidInputError(
            expected=f"a name for {of} of letters, digits, _, - and .",
            got=repr(name),
            do="It is the name of a file: take one that every system can have.",
        )


def _is_file_name(name: str) -> bool:
    """Whether a file can have that name; `zarr.json` is one that zarr needs itself."""
    return _FILE_NAME.fullmatch(name) is not None and name != "zarr.json"


def _are_sha256s(value: object) -> bool:
    """Whether what a line says of its arrays can be true, and leads to no other folder."""
    if not isinstance(value, dict):
        return False
    return all(_is_file_name(key) and isinstance(item, str) for key, item in value.items())
