"""Measurements as a stream of a run directory, which a resumed training goes on with.

1. Before training the lock of the stream is taken, so that no second process writes to it, and what
   makes two runs one is compared with the record that is there: examples, model, loss, names.
2. The record is written before the first row, where it differs from the last one.
3. Each measurement is one line at the end of the file, as `JsonLines` writes it, with a checksum.
"""

import os
from collections.abc import Mapping
from typing import Any

import filelock
import jax

from ntkdiag import errors
from ntkdiag.monitor.convention_record import SETTINGS
from ntkdiag.monitor.writers import JsonLines
from ntkdiag.path_argument import as_path
from ntkdiag.runs.json_lines import checked_line_of, finite_or_null, last_record
from ntkdiag.runs.run_stream import RunStream, require_name
from ntkdiag.runs.same_settings import require_same
from ntkdiag.runs.shared_call import shared_call
from ntkdiag.runs.stream_lock import locked


class RunLog(JsonLines):
    """Appends measurements to a stream of a run directory: what `out=` of `watch` and `Monitor` is.

    The lines are those of `JsonLines`, each with its checksum, in the file ``<name>.jsonl`` of the
    folder; `open_run` reads them, also while they are written. A training that is resumed goes on
    with the stream; one of other examples, another model or another loss is refused, and so is a
    second process while the first one lives.

    Args:
        out: The run directory; made as needed.
        name: The stream; another one for a second monitor of the same training.

    Raises:
        InvalidInputError: The name cannot be that of a file.
    """

    @errors.public
    def __init__(self, out: str | os.PathLike[str], *, name: str = "watch") -> None:
        require_name(name, "a stream")
        self.stream = RunStream(as_path(out, "out="), name)
        self._lock: filelock.BaseFileLock | None = None
        self._call = f"watch {os.fspath(out)} {name}"
        super().__init__(self.stream.path)

    def begin(self, record: Mapping[str, Any]) -> None:
        """Take the lock, and refuse a record whose entries are not those of the stream.

        Of the processes of a program the first one does, and the others are told what it found.

        Args:
            record: Entries of the convention record, as far as they are known.

        Raises:
            InvalidInputError: Another process writes to the stream, it is that of another run, or
                the folder cannot be written to.
        """
        with shared_call(self._call) as call:
            if call.is_writer:
                self._begin(record)
                call.say("begun")
            else:
                call.hear()

    def _begin(self, record: Mapping[str, Any]) -> None:
        self._hold()
        stored = last_record(self.path) or {}
        in_both = record.keys() & stored.keys()
        try:
            require_same(
                self.path,
                {key: stored[key] for key in in_both},
                finite_or_null({key: record[key] for key in in_both}),
            )
        except errors.InvalidInputError:
            self._release()
            raise

    def start(self, record: Mapping[str, Any]) -> None:
        """Write the convention record, unless the last one of the stream says the same."""
        if jax.process_index() != 0:
            return
        self._begin({key: record[key] for key in SETTINGS if key in record})
        said = finite_or_null(dict(record))
        if last_record(self.path) != said:
            self._append({"record": said})

    def close(self) -> None:
        """Have the system put on the disk what it still holds in memory, and free the lock."""
        super().close()
        self._release()

    def _append(self, content: Mapping[str, Any]) -> None:
        self._hold()
        super()._append(content)

    def _line_of(self, content: Mapping[str, Any]) -> str:
        """One line of the stream, which ends with its checksum."""
        return checked_line_of(content)

    def _hold(self) -> None:
        """Take the lock, which writers of one process share; only the first process writes."""
        if jax.process_index() != 0:
            return
        if self._lock is None:
            self._lock = locked(self.stream, shared_in_process=True)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
