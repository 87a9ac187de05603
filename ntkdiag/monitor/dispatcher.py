"""From a measurement to every writer, without ever raising into the training loop or stopping it.

1. A measurement goes into a queue, and a thread begins to work it off unless one does. The thread
   ends when the queue is empty.
2. The thread hands the measurement to one writer after the other, and then judges the run: findings
   follow their record.
3. Training waits for that for a second at most, so that what was written can be read at once. A
   thread that has once taken longer is not waited for again until it has caught up.
4. A full queue takes no more records; those that come are dropped and counted.

No lock is ever waited for: a signal handler runs on top of whatever the main thread was doing, and
would wait for ever. `queue.SimpleQueue` may be entered again from it, and `_is_at_work` is only
tried.
"""

import atexit
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.error_isolation import described, warn
from ntkdiag.monitor.first_remarks import FirstRemarks
from ntkdiag.monitor.live_findings.finding_writer import FindingWriter, OnFinding
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.writers import Values, Writer

MOST_WAITING = 1000  # records, of about a kilobyte each
PATIENCE = 1.0  # seconds that training waits for the writers, until they have once taken longer
CLOSING_SECONDS = 10.0  # that the end of a run waits for them

_working: set["Dispatcher"] = set()  # those that have a thread


class Dispatcher:
    """Hands measurements to writers.

    A writer that raises is named in one warning and tried again with the next record; the others go
    on. The same record twice in a row is written once.
    """

    def __init__(
        self, writers: Sequence[Writer], callbacks: Sequence[OnFinding] | None = None
    ) -> None:
        self.writers = tuple(writers)
        self._call = errors.current_call()
        self._remarks = FirstRemarks()
        self._sinks: list[Any] = list(writers)
        if callbacks is not None:
            is_heard = any(callable(getattr(writer, "finding", None)) for writer in self.writers)
            self._sinks.append(FindingWriter(callbacks, self._tell, is_heard, self._call))
        self._started: set[int] = set()  # positions among the sinks
        self._failed: set[int] = set()
        self._last_written = ""
        self._dropped = 0
        self._is_late = False
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]]
        self._queue = queue.SimpleQueue()
        self._is_at_work = threading.Lock()  # held while there is a thread
        self._thread_id: int | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody takes what is sent."""
        return bool(self._sinks)

    def send(self, step: Step, values: Values, record: Mapping[str, Any]) -> None:
        """Have one measurement written everywhere, after the convention record of its writer."""
        self._remarks.look(values, record)
        if not self._sinks:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self._dropped += 1
            if self._dropped == 1:
                warn(
                    f"{self._call}: the writers are {MOST_WAITING} records behind. What comes is "
                    "dropped until they have caught up; close() says how much. Training goes on."
                )
            return
        was_late = self._is_late
        deliver = functools.partial(self._write, int(step), dict(values), record)
        is_written = self._post(deliver)
        if not was_late:
            self._is_late = not self._wait(is_written, PATIENCE)

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close the writers after all that was sent, and wait so many seconds for it at most."""
        self._wait_at_the_end(self._post(self._close), seconds)

    def finish(self) -> None:
        """Wait for all that was sent: the thread ends with the process."""
        self._wait_at_the_end(self._post(lambda: None), CLOSING_SECONDS)

    def _post(self, deliver: Callable[[], None]) -> threading.Event:
        """Put a call into the queue, and see to it that somebody works it off."""
        is_done = threading.Event()
        # Some trackers keep their run in a context variable: the writer sees what training sees.
        in_context = functools.partial(contextvars.copy_context().run, deliver)
        self._queue.put((in_context, is_done))
        if self._is_at_work.acquire(blocking=False):
            _working.add(self)
            try:
                threading.Thread(target=self._work, name="ntkdiag writers", daemon=True).start()
            except RuntimeError:  # the interpreter is exiting and starts no threads any more
                self._work()
        return is_done

    def _work(self) -> None:
        """Make all calls in the queue."""
        while True:
            self._thread_id = threading.get_ident()
            while not self._queue.empty():
                deliver, is_done = self._queue.get()
                deliver()
                is_done.set()
            self._is_late = False
            self._thread_id = None
            _working.discard(self)
            self._is_at_work.release()
            # What was posted since the last look into the queue started no thread.
            if self._queue.empty() or not self._is_at_work.acquire(blocking=False):
                return
            _working.add(self)

    def _wait(self, is_done: threading.Event, seconds: float) -> bool:
        """Whether a call was made in time; a writer that asks would wait for itself."""
        return threading.get_ident() == self._thread_id or is_done.wait(seconds)

    def _wait_at_the_end(self, is_done: threading.Event, seconds: float) -> None:
        """Wait for the last call of a run, and say what is not written."""
        if not self._wait(is_done, seconds):
            warn(
                f"{self._call}: the writers have {self._queue.qsize()} records to write "
                f"{seconds:g} s after the end, and are not waited for any longer. What they do not "
                "write before the process ends is lost."
            )
        if self._dropped:
            warn(
                f"{self._call}: {self._dropped} records were dropped because the writers were "
                f"{MOST_WAITING} records behind."
            )
            self._dropped = 0  # said once

    def _write(self, step: int, values: Values, record: Mapping[str, Any]) -> None:
        """Write one record, after the convention record, which a writer gets once."""
        # optax.MultiSteps updates the inner transform at every micro-step and keeps only the last,
        # and jax.pmap updates it on every device: the same measurement comes again.
        written = repr((step, values))
        if written == self._last_written:
            return
        self._last_written = written
        for index in range(len(self._sinks)):
            if index not in self._started and self._attempt(index, "start", dict(record)):
                self._started.add(index)
            if index in self._started:
                self._attempt(index, "write", step, values)

    def _tell(self, finding: Finding) -> None:
        """Have a finding told by every writer that takes findings."""
        for index in range(len(self.writers)):
            self._attempt(index, "finding", finding)

    def _close(self) -> None:
        for index in range(len(self.writers)):
            self._attempt(index, "close")

    def _attempt(self, index: int, method: str, *args: Any) -> bool:
        """Call a method of a writer, if it has one; whether all went well."""
        writer = self._sinks[index]
        try:
            call = getattr(writer, method, None)
            if call is not None:
                call(*args)
        # Nobody interrupts this thread: SystemExit is that of rich at a closed pipe,
        # asyncio.CancelledError that of a client library.
        except BaseException as error:
            if index not in self._failed:
                self._failed.add(index)
                warn(
                    f"{self._call}: the writer {type(writer).__name__} failed in {method}() with "
                    f"{described(error)}. This is said once, and it is tried again at the next "
                    "one; training goes on."
                )
            return False
        return True


@atexit.register
def finish_at_exit() -> None:
    """Have everything written that was posted: the threads of writers end with the process."""
    for dispatcher in tuple(_working):
        dispatcher.finish()
