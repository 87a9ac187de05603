"""Writing a run directory: a step is finished or absent, whenever the process is killed.

1. Opening takes the lock of the stream, which the system frees when the process ends, and states
   the record: what stays the same over the run. One that differs from the record there is refused.
2. A step: its arrays first, into a folder that is emptied before, then its line, which names them
   and ends with a checksum.
3. Opened again, the steps whose line is complete and whose arrays have their sizes are finished.
   What else is there was being written when the process died, or was damaged; it is written once
   more. Bytes are looked at when they are read: a step that turns out to be damaged then is
   finished no more.
"""

import os
import pathlib
import shutil
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import filelock
import numpy as np

from ntkdiag import errors
from ntkdiag.runs.json_lines import (
    CHECKSUM,
    Row,
    append_line,
    checked_line_of,
    finite_or_null,
    object_of,
    row_of,
)
from ntkdiag.runs.run_stream import CommittedStep, RunStream, StreamContents, axes_of, require_name
from ntkdiag.runs.same_settings import require_same
from ntkdiag.runs.stream_lock import locked
from ntkdiag.runs.zarr_array import (
    DTYPES,
    has_its_size,
    mark_as_group,
    read_array,
    sha256_of,
    write_array,
)

OWN_ENTRIES = {"arrays", CHECKSUM}  # of a line, beside those of its row


class RunWriter:
    """Writes one stream of a run directory, and holds its lock meanwhile.

    Made by `RunWriter.open`, and best used in a ``with``.

    Attributes:
        stream: What it writes.
        finished: Step -> its row, of the steps that are complete.
    """

    def __init__(
        self,
        stream: RunStream,
        lock: filelock.BaseFileLock,
        record: Row,
        committed: dict[int, CommittedStep],
    ) -> None:
        """Take what `open` has made: the lock is held, and these steps are complete."""
        self.stream = stream
        self.finished: dict[int, Row] = {step: item.row for step, item in committed.items()}
        self._lock = lock
        self._record = record
        self._sha256s = {step: item.sha256s for step, item in committed.items()}

    @staticmethod
    def open(
        root: str | os.PathLike[str], record: Mapping[str, Any], *, name: str = "track"
    ) -> "RunWriter":
        """Begin or go on with the stream `name` of a run directory, which is made as needed.

        `record` is what stays the same over the run, as JSON values: a stored one has to agree,
        but for "versions" and the entries that record["versions"] names. Its "dims" name the axes
        of arrays: ``{"kernel": ["example", "example_2"]}``.
        """
        require_name(name, "a stream")
        stream = RunStream(pathlib.Path(root).expanduser().absolute(), name)
        lock = locked(stream)
        try:
            return _opened(stream, lock, finite_or_null(record))
        except BaseException:
            lock.release()
            raise

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Finish a step: its scalars as JSON values, NaN included, and its arrays by name."""
        self._require_open()
        self._require_new(step, row)
        prepared = {}
        for key in arrays:
            prepared[key] = np.asarray(arrays[key])  # another library's become NumPy's
            self._require_array(key, prepared[key], row)
        # Everything that can be refused is refused before the first file is touched.
        sha256s = {key: sha256_of(array) for key, array in prepared.items()}
        line = checked_line_of({"step": step, **row, "arrays": sha256s})

        # A killed process may have left some of them, or damage was found.
        folder = self.stream.folder_of(step)
        if folder.exists():
            shutil.rmtree(folder)
        for key, array in prepared.items():
            write_array(folder / key, array, axes_of(self._record, key, array.ndim))
        if prepared:
            for group in (self.stream.arrays.parent, self.stream.arrays, folder):
                mark_as_group(group)

        # The line makes the step a finished one.
        self._finish(step, line)

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Give a finished step other scalars, by a line that holds from now on; arrays stay."""
        self._require_open()
        content = {"step": step, **row, "arrays": self._sha256s[step]}
        self._finish(step, checked_line_of(content))

    def _finish(self, step: int, line: str) -> None:
        """Append the line of a step."""
        append_line(self.stream.path, line, sync=True)
        finished = row_of(object_of(line) or {})  # as it will be read
        self._sha256s[step] = finished.pop("arrays")
        self.finished[step] = finished

    def read(self, step: int) -> dict[str, np.ndarray] | None:
        """The arrays of a finished step by name.

        None where one of them is damaged: the step is finished no more, and may be written again.
        """
        if step not in self.finished:
            raise errors.InvalidInputError(
                expected=f"a finished step of {os.fspath(self.stream.path)!r}",
                got=f"step {step}",
                do="Write it before.",
            )
        folder = self.stream.folder_of(step)
        try:
            return {key: read_array(folder / key, sha) for key, sha in self._sha256s[step].items()}
        except errors.CheckpointError:
            del self.finished[step], self._sha256s[step]
            return None

    def close(self) -> None:
        """Free the lock; to write again, open again."""
        self._lock.release()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        path = os.fspath(self.stream.path)
        return f"RunWriter({path!r}: {len(self.finished)} finished steps)"

    def _require_open(self) -> None:
        """Refuse to write without the lock."""
        if not self._lock.is_locked:
            raise errors.InvalidInputError(
                expected="a run directory that is open for writing",
                got="a RunWriter that was closed",
                do="Open it again: RunWriter.open(root, record).",
            )

    def _require_new(self, step: int, row: Mapping[str, Any]) -> None:
        """Refuse a step that is there, and names that a line has for itself."""
        if step < 0 or step in self.finished:
            raise errors.InvalidInputError(
                expected="a step, at least 0, that is not finished yet",
                got=f"step {step}",
                do="A run directory is never overwritten: choose another folder.",
            )
        if OWN_ENTRIES & row.keys() or row.get("step", step) != step:
            raise errors.InvalidInputError(
                expected=f'a row without "arrays" and "{CHECKSUM}", whose "step", if any, is its '
                "step",
                got=f"step {step} and a row of {', '.join(row)}",
                do="Rename the entry of the row.",
            )

    def _require_array(self, key: str, array: np.ndarray, row: Mapping[str, Any]) -> None:
        """Refuse an array that zarr, or a reader without ntkdiag, could not make sense of."""
        require_name(key, "an array")
        if array.dtype.name not in DTYPES:
            raise errors.InvalidInputError(
                expected=f"the array {key!r} of numbers that NumPy and zarr both have",
                got=f"dtype {array.dtype.name}",
                do="Convert it: float32 holds every bfloat16.",
            )
        if key in row:
            raise errors.InvalidInputError(
                expected="names that are either of a scalar or of an array",
                got=f"{key!r} as both",
                do="Rename one of them.",
            )
        axes = axes_of(self._record, key, array.ndim)
        if len(axes) != array.ndim or "step" in axes:
            raise errors.InvalidInputError(
                expected=f"the axes {axes} of the array {key!r}, none of them step",
                got=f"shape {list(array.shape)}",
                do='Correct "dims" in the record, or the array.',
            )


def _opened(stream: RunStream, lock: filelock.BaseFileLock, record: Row) -> RunWriter:
    """The writer of a stream whose lock is held: its record agrees, or is written now."""
    contents = stream.read() if stream.path.exists() else StreamContents([], {}, [])
    if contents.rows and not contents.records:
        raise errors.CheckpointError(
            expected=f"a convention record as the first line of {os.fspath(stream.path)!r}",
            got=f"{len(contents.rows)} rows without one",
            do="Choose another folder: what these numbers mean is not known.",
        )
    stored = contents.records[-1] if contents.records else None
    if stored is not None:
        require_same(stream.path, stored, record)
    # The first line; or other versions from here on, and the rows that follow say so.
    if stored != record:
        append_line(stream.path, checked_line_of({"record": record}), sync=True)

    complete = {}
    for step, committed in contents.committed.items():
        folder = stream.folder_of(step)
        if all(has_its_size(folder / key) for key in committed.sha256s):
            complete[step] = committed
    return RunWriter(stream, lock, record, complete)
