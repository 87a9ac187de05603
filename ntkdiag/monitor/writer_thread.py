"""One writer on a thread of its own, so that a disk that hangs does not hold up training.

1. Each call of the writer goes into a queue, and a thread begins to work it off unless one does.
2. The thread makes one call after the other, so that steps stay in order, and ends when the queue
   is empty: between two measurements there is no thread.
3. A full queue takes no more records; those that come are dropped and counted.
4. Who posts gets a receipt and may wait for it, but never without a limit.

No lock is ever waited for. A signal handler runs on top of whatever the main thread was doing, and
would wait for ever for a lock that this thread holds. `queue.SimpleQueue` may be entered again from
a handler, and `_at_work` is only tried.
"""

import atexit
import contextvars
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.error_isolation import described, warn
from ntkdiag.monitor.writers import Values, Writer

MOST_FAILURES = 10  # in a row
MOST_WAITING = 1000  # records, of about a kilobyte each
PATIENCE = 1.0  # seconds that training waits for a writer, until it has once taken longer
CLOSING_SECONDS = 10.0  # that the end of a run waits for all writers

_thread = threading.local()  # `is_writer_thread` is True on the threads that call writers
_working: set["WriterThread"] = set()  # those that have a thread


class Receipt:
    """Tells when a call was made; may be waited for in a signal handler."""

    def __init__(self) -> None:
        self._made: queue.SimpleQueue[None] = queue.SimpleQueue()

    def give(self) -> None:
        """The call was made."""
        self._made.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until the call was made, for at most so many seconds; whether it was."""
        try:
            self._made.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return False
        self.give()  # for those who ask later
        return True


def _nothing() -> None:
    """The call that only asks for a receipt."""


class WriterThread:
    """Calls one writer, in order and without ever raising.

    A writer that raises is tried again with the next record, and muted after ten failures in a row.
    The same record twice in a row is written once.
    """

    def __init__(self, writer: Writer, call: str) -> None:
        self.writer = writer
        self.dropped = 0
        self.call = call
        self._is_started = False
        self._last_written = ""
        self._failures = 0  # in a row
        self.renew()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the queue and the lock, which cannot be copied."""
        not_copied = ("_queue", "_at_work")
        return {name: value for name, value in vars(self).items() if name not in not_copied}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.renew()

    def renew(self) -> None:
        """Begin with an empty queue and no thread."""
        self._queue: queue.SimpleQueue[tuple[Callable[[], object], Receipt]] = queue.SimpleQueue()
        self._at_work = threading.Lock()  # held while there is a thread
        self.is_late = False

    @property
    def waiting(self) -> int:
        """Calls in the queue."""
        return self._queue.qsize()

    @property
    def name(self) -> str:
        """The class of the writer, for messages."""
        return type(self.writer).__name__

    def post_record(self, step: int, values: Values, record: Mapping[str, Any]) -> Receipt | None:
        """Have a measurement written; None where it is dropped or nobody should wait for it."""
        was_late = self.is_late
        if self.waiting >= MOST_WAITING:
            self.dropped += 1
            if self.dropped == 1:
                warn(
                    f"{self.call}: the writer {self.name} is {MOST_WAITING} records behind. What "
                    "comes is dropped until it has caught up; close() says how much. Training goes "
                    "on."
                )
            return None
        receipt = self._post(functools.partial(self._write, step, dict(values), record))
        return None if was_late else receipt

    def post_finding(self, finding: Finding) -> None:
        """Have a finding told after all that was posted before; dropped where the queue is full."""
        if self.waiting >= MOST_WAITING:
            self.dropped += 1
            return
        self._post(functools.partial(self._attempt, "finding", finding))

    def post_close(self) -> Receipt:
        """Have the writer closed after all that was posted before."""
        return self._post(functools.partial(self._attempt, "close"))

    def post_nothing(self) -> Receipt:
        """A receipt for all that was posted before."""
        return self._post(_nothing)

    def _post(self, deliver: Callable[[], object]) -> Receipt:
        """Put a call into the queue, and see to it that somebody works it off."""
        receipt = Receipt()
        self._queue.put((deliver, receipt))
        if not self._at_work.acquire(blocking=False):
            return receipt  # a thread is at work, and comes to it
        _working.add(self)
        # Some trackers keep their run in a context variable: the writer sees what training sees.
        work = functools.partial(contextvars.copy_context().run, self._work)
        try:
            threading.Thread(target=work, name=f"ntkdiag {self.name}", daemon=True).start()
        except RuntimeError:  # the interpreter is exiting and starts no threads any more
            self._work()
        return receipt

    def _work(self) -> None:
        """Make all calls in the queue."""
        _thread.is_writer_thread = True
        try:
            while True:
                self._empty_queue()
                self.is_late = False
                _working.discard(self)
                self._at_work.release()
                # What was posted since the last look into the queue started no thread.
                if self._queue.empty() or not self._at_work.acquire(blocking=False):
                    return
                _working.add(self)
        finally:
            _thread.is_writer_thread = False

    def _empty_queue(self) -> None:
        while True:
            try:
                deliver, receipt = self._queue.get_nowait()
            except queue.Empty:
                return
            deliver()
            receipt.give()

    def _write(self, step: int, values: Values, record: Mapping[str, Any]) -> None:
        """Write one record, after the convention record, which a writer gets once."""
        # optax.MultiSteps updates the inner transform at every micro-step and keeps only the last,
        # and jax.pmap updates it on every device: the same measurement comes again.
        written = repr((step, values))
        if written == self._last_written:
            return
        self._last_written = written
        if not self._is_started:
            self._is_started = self._attempt("start", dict(record))
        if self._is_started:
            self._attempt("write", step, values)

    def _attempt(self, method: str, *args: Any) -> bool:
        """Call a method of the writer, if it has one and is not muted; whether all went well."""
        if self._failures >= MOST_FAILURES:
            return False
        try:
            call = getattr(self.writer, method, None)
            if call is not None:
                call(*args)
        # Nobody interrupts this thread: SystemExit is that of rich at a closed pipe,
        # asyncio.CancelledError that of a client library.
        except BaseException as error:
            self._count_failure(method, error)
            return False
        self._failures = 0
        return True

    def _count_failure(self, method: str, error: BaseException) -> None:
        """Count a failure; warn of the first in a row, and of the one that mutes the writer."""
        self._failures += 1
        if self._failures == 1:
            consequence = "It is tried again at the next one"
        elif self._failures == MOST_FAILURES:
            consequence = f"It is muted after {MOST_FAILURES} in a row"
        else:
            return
        lost = "finding" if method == "finding" else "measurement"
        warn(
            f"{self.call}: the writer {self.name} failed in {method}() with {described(error)}. "
            f"This {lost} is lost to it. {consequence}; training goes on."
        )


def wait(posted: Iterable[tuple[WriterThread, Receipt]], seconds: float) -> list[WriterThread]:
    """Wait for receipts, all together at most so many seconds; the writer threads whose is missing.

    On a writer thread nothing is waited for: it would wait for itself.
    """
    if getattr(_thread, "is_writer_thread", False):
        return []
    end = time.monotonic() + seconds
    missing = []
    for writer_thread, receipt in posted:
        if not receipt.wait(end - time.monotonic()):
            missing.append(writer_thread)
    return missing


def wait_at_the_end(
    posted: Sequence[tuple[WriterThread, Receipt]], seconds: float, waited: float = 0.0
) -> list[WriterThread]:
    """Wait for the last receipts of a run, and say which records are not written.

    `waited` of the seconds are over; the threads whose receipt is missing at the end are returned.
    """
    missing = wait(posted, seconds - waited)
    for writer_thread in missing:
        warn(
            f"{writer_thread.call}: the writer {writer_thread.name} has {writer_thread.waiting} "
            f"records to write {seconds:g} s after the end, and is not waited for any longer. What "
            "it does not write before the process ends is lost."
        )
    for writer_thread, _ in posted:
        if writer_thread.dropped:
            warn(
                f"{writer_thread.call}: {writer_thread.dropped} records were dropped because the "
                f"writer {writer_thread.name} was {MOST_WAITING} records behind."
            )
            writer_thread.dropped = 0  # said once
    return missing


def wait_at_exit() -> None:
    """Have everything written that was posted: the threads of writers end with the process."""
    # A record may lead to a finding, which goes to threads that had nothing to do: look twice.
    late: set[WriterThread] = set()
    for _ in range(2):
        at_work = [writer_thread for writer_thread in tuple(_working) if writer_thread not in late]
        posted = [(writer_thread, writer_thread.post_nothing()) for writer_thread in at_work]
        late.update(wait_at_the_end(posted, CLOSING_SECONDS))


def _begin_anew_in_child() -> None:
    """After a fork the threads are those of the parent, and so is what was posted to them."""
    _thread.is_writer_thread = False
    for writer_thread in tuple(_working):
        writer_thread.renew()
    _working.clear()


atexit.register(wait_at_exit)
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_anew_in_child)
