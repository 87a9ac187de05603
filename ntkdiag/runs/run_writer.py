"""Writing one stream of a run directory, which one writer does at a time.

1. A lock, which the system frees when the process ends, keeps other writers out.
2. The record says what stays the same over the run. One that differs from that of the stream is
   refused, so that a run continues with its first settings.
3. A step with arrays is finished or absent, whenever the process is killed: its arrays come first,
   then its line, which names them. A step that is torn is written again.
4. A file of lines that was moved, deleted or changed is no longer written to.
"""

import gc
import os
from collections.abc import Collection, Mapping
from typing import Any

import filelock
import numpy as np

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.path_argument import as_path
from ntkdiag.runs.files_on_disk import disk_errors, require_no_links
from ntkdiag.runs.json_lines import Row, append_line, checked_line_of, object_of, row_of
from ntkdiag.runs.npz_file import DTYPES, write_arrays
from ntkdiag.runs.run_stream import CommittedStep, RunStream, StreamContents, require_name


class RunWriter:
    """Writes one stream of a run directory, and holds its lock until it is closed."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        record: Mapping[str, Any] | None = None,
        *,
        name: str = "track",
    ) -> None:
        require_name(name)
        self.stream = RunStream(as_path(root), name)
        self._lock = _locked(self.stream)
        try:
            contents = self.stream.read() if self.stream.path.exists() else StreamContents()
            no_record: Row | None = {} if contents.rows else None  # of rows whose record is lost
            self._record = contents.records[-1] if contents.records else no_record
            self._committed = contents.committed
            # The scalars of every step with arrays whose line is complete.
            self.finished = {step: item.row for step, item in self._committed.items()}
            self._size = self._size_now()
            if record is not None:
                self.state(record)
        except BaseException:
            self._lock.release()
            raise

    def require(self, record: Mapping[str, Any], entries: Collection[str] | None = None) -> None:
        """Refuse a record that is not that of the stream: all but its versions has to agree.

        With `entries`, those of them that both records have.
        """
        if self._record is None:
            return
        among = (self._record.keys() | record.keys()) - {"versions"}
        if entries is not None:
            among = self._record.keys() & record.keys() & set(entries)
        stated, passed = _flat(self._record, among), _flat(_as_read(record), among)
        paths = sorted(stated.keys() | passed.keys())
        different = [path for path in paths if stated.get(path, ...) != passed.get(path, ...)]
        if different:
            raise errors.InvalidInputError(
                expected=f"the settings of {os.fspath(self.stream.path)!r}, "
                f"{_listed(stated, different)}",
                got=_listed(passed, different),
                do="Choose another folder, or continue with the settings of this one.",
            )

    def state(self, record: Mapping[str, Any], entries: Collection[str] | None = None) -> None:
        """Write the record of the rows to come, unless it is that of the rows before."""
        self.require(record, entries)
        as_read = _as_read(record)
        if as_read != self._record:
            self._append(checked_line_of({"record": record}), sync=True)
            self._record = as_read

    def append(self, content: Mapping[str, Any]) -> None:
        """Append a row without arrays, ``{"step": ..., name: value}``."""
        self._append(checked_line_of(content), sync=False)

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Finish a step: its scalars as JSON values, NaN included, and its arrays by name."""
        # Refuse wrong settings before the first file is touched.
        self._require_in_place()
        path = self.stream.array_path(step)
        require_no_links(self.stream.root, path.parent)
        prepared = {key: np.asarray(array) for key, array in arrays.items()}
        for key, array in prepared.items():
            if array.dtype.name not in DTYPES:
                raise errors.InvalidInputError(
                    expected=f"the array {key!r} in a standard number format",
                    got=f"dtype {array.dtype.name}",
                    do="Convert it: float32 holds every bfloat16.",
                )
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_arrays(path, prepared)
        self._finish(step, row, list(prepared))

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Give a finished step other scalars, by a line that holds from now on; arrays stay."""
        self._finish(step, row, self._committed[step].arrays)

    def read(self, step: int) -> dict[str, np.ndarray] | None:
        """The arrays of a finished step; where one is damaged None, and it is finished no more."""
        arrays = self.stream.arrays(self._committed[step])
        if arrays is None:
            del self.finished[step], self._committed[step]
        return arrays

    def close(self) -> None:
        """Free the lock."""
        self._lock.release()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _finish(self, step: int, row: Mapping[str, Any], arrays: list[str]) -> None:
        """Append the line that finishes a step."""
        line = checked_line_of({"step": step, **row, "arrays": arrays})
        self._append(line, sync=True)
        finished = row_of(object_of(line) or {})  # as it will be read
        del finished["arrays"]
        self._committed[step] = CommittedStep(finished, arrays)
        self.finished[step] = finished

    def _append(self, line: str, *, sync: bool) -> None:
        self._require_in_place()
        with disk_errors(self.stream.path):
            self._size += append_line(self.stream.path, line, sync=sync)

    def _require_in_place(self) -> None:
        """Refuse to write to a file of lines that is not as it was left."""
        size = self._size_now()
        if size != self._size:
            raise errors.CheckpointError(
                expected=f"{os.fspath(self.stream.path)!r} with the {self._size:,} bytes that "
                "were written",
                got=f"{size:,} bytes",
                do="It was moved, deleted or changed while it was written. Put it back, or choose "
                "another folder: what was finished is where it was moved to.",
            )

    def _size_now(self) -> int:
        return self.stream.path.stat().st_size if self.stream.path.exists() else 0


def _locked(stream: RunStream) -> filelock.BaseFileLock:
    """The lock of a stream, held; refused where another writer holds it."""
    lock_path = stream.root / f".{stream.name}.lock"
    for path in (lock_path, stream.path):
        require_no_links(stream.root, path)
    # Of the process, not of the thread: another thread may close the writer.
    lock = filelock.FileLock(lock_path, thread_local=False)
    with disk_errors(stream.root):
        stream.root.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                gc.collect()  # frees the lock of a training of this process that is over
            else:
                return lock
    raise errors.InvalidInputError(
        expected=f"a stream {os.fspath(stream.path)!r} that nobody writes to",
        got="one that is being written",
        do="Choose another folder, or wait for its writer; in this process, close its Monitor or "
        "delete its optimizer. Reading needs no lock: ntkdiag.open_run(path).",
    )


def _as_read(record: Mapping[str, Any]) -> Row:
    return (object_of(checked_line_of({"record": record})) or {})["record"]


def _flat(record: Row, among: Collection[str]) -> Row:
    """Some entries of a record, those of dictionaries and probes in it by their dotted paths."""
    entries = {}
    for key, value in record.items():
        if key == "probes":
            value = {probe["name"]: probe for probe in value}
        if key in among and isinstance(value, dict) and value:
            entries |= {f"{key}.{path}": item for path, item in _flat(value, value.keys()).items()}
        elif key in among:
            entries[key] = value
    return entries


def _listed(entries: Row, paths: list[str]) -> str:
    """Entries for a message; long values are cut."""
    return ", ".join(
        f"{path}={shortened(entries[path]) if path in entries else 'nothing'}" for path in paths
    )
