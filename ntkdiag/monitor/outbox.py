"""From a measurement to every writer, without ever raising into the training loop."""

import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag import errors
from ntkdiag.monitor.writers import Values, Writer


class Outbox:
    """Hands measurements to writers. A writer that raises is named in one warning and muted from then on.

    Args:
        writers: The writers.
        call: The public call that owns this outbox, for messages.

    Raises:
        InvalidInputError: When something in `writers` has no `write` method.
    """

    def __init__(self, writers: Sequence[Writer], *, call: str) -> None:
        self.writers = _checked(writers, call)
        self.call = call
        self._started = False
        self._last = ""
        self._muted: set[int] = set()
        # Callbacks of a compiled step arrive on XLA's threads.
        self._lock = threading.Lock()

    def send(self, step: int, values: Values, record: Mapping[str, Any]) -> None:
        """Write one measurement everywhere, unless it is the last one again; the convention record goes first, once."""
        with self._lock:
            # optax.MultiSteps updates the inner transform at every micro-step and keeps only the last: the same
            # measurement comes again.
            sent = repr((int(step), values))
            if sent == self._last:
                return
            self._last = sent
            if not self._started:
                self._started = True
                self._each("start", dict(record))
            self._each("write", int(step), dict(values))

    def close(self) -> None:
        """Close the writers that can be closed."""
        with self._lock:
            self._each("close")

    def _each(self, method: str, *args: Any) -> None:
        for index, writer in enumerate(self.writers):
            call = getattr(writer, method, None)
            if call is None or index in self._muted:
                continue
            try:
                call(*args)
            except Exception as error:
                self._muted.add(index)
                warn(
                    f"{self.call}: the writer {type(writer).__name__} failed in {method}() with "
                    f"{type(error).__name__}: {error}. It is muted for the rest of the run; training goes on."
                )


def warn(text: str) -> None:
    """Warn without raising, even where warnings are errors: the training loop must go on."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        logging.getLogger("ntkdiag").warning(text)


def _checked(writers: Any, call: str) -> tuple[Writer, ...]:
    listed = tuple(writers) if isinstance(writers, list | tuple) else (writers,)
    for writer in listed:
        if not _is_writer(writer):
            name = f"the class {writer.__name__}" if isinstance(writer, type) else f"a {type(writer).__name__}"
            raise errors.InvalidInputError(
                errors.message(
                    f"{call}(writers=...)",
                    expected="objects with a method write(step, values)",
                    got=name,
                    do="ntkdiag.monitor has JsonLines(path), Terminal() and Memory().",
                )
            )
    return listed


def _is_writer(candidate: Any) -> bool:
    return callable(getattr(candidate, "write", None)) and not isinstance(candidate, type)
