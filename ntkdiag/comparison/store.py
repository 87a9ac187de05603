"""Where finished checkpoints of a run are: in a run directory, or nowhere.

Of the processes of a program the first one writes. The others read what was finished before, as far
as they can see it, and keep for themselves what they measure.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.kernel import Convention
from ntkdiag.path_argument import as_path
from ntkdiag.runs.files_on_disk import require_room
from ntkdiag.runs.json_lines import Row, line_of, object_of, row_of
from ntkdiag.runs.run_reader import RunReader
from ntkdiag.runs.run_stream import CommittedStep, RunStream
from ntkdiag.runs.run_writer import RunWriter
from ntkdiag.runs.shared_call import SharedCall, shared_call

STREAM = "track"  # of a run directory


@contextlib.contextmanager
def as_track_writes_it(what: str) -> Iterator[None]:
    """Refuse what is read from a run directory where it is not as `track` writes it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise errors.CheckpointError(
            expected=f"{what} as track writes it",
            got=f"{type(error).__name__}: {error}",
            do="It was changed, or is of another version: restore it from a copy, or track again "
            "into another folder.",
        ) from error


def convention_of(row: Mapping[str, Any]) -> Convention:
    """The convention of the kernel of a stored checkpoint."""
    # NaN stands for what is not known.
    known = {name: value for name, value in row["convention"].items() if value == value}
    return Convention(**known)


class Store:
    """The finished checkpoints of one call: of a run directory that the first process writes.

    The other processes, and a call without a folder, keep what they measure in memory.
    """

    def __init__(self, folder: pathlib.Path | None, call: SharedCall | None) -> None:
        self.finished: dict[int, Row] = {}  # the numbers of each by step
        self._folder = folder
        self._call = call
        self._writer: RunWriter | None = None
        self._committed: dict[int, CommittedStep] = {}  # of the process that writes

    @contextlib.contextmanager
    def opened(self, record: Mapping[str, Any]) -> Iterator[None]:
        """Continue with what is finished under this record."""
        if self._folder is None or self._call is None:
            yield
        elif self._call.is_writer:
            with RunWriter(self._folder, record) as self._writer:
                self.finished = self._writer.finished
                self._call.say(sorted(self.finished))
                yield
        else:
            steps = self._call.hear(default=[])
            with contextlib.suppress(errors.CheckpointError):  # a disk that is not seen here
                committed = RunStream(self._folder, STREAM).read().committed
                self._committed = {step: committed[step] for step in steps if step in committed}
            self.finished = {step: item.row for step, item in self._committed.items()}
            yield

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Finish a checkpoint."""
        if self._writer is not None:
            self._writer.write(step, row, arrays)
        else:
            self.amend(step, row)

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Give a finished checkpoint other numbers."""
        if self._writer is not None:
            self._writer.amend(step, row)
        else:  # as they would be read
            self.finished[step] = row_of(object_of(line_of({"step": step, **row})) or {})

    def read(self, step: int) -> dict[str, np.ndarray] | None:
        """The arrays of a finished step; None where they are damaged: it is measured again."""
        if self._writer is not None:
            return self._writer.read(step)
        assert self._folder is not None  # nothing is finished before it is measured
        arrays = RunStream(self._folder, STREAM).arrays(self._committed[step])
        if arrays is None:
            del self.finished[step]
        return arrays

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
        if self._folder is None:
            return None
        reader = RunReader(self._folder)
        return reader if STREAM in reader.names else None


@contextlib.contextmanager
def store_in(out: str | os.PathLike[str] | None) -> Iterator[Store]:
    """Where the results of a call go, which has room for them.

    Where the call ends with an error in the first process, it does so in the others.
    """
    if out is None:
        yield Store(None, None)
        return
    folder = as_path(out, "out=")
    with shared_call(f"track {os.fspath(out)}") as call:
        if call.is_writer:
            require_room(folder)
        yield Store(folder, call)
