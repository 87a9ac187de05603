"""Writing a run directory: a step is finished or absent, whenever the process is killed.

1. Opening takes the lock of the stream, which the system frees when the process ends, and states
   the record: what stays the same over the run. One that differs from the record there is refused.
2. A step: its arrays first, each written under another name and then renamed, then its line, which
   names them and ends with a checksum. Nothing is deleted: what a killed process left is written
   over, or no line names it.
3. Opened again, the steps whose line is complete and whose arrays have their sizes are finished.
   What else is there was being written when the process died, or was damaged; it is written once
   more. Bytes are looked at when they are read: a step that turns out to be damaged then is
   finished no more.
4. The file of the lines is as long as it was left, or somebody moved, deleted or changed it: then
   nothing more is written, as the lines before would not be there.
"""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import filelock
import numpy as np

from ntkdiag import errors
from ntkdiag.path_argument import as_path
from ntkdiag.runs.files_on_disk import disk_errors, require_no_links, size_of, sync_folder
from ntkdiag.runs.json_lines import (
    MOST_BYTES_OF_LINE,
    MOST_LEVELS,
    Row,
    append_line,
    checked_line_of,
    object_of,
    row_of,
)
from ntkdiag.runs.npy_array import DTYPES, has_its_size, sha256_of, write_array
from ntkdiag.runs.run_stream import CommittedStep, RunStream, StreamContents, axes_of, require_name
from ntkdiag.runs.same_settings import require_same
from ntkdiag.runs.stream_lock import locked


class RunWriter:
    """Writes one stream of a run directory, and holds its lock meanwhile.

    Made by `RunWriter.open`, and best used in a ``with``.
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
        self._committed = dict(committed)
        self._size = size_of(stream.path) or 0

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
        stream = RunStream(as_path(root), name)
        lock = locked(stream)
        try:
            return _opened(stream, lock, dict(record))
        except BaseException:
            lock.release()
            raise

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Finish a step: its scalars as JSON values, NaN included, and its arrays by name."""
        self._require_open()
        if step in self.finished:
            raise errors.InvalidInputError(
                expected="a step that is not finished yet",
                got=f"step {step}",
                do="A run directory is never overwritten: choose another folder.",
            )
        prepared = {key: np.asarray(array) for key, array in arrays.items()}
        for key, array in prepared.items():
            self._require_array(key, array)
        # Everything that can be refused is refused before the first file is touched.
        sha256s = {key: sha256_of(array) for key, array in prepared.items()}
        line = checked_line_of({"step": step, **row, "arrays": sha256s})
        _require_readable(line)
        self._require_in_place()

        folder = self.stream.folder_of(step)
        require_no_links(self.stream.root, folder)
        with disk_errors(folder):
            if prepared:
                folder.mkdir(parents=True, exist_ok=True)
            for key, array in prepared.items():
                write_array(self.stream.array_path(step, key), array)
            if prepared:
                sync_folder(folder)
                sync_folder(folder.parent)

        # The line makes the step a finished one.
        self._finish(step, line)

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Give a finished step other scalars, by a line that holds from now on; arrays stay."""
        self._require_open()
        line = checked_line_of({"step": step, **row, "arrays": self._committed[step].sha256s})
        _require_readable(line)
        self._require_in_place()
        self._finish(step, line)

    def _finish(self, step: int, line: str) -> None:
        """Append the line of a step."""
        with disk_errors(self.stream.path):
            self._size += append_line(self.stream.path, line, sync=True)
        self._require_in_place()  # or it is alone in a new file
        finished = row_of(object_of(line) or {})  # as it will be read
        sha256s = finished.pop("arrays")
        self._committed[step] = CommittedStep(finished, sha256s)
        self.finished[step] = finished

    def read(self, step: int) -> dict[str, np.ndarray] | None:
        """The arrays of a finished step by name.

        None where one of them is damaged: the step is finished no more, and may be written again.
        """
        committed = self._committed[step]
        try:
            return {key: self.stream.array(committed, key) for key in committed.sha256s}
        except errors.CheckpointError:
            del self.finished[step], self._committed[step]
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

    def _require_in_place(self) -> None:
        """Refuse to go on with a file that is not there any more, or not as it was left."""
        size = size_of(self.stream.path)
        if size != self._size:
            raise errors.CheckpointError(
                expected=f"{os.fspath(self.stream.path)!r} with the {self._size:,} bytes that "
                "were written",
                got="no such file" if size is None else f"{size:,} bytes",
                do="It was moved, deleted or changed while it was written. Put it back, or choose "
                "another folder: what was finished is where it was moved to.",
            )

    def _require_array(self, key: str, array: np.ndarray) -> None:
        """Refuse an array that a reader without ntkdiag could not make sense of."""
        require_name(key, "an array")
        if array.dtype.name not in DTYPES:
            raise errors.InvalidInputError(
                expected=f"the array {key!r} of numbers that every language has",
                got=f"dtype {array.dtype.name}",
                do="Convert it: float32 holds every bfloat16.",
            )
        if axes_of(self._record, key, array.ndim) is None:
            raise errors.InvalidInputError(
                expected=f'an array {key!r} with the axes that "dims" of the record names, none of '
                "them step",
                got=f"shape {list(array.shape)}",
                do='Correct "dims" in the record, or the array.',
            )


def _require_readable(line: str) -> None:
    """Refuse a line that a reader would pass over."""
    if len(line) >= MOST_BYTES_OF_LINE or object_of(line) is None:
        raise errors.InvalidInputError(
            expected=f"JSON values of at most {MOST_BYTES_OF_LINE:,} bytes, on at most "
            f"{MOST_LEVELS} levels of lists and dictionaries",
            got=f"{len(line):,} bytes: {line[:60]}...",
            do="Write large things as arrays.",
        )


def _opened(stream: RunStream, lock: filelock.BaseFileLock, record: Row) -> RunWriter:
    """The writer of a stream whose lock is held: its record agrees, or is written now."""
    line = checked_line_of({"record": record})
    _require_readable(line)
    record = (object_of(line) or {})["record"]  # as it will be read
    contents = stream.read() if stream.path.exists() else StreamContents([], {}, [], 0)
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
        with disk_errors(stream.path):
            append_line(stream.path, line, sync=True)
            sync_folder(stream.root)

    complete = {}
    for step, committed in contents.committed.items():
        paths = [stream.array_path(step, key) for key in committed.sha256s]
        if all(has_its_size(path) for path in paths):
            complete[step] = committed
    return RunWriter(stream, lock, record, complete)
