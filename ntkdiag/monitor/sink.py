"""Passes measurements to the writers, on one thread beside training.

`put` appends a row to a queue and starts a thread unless one is at work. It waits at most a second
for its row, so that what was written can be read at once; after a row that took longer it does not
wait until the queue was empty. No lock is waited for: a signal handler that calls `put` or `close`
runs on top of the main thread.
"""

import atexit
import contextvars
import copy
import functools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_rows import LiveJudge
from ntkdiag.monitor.error_isolation import described, say, warn
from ntkdiag.monitor.writers import Values, Writer

OnFinding: TypeAlias = Callable[[Finding], object]

MOST_ROWS = 1000  # in the queue, about a kilobyte each
PATIENCE = 1.0  # seconds that `put` waits for its row
CLOSING_SECONDS = 10.0  # that the end of a run waits for the queue

_at_work: set["Sink"] = set()  # sinks whose thread runs


class Sink:
    """Hands the rows of one training to its writers, and tells what is found in them."""

    def __init__(
        self, writers: Sequence[Writer], on_finding: Sequence[OnFinding] | OnFinding = ()
    ) -> None:
        self.writers = tuple(writers)
        self._callbacks = tuple(on_finding) if isinstance(on_finding, Sequence) else (on_finding,)
        self._judge = LiveJudge()
        self._call = errors.current_call()
        self._started: set[int] = set()  # identities of writers
        self._failed: set[int] = set()  # and of callbacks
        self._last_written = ""
        self._has_dropped = False
        self._is_late = False
        self._queue: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]]
        self._queue = queue.SimpleQueue()
        self._has_thread = threading.Lock()  # held while there is one; tried, never waited for
        self._thread_id: int | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether there are writers or callbacks."""
        return bool(self.writers or self._callbacks)

    def put(self, step: int, numbers: Values, record: Mapping[str, Any]) -> None:
        """Have the numbers of one step written; `record` says what they mean."""
        if not self.is_wanted:
            return
        if self._queue.qsize() >= MOST_ROWS:
            if not self._has_dropped:
                self._has_dropped = True
                warn(
                    f"{self._call}: the writers are {MOST_ROWS} rows behind. New rows are dropped "
                    "until the writers catch up. Training continues."
                )
            return
        was_late = self._is_late
        is_written = self._post(functools.partial(self._write, int(step), dict(numbers), record))
        if not was_late:
            self._is_late = not self._wait(is_written, PATIENCE)

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Close the writers after the last row, and wait at most so many seconds for that."""
        self._finish(self._close, seconds)

    def _finish(self, last_call: Callable[[], object], seconds: float) -> None:
        """Wait for all rows and one more call, and say what is not written."""
        if not self._wait(self._post(last_call), seconds):
            warn(
                f"{self._call}: the writers still have {self._queue.qsize()} rows to write "
                f"{seconds:g} s after the end, and are no longer waited for. Rows that they do "
                "not write before the process ends are lost."
            )

    def _post(self, call: Callable[[], object]) -> threading.Event:
        """Append a call to the queue, and start the thread unless there is one."""
        is_done = threading.Event()
        # Some trackers hold their run in a context variable: writers see what training sees.
        in_context = functools.partial(contextvars.copy_context().run, call)
        self._queue.put((in_context, is_done))
        if self._has_thread.acquire(blocking=False):
            try:
                threading.Thread(target=self._work, name="ntkdiag writers", daemon=True).start()
            except RuntimeError:  # the interpreter is exiting and starts no threads any more
                self._work()
        return is_done

    def _work(self) -> None:
        """Make all calls in the queue."""
        while True:
            self._thread_id = threading.get_ident()
            _at_work.add(self)
            while not self._queue.empty():
                call, is_done = self._queue.get()
                self._attempt(self, "delivery", call)
                is_done.set()
            self._is_late = False
            self._thread_id = None
            _at_work.discard(self)
            self._has_thread.release()
            # A call that was posted since the last look at the queue started no thread.
            if self._queue.empty() or not self._has_thread.acquire(blocking=False):
                return

    def _wait(self, is_done: threading.Event, seconds: float) -> bool:
        """Whether a call was made in time; a writer that asks would wait for itself."""
        return threading.get_ident() == self._thread_id or is_done.wait(seconds)

    def _write(self, step: int, numbers: Values, record: Mapping[str, Any]) -> None:
        row = {"step": step, **numbers}
        # optax.MultiSteps updates the inner transform at every micro-step and keeps only the last,
        # and jax.pmap updates it on every device: the same measurement comes again.
        written = repr(row)
        if written == self._last_written:
            return
        self._last_written = written
        for writer in self.writers:
            if id(writer) not in self._started and self._call_writer(writer, "start", dict(record)):
                self._started.add(id(writer))
            if id(writer) in self._started:
                self._call_writer(writer, "write", step, numbers)
        for finding in self._judge(row, record):
            self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        """Pass a finding to the writers, then to the callbacks; without either, print it."""
        for writer in self.writers:
            self._call_writer(writer, "finding", finding)
        hears = [callable(getattr(writer, "finding", None)) for writer in self.writers]
        if not any(hears) and not self._callbacks:
            tell = say if finding.severity == "info" else warn
            tell(f"{self._call}: {finding}")
        for callback in self._callbacks:
            name = getattr(callback, "__name__", type(callback).__name__)
            self._attempt(callback, f"on_finding={name}", callback, finding)

    def _close(self) -> None:
        for writer in self.writers:
            self._call_writer(writer, "close")

    def _call_writer(self, writer: Writer, method: str, *args: Any) -> bool:
        """Call a method of a writer, if it has one; whether all went well."""
        name = f"the writer {type(writer).__name__}.{method}()"
        return self._attempt(writer, name, getattr(writer, method, None), *args)

    def _attempt(
        self, receiver: object, name: str, call: Callable[..., object] | None, *args: Any
    ) -> bool:
        """Call with copies of the arguments; whether all went well. The first failure is said."""
        try:
            if call is not None:
                call(*copy.deepcopy(args))
        # No user interrupts this thread: rich raises SystemExit at a closed pipe, client libraries
        # raise asyncio.CancelledError.
        except BaseException as error:
            if id(receiver) not in self._failed:
                self._failed.add(id(receiver))
                warn(
                    f"{self._call}: {name} failed with {described(error)}. It is "
                    "called again, but later failures are not reported; training continues."
                )
            return False
        return True


@atexit.register
def _finish_at_exit() -> None:
    """Write what is queued: threads end with the process."""
    for sink in tuple(_at_work):
        sink._finish(lambda: None, CLOSING_SECONDS)
