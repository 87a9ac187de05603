"""What all writers to experiment trackers have in common.

1. Nothing is opened before the first measurement.
2. Where the monitor has a run directory, the id of the tracker's run is kept in it, so that a
   training that is resumed goes on in the same run of the tracker.
3. A measurement becomes scalars; arrays are for the run directory.
4. Of the processes of one JAX program the first one writes.
5. A run that is still open when the script ends is closed then, after all that was measured is
   written, and before the library of the tracker ends: that does so by `atexit`, which is called
   when all threads but daemons have ended. So a thread waits for the end of the script.
"""

import abc
import json
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.error_isolation import described, warn
from ntkdiag.monitor.flat_scalars import scalars_of
from ntkdiag.monitor.writer_thread import wait_at_exit
from ntkdiag.monitor.writers import Values
from ntkdiag.runs.files_on_disk import new_file, regular_file

_open_writers: set["TrackerWriter"] = set()


class TrackerWriter(abc.ABC):
    """A writer to a run of an experiment tracker; a subclass says how that is opened and logged to.

    Errors of the tracker are not caught here: the monitor names them in one warning and goes on.

    Args:
        prefix: Put before every name; another one for a second monitor of the same run.

    Attributes:
        tracker: Name of the tracker, and of the file that keeps the id of its run.
        prefix: As given.
    """

    tracker: ClassVar[str]

    def __init__(self, *, prefix: str = "ntkdiag/") -> None:
        self.prefix = prefix
        self._record: dict[str, Any] = {}
        self._folder: pathlib.Path | None = None
        self._run_id: str | None = None
        self._is_open = False

    @abc.abstractmethod
    def open_run(self, run_id: str | None, record: Mapping[str, Any]) -> str:
        """Go on with the run of this id, or begin one where there is none.

        Args:
            run_id: Of the run that this training wrote to before; None if there is none known.
            record: The convention record: what the numbers mean.

        Returns:
            The id of the run that is open now.
        """

    @abc.abstractmethod
    def log_record(self, record: Mapping[str, Any]) -> None:
        """Log the convention record to the run that is open; again, where that has failed."""

    @abc.abstractmethod
    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log finite numbers by their names, prefix included, at a step of training."""

    @abc.abstractmethod
    def log_finding(self, finding: Finding) -> None:
        """Log a finding in the way the tracker tells its users of something."""

    @abc.abstractmethod
    def close_run(self) -> None:
        """Have everything written, and end the run if `open_run` has begun it."""

    def warn(self, text: str) -> None:
        """Tell the user something without raising, also where warnings are errors."""
        warn(f"{type(self).__name__}: {text}")

    def remember_in(self, folder: str | os.PathLike[str]) -> None:
        """Keep the id of the run in a folder.

        A monitor with a run directory (`out=`) calls this with it.

        Args:
            folder: Made when the first measurement is written.
        """
        self._folder = pathlib.Path(folder)

    def start(self, record: Mapping[str, Any]) -> None:
        """Open the run of the tracker, with what the numbers mean."""
        self._record = dict(record)
        if self._open():
            self.log_record(self._record)

    def write(self, step: int, values: Values) -> None:
        """Log the numbers of one measurement."""
        if self._open():
            scalars = scalars_of(values, self._record)
            self.log_scalars(step, {self.prefix + name: number for name, number in scalars.items()})

    def finding(self, finding: Finding) -> None:
        """Log a finding."""
        if self._open():
            self.log_finding(finding)

    def close(self) -> None:
        """Close the run; writing again goes on with it."""
        if self._is_open:
            self._is_open = False
            _open_writers.discard(self)
            self.close_run()

    def _open(self) -> bool:
        """Open the run unless it is; whether this process writes at all."""
        if jax.process_index() != 0:
            return False
        if not self._is_open:
            _close_all_at_the_end_of_the_script()
            remembered = self._remembered()
            run_id = self.open_run(remembered, self._record)
            self._is_open = True
            _open_writers.add(self)
            if run_id != remembered:
                self._remember(run_id)
        return True

    @property
    def record_name(self) -> str:
        """What the convention record is called in the run: the prefix without its slash."""
        return self.prefix.strip("/") or "ntkdiag"

    @property
    def _file(self) -> pathlib.Path | None:
        """Where the id of the run is kept."""
        return None if self._folder is None else self._folder / f"{self.tracker}_run.json"

    def _remembered(self) -> str | None:
        """The id of the run that was written to last; None where it is not known."""
        if self._run_id is not None or self._file is None:
            return self._run_id
        try:
            with regular_file(self._file) as file:
                return str(json.load(file)["run_id"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def _remember(self, run_id: str) -> None:
        """Keep the id, in memory and in the run directory."""
        self._run_id = run_id
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with new_file(self._file) as file:
                file.write(f"{json.dumps({'run_id': run_id})}\n".encode())


_closer: threading.Thread | None = None


def _close_all_at_the_end_of_the_script() -> None:
    """Have one thread of this process wait for the end of its main thread."""
    global _closer
    if _closer is None or not _closer.is_alive():  # it is not alive in the child of a fork
        _closer = threading.Thread(target=_close_all, name="ntkdiag closing trackers", daemon=False)
        _closer.start()


def _close_all() -> None:
    """Close the runs that are open when the main thread has ended."""
    threading.main_thread().join()
    wait_at_exit()
    for writer in tuple(_open_writers):
        try:
            writer.close()
        except Exception as error:
            writer.warn(f"the run was not closed: {described(error)}")
