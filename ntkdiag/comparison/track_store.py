"""Where finished checkpoints of a run are: in a run directory, or nowhere.

Of the processes of a program the first one writes. The others read what was finished before, as far
as they can see it, and keep for themselves what they measure.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ntkdiag import errors
from ntkdiag.comparison.stored_checkpoint import STREAM
from ntkdiag.path_argument import as_path
from ntkdiag.runs.files_on_disk import require_room
from ntkdiag.runs.json_lines import line_of, object_of, row_of
from ntkdiag.runs.run_reader import RunReader
from ntkdiag.runs.run_stream import CommittedStep, RunStream
from ntkdiag.runs.run_writer import RunWriter
from ntkdiag.runs.shared_call import SharedCall, shared_call


class Unstored:
    """Keeps numbers for this call alone; arrays stay with their places."""

    def __init__(self) -> None:
        self.finished: dict[int, dict[str, Any]] = {}

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the numbers."""
        self.finished[step] = dict(row)

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Keep other numbers."""
        self.finished[step] = dict(row)

    def read(self, step: int) -> dict[str, np.ndarray] | None:
        """Nothing is finished before it is measured."""
        raise KeyError(step)

    def __enter__(self) -> "Unstored":
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is held open."""


class ReadBeside(Unstored):
    """The run directory that another process writes: what was finished before is read."""

    def __init__(self, stream: RunStream, committed: Mapping[int, CommittedStep]) -> None:
        super().__init__()
        self.stream = stream
        self._committed = dict(committed)
        self.finished = {step: item.row for step, item in committed.items()}

    @staticmethod
    def of(root: pathlib.Path, steps: Sequence[int]) -> "ReadBeside":
        """The steps that the process which writes has found, as far as they can be read here."""
        stream = RunStream(root, STREAM)
        try:
            committed = stream.read().committed
        except errors.CheckpointError:  # a disk that this machine does not see
            committed = {}
        return ReadBeside(stream, {step: committed[step] for step in steps if step in committed})

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the numbers as they will be read."""
        self.finished[step] = row_of(object_of(line_of({"step": step, **row})) or {})

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Keep other numbers as they will be read."""
        self.write(step, row, {})

    def read(self, step: int) -> dict[str, np.ndarray] | None:
        """The arrays of a finished step; None where they are damaged: it is measured again."""
        arrays = self.stream.arrays(self._committed[step])
        if arrays is None:
            del self.finished[step]
        return arrays


# Where finished checkpoints are.
Store: TypeAlias = RunWriter | Unstored


class Destination:
    """Where the results of one call go: nowhere, or into a folder that the first process writes."""

    def __init__(self, folder: pathlib.Path | None, call: SharedCall | None) -> None:
        self.folder = folder
        self._call = call

    def opened(self, record: Mapping[str, Any]) -> Store:
        """The run directory to continue with, where there is one."""
        if self.folder is None or self._call is None:
            return Unstored()
        if not self._call.is_writer:
            return ReadBeside.of(self.folder, self._call.hear(default=[]))
        writer = RunWriter(self.folder, record)
        try:
            self._call.say(sorted(writer.finished))
        except BaseException:
            writer.close()
            raise
        return writer

    def is_common(self, step: int | None) -> bool:
        """Whether the first process has finished this step, too; None is the end of all steps.

        False where it has come to its end before.
        """
        if self._call is None:
            return True
        if self._call.is_writer:
            self._call.say(step)
            return True
        other = self._call.hear(default=step)
        if other == step or other is None:
            return other == step
        raise errors.InvalidInputError(
            expected=f"the checkpoints of process 0, which has come to step {other}",
            got="the end" if step is None else f"step {step}",
            do="Pass the same run in all processes.",
        )

    def reader(self) -> RunReader | None:
        """The run directory for reading; None where nothing is stored, or it is not seen here."""
        if self.folder is None:
            return None
        reader = RunReader(self.folder)
        return reader if STREAM in reader.names else None


@contextlib.contextmanager
def destination(out: str | os.PathLike[str] | None) -> Iterator[Destination]:
    """Where the results of a call go, which has room for them.

    Where the call ends with an error in the first process, it does so in the others.
    """
    if out is None:
        yield Destination(None, None)
        return
    folder = as_path(out, "out=")
    with shared_call(f"track {os.fspath(out)}") as call:
        if call.is_writer:
            require_room(folder)
        yield Destination(folder, call)
