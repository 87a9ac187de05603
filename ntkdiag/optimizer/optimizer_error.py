"""Faults of an optimizer that is being read, told apart from our own."""

import functools
from collections.abc import Callable
from typing import TypeVar

from jaxtyping import PyTree

Update = Callable[..., tuple[PyTree, PyTree]]

T = TypeVar("T")


class OptimizerError(Exception):
    """An optimizer cannot be read, for something that its `update` does or raises."""


def guarded(function: Callable[..., T]) -> Callable[..., T]:
    """`update` or `init`, whose own exceptions are an `OptimizerError` that says what they were."""

    @functools.wraps(function)
    def call(*args: PyTree, **kwargs: object) -> T:
        try:
            return function(*args, **kwargs)
        except OptimizerError:
            raise
        except Exception as error:  # whatever an unknown optimizer does under differentiation
            lines = str(error).strip().splitlines() or [""]
            raise OptimizerError(f"{type(error).__name__}: {lines[0]}") from error

    return call
