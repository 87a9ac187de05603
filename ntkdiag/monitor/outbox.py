"""From a measurement to every writer, without ever raising into the training loop."""

import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag import errors
from ntkdiag.monitor.writers import Values, Writer

_PATIENCE = 10


class Outbox:
    """Hands measurements to writers.

    A writer that raises is named in a warning and tried again; after ten failures in a row it is muted.

    Args:
        writers: The writers.

    Raises:
        InvalidInputError: When something in `writers` has no `write` method.
    """

    def __init__(self, writers: Sequence[Writer]) -> None:
        self.writers = _checked(writers)
        self.call = errors.current_call()
        self._started: set[int] = set()
        self._last = ""
        self._failures = [0] * len(self.writers)  # in a row
        # Callbacks of a compiled step arrive on XLA's threads.
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def send(self, step: int, values: Values, record: Mapping[str, Any]) -> None:
        """Write one measurement everywhere, unless it is the last one again; the convention record goes first, once."""
        with self._lock:
            # optax.MultiSteps updates the inner transform at every micro-step and keeps only the last: the same
            # measurement comes again.
            sent = repr((int(step), values))
            if sent == self._last:
                return
            self._last = sent
            for index in range(len(self.writers)):
                if index in self._started or self._try(index, "start", dict(record)):
                    self._started.add(index)
                    self._try(index, "write", int(step), dict(values))

    def close(self) -> None:
        """Close the writers that can be closed."""
        with self._lock:
            for index in range(len(self.writers)):
                self._try(index, "close")

    def _try(self, index: int, method: str, *args: Any) -> bool:
        """Call a method of a writer, if it has one and is not muted; whether all went well."""
        call = getattr(self.writers[index], method, None)
        if self._failures[index] >= _PATIENCE:
            return False
        try:
            if call is not None:
                call(*args)
        except (Exception, SystemExit) as error:  # rich exits at a closed pipe
            self._failed(index, method, error)
            return False
        self._failures[index] = 0
        return True

    def _failed(self, index: int, method: str, error: BaseException) -> None:
        self._failures[index] += 1
        failed = self._failures[index]
        if failed not in (1, _PATIENCE):
            return
        goes_on = (
            "It is tried again at the next one"
            if failed < _PATIENCE
            else f"It is muted after {failed} in a row"
        )
        warn(
            f"{self.call}: the writer {type(self.writers[index]).__name__} failed in {method}() with "
            f"{type(error).__name__}: {error}. This measurement is lost to it. {goes_on}; training goes on."
        )


def warn(text: str) -> None:
    """Warn without raising, even where warnings are errors: the training loop must go on."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        logging.getLogger("ntkdiag").warning(text)


def _checked(writers: Any) -> tuple[Writer, ...]:
    listed = tuple(writers) if isinstance(writers, list | tuple) else (writers,)
    for writer in listed:
        if not _is_writer(writer):
            name = (
                f"the class {writer.__name__}"
                if isinstance(writer, type)
                else f"a {type(writer).__name__}"
            )
            raise errors.InvalidInputError(
                argument="writers=...",
                expected="objects with a method write(step, values)",
                got=name,
                do="ntkdiag.monitor has JsonLines(path), Terminal() and InMemory().",
            )
    return listed


def _is_writer(candidate: Any) -> bool:
    return callable(getattr(candidate, "write", None)) and not isinstance(candidate, type)
