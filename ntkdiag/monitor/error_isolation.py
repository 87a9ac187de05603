"""Keeps the faults of a measurement, or of a writer, away from the training loop."""

import contextlib
import logging
import reprlib
import warnings
from collections.abc import Iterator
from typing import Any, cast

import jax

from ntkdiag import errors


def warn(text: str) -> None:
    """Warn without raising, even where warnings are errors."""
    try:
        errors.warn(text, RuntimeWarning)
    except Exception:  # RuntimeWarning, or whatever a user's own `warnings.showwarning` raises
        say(text)


def say(text: str) -> None:
    """One line on standard error, or where the program logs to."""
    logging.getLogger("ntkdiag").warning(text)


def described(error: BaseException) -> str:
    """An exception in words, even if its own text raises."""
    try:
        text = str(error).rstrip(".")
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class FailureNotice:
    """Warns once of what could not be measured."""

    def __init__(self) -> None:
        self.is_given = False

    def give(self, call: str, step: object, error: BaseException) -> None:
        """Warn of a step, None where its number is not known, unless a warning was given."""
        which = "a step" if step is None else f"step {reprlib.repr(step)}"
        self.give_reason(call, f"{which} could not be measured: {described(error)}")

    def give_reason(self, call: str, reason: str) -> None:
        """Warn with a sentence, unless a warning was given."""
        if not self.is_given:
            self.is_given = True
            warn(f"{call}: {reason}. Later failures are not reported; training continues.")


@contextlib.contextmanager
def without_debugging_switches() -> Iterator[None]:
    """Switch off what users switch on to find faults in their own code."""
    with (
        jax.debug_nans(False),
        jax.transfer_guard("allow"),
        jax.numpy_rank_promotion("allow"),
        warnings_as_warnings(),
    ):
        yield


def warnings_are_errors() -> bool:
    """Whether `python -W error`, or a filter like it, is in force: for all threads."""
    return any(filter_[0] == "error" for filter_ in warnings.filters)


@contextlib.contextmanager
def warnings_as_warnings() -> Iterator[None]:
    """Show the warnings that a filter turns into errors, which would end the training."""
    if not warnings_are_errors():
        yield  # nothing is touched: filters are those of all threads
        return
    with warnings.catch_warnings():  # puts the filters back at the end
        filters = cast(list[tuple[Any, ...]], warnings.filters)
        for index, (action, *rest) in enumerate(filters):
            if action == "error":
                filters[index] = ("default", *rest)
        yield
