"""From a measurement to every writer, without ever raising into the training loop.

A writer that raises is named in a warning, and tried again with the next measurement; after ten
failures in a row it is muted. A measurement that comes twice is sent once. Callbacks of a compiled
step arrive on threads of XLA, so one measurement is sent at a time.
"""

import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag import errors
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.writers import Values, Writer

_MOST_FAILURES = 10  # in a row


class Outbox:
    """Hands measurements to writers.

    Args:
        writers: The writers, or one of them.

    Raises:
        InvalidInputError: When something in `writers` has no `write` method.
    """

    def __init__(self, writers: Writer | Sequence[Writer]) -> None:
        self.writers = _checked(writers)
        self.call = errors.current_call()
        self._started: set[int] = set()
        self._last_sent = ""
        self._failures = [0] * len(self.writers)  # of each writer, in a row
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock, which cannot be copied."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def send(self, step: Step, values: Values, record: Mapping[str, Any]) -> None:
        """Write one measurement everywhere, unless it is the last one again.

        The convention record goes first, once to each writer.
        """
        with self._lock:
            # optax.MultiSteps updates the inner transform at every micro-step and keeps only the
            # last: the same measurement comes again.
            message = repr((int(step), values))
            if message == self._last_sent:
                return
            self._last_sent = message
            for index in range(len(self.writers)):
                if not self._start(index, record):
                    continue
                self._try(index, "write", int(step), dict(values))

    def close(self) -> None:
        """Close the writers that can be closed."""
        with self._lock:
            for index in range(len(self.writers)):
                self._try(index, "close")

    def _start(self, index: int, record: Mapping[str, Any]) -> bool:
        """Give a writer the convention record, unless it has it; whether the writer has it now."""
        if index not in self._started and self._try(index, "start", dict(record)):
            self._started.add(index)
        return index in self._started

    def _try(self, index: int, method: str, *args: Any) -> bool:
        """Call a method of a writer, if it has one and is not muted; whether all went well."""
        if self._failures[index] >= _MOST_FAILURES:
            return False
        call = getattr(self.writers[index], method, None)
        try:
            if call is not None:
                call(*args)
        except (Exception, SystemExit) as error:  # rich exits at a closed pipe
            self._count_failure(index, method, error)
            return False
        self._failures[index] = 0
        return True

    def _count_failure(self, index: int, method: str, error: BaseException) -> None:
        """Count a failure; warn of the first in a row, and of the one that mutes the writer."""
        self._failures[index] += 1
        failures = self._failures[index]
        if failures == 1:
            consequence = "It is tried again at the next one"
        elif failures == _MOST_FAILURES:
            consequence = f"It is muted after {failures} in a row"
        else:
            return
        name = type(self.writers[index]).__name__
        warn(
            f"{self.call}: the writer {name} failed in {method}() with {type(error).__name__}: "
            f"{error}. This measurement is lost to it. {consequence}; training goes on."
        )


def warn(text: str) -> None:
    """Warn without raising, even where warnings are errors: the training loop must go on."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        logging.getLogger("ntkdiag").warning(text)


def _checked(writers: Writer | Sequence[Writer]) -> tuple[Writer, ...]:
    """The writers as a tuple; refused when one of them cannot write."""
    listed = tuple(writers) if isinstance(writers, Sequence) else (writers,)
    for writer in listed:
        # A class has the method, too, and is no writer: it has to be called first.
        is_class = isinstance(writer, type)
        if callable(getattr(writer, "write", None)) and not is_class:
            continue
        raise errors.InvalidInputError(
            argument="writers=...",
            expected="objects with a method write(step, values)",
            got=f"the class {writer.__name__}" if is_class else f"a {type(writer).__name__}",
            do="ntkdiag.monitor has JsonLines(path), Terminal() and InMemory().",
        )
    return listed
