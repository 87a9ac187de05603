"""Every exception ntkdiag raises, the one shape their messages have, and the call they name.

A message says four things: the call, what was expected, what came, what to do. The call is set in one place, by
the decorator `public` on every public function; where public functions call each other, it is the outermost, the
one the user wrote.
"""

import contextvars
import dataclasses
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# The public call under way: what writes it, and its arguments. It is put into words only when it is needed.
_under_way: contextvars.ContextVar[tuple[Callable[..., str], tuple, dict] | None]
_under_way = contextvars.ContextVar("ntkdiag_call", default=None)


class NtkdiagError(Exception):
    """Base class: catch this to catch everything ntkdiag raises on purpose.

    Args:
        text: The whole message, where it is not put together from the following.
        expected: What was expected.
        got: What came.
        do: What to do about it: whole sentences.
        argument: The argument at fault as one would write it (``"memory=..."``), where the call alone does not show it.
        call: The call in code form, where it is another one than the public call under way.
    """

    def __init__(
        self,
        text: str = "",
        *,
        expected: str = "",
        got: str = "",
        do: str = "",
        argument: str = "",
        call: str = "",
    ):
        if expected:
            text = f"{call or current_call(argument)}: expected {expected}; got {got}. {do}"
        super().__init__(text)


class InvalidInputError(NtkdiagError, ValueError):
    """An argument has the wrong shape, dtype, range or content."""


class StructureError(NtkdiagError, ValueError):
    """Two parameter trees, or a tree and a model, do not have the same structure, shapes or dtypes."""


class UnsupportedModelError(NtkdiagError, TypeError):
    """No adapter knows this object, or the model cannot be differentiated as asked."""


class ExamplesInteractError(NtkdiagError, ValueError):
    """The output for one example depends on the other examples of the batch."""


class CheckpointError(NtkdiagError, ValueError):
    """A checkpoint is missing, unfinished, corrupt, or not of a known format."""


class MemoryBudgetError(NtkdiagError, ValueError):
    """The work cannot be done within the memory budget, however it is split."""


class MissingDependencyError(NtkdiagError, ImportError):
    """An optional library is needed for this call and is not installed."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function or method: errors raised while it runs name this call, unless it runs inside another."""
    return _named(function, _writer(function))


def called(call: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same for a function that is handed to the user, which is called in another way than it is defined."""
    return lambda function: _named(function, lambda *args, **kwargs: call)


def _named(function: Callable[P, R], written: Callable[..., str]) -> Callable[P, R]:
    @functools.wraps(function)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        if _under_way.get() is not None:
            return function(*args, **kwargs)
        token = _under_way.set((written, args, kwargs))
        try:
            return function(*args, **kwargs)
        finally:
            _under_way.reset(token)

    return named


def current_call(argument: str = "") -> str:
    """The public call under way in code form, with an argument at its end, such as ``ntk(f, params, x, memory=...)``."""
    under_way = _under_way.get()
    if under_way is None:
        return argument or "ntkdiag"
    written, args, kwargs = under_way
    call = written(*args, **kwargs)
    if not argument:
        return call
    inside = call[:-1]
    separator = "" if inside.endswith("(") else ", "
    return f"{inside}{separator}{argument})"


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn the user: the warning points at the line outside ntkdiag that led here."""
    package = os.path.dirname(__file__) + os.sep
    frame = sys._getframe(1)
    level = 2  # what `warnings.warn` calls the frame that called this function
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


def _writer(function: Callable[..., Any]) -> Callable[..., str]:
    """What writes a call of a function: the required arguments by name, and the optional positional ones it was given."""
    signature = inspect.signature(function)
    *_, owner, name = ("", *function.__qualname__.split("."))
    if name == "__post_init__":
        return _write_construction
    is_method = bool(owner) and "<locals>" not in owner
    if is_method:
        name = owner if name == "__init__" else f"{owner}.{name}"

    def written(*args: Any, **kwargs: Any) -> str:
        shown = []
        for position, (parameter, kind) in enumerate(signature.parameters.items()):
            if is_method and position == 0:
                continue
            value = args[position] if position < len(args) else kwargs.get(parameter)
            if kind.kind is kind.POSITIONAL_OR_KEYWORD:
                if kind.default is kind.empty or value is not None:
                    shown.append(parameter)
            elif kind.kind is kind.KEYWORD_ONLY and kind.default is kind.empty:
                shown.append(f"{parameter}=...")
        return f"{name}({', '.join(shown)})"

    return written


def _write_construction(instance: Any) -> str:
    """The construction of a dataclass: the values that are not its defaults."""
    shown = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value is not field.default:
            shown.append(f"{field.name}={value!r}")
    return f"{type(instance).__name__}({', '.join(shown)})"
