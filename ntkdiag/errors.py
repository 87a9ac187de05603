"""Every exception ntkdiag raises, the one shape their messages have, and the call they name.

A message says four things: the call, what was expected, what came, what to do.

1. The decorator `public` on every public function notes the call while it runs. Where public
   functions call each other the outermost stays noted: it is the one that the user wrote.
2. An error states what was expected, what came and what to do. Only then is the call written out:
   its required arguments by name, and the optional ones that were passed.
3. An out-of-memory error inside a call becomes one of these errors.
"""

import contextvars
import dataclasses
import functools
import inspect
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _PublicCall(NamedTuple):
    """A public call under way: what writes it in code form, and the arguments it was given."""

    write: Callable[..., str]
    args: tuple[object, ...]
    kwargs: dict[str, object]


# The outermost public call that runs now, for each thread (and each asynchronous task) by itself.
_under_way: contextvars.ContextVar[_PublicCall | None] = contextvars.ContextVar(
    "ntkdiag_call", default=None
)

_PACKAGE = os.path.dirname(__file__) + os.sep
# Type checkers at run time stand between a function and its caller with frames of their own.
_TYPE_CHECKERS = ("jaxtyping", "beartype")


class NtkdiagError(Exception):
    """Base class: catch this to catch everything ntkdiag raises on purpose.

    Args:
        text: The whole message, where it is not assembled from the following.
        expected: What was expected.
        got: What came.
        do: What to do about it: whole sentences.
        argument: The argument at fault as one would write it (``"memory=..."``), where the call
            alone does not show it.
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
    """Two parameter trees, or a tree and a model, differ in structure, shapes or dtypes."""


class UnsupportedModelError(NtkdiagError, TypeError):
    """No adapter knows this object, or the model cannot be differentiated as asked."""


class ExamplesInteractError(NtkdiagError, ValueError):
    """The output for one example depends on the other examples of the batch."""


class CheckpointError(NtkdiagError, ValueError):
    """A checkpoint or a run directory is missing, unfinished, corrupt, or of no known format."""


class MemoryBudgetError(NtkdiagError, ValueError):
    """The work cannot be done within the memory budget, however it is split."""


class MissingDependencyError(NtkdiagError, ImportError):
    """An optional library is needed for this call and is not installed."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function or method: errors raised while it runs name this call.

    A call inside another public one is not named: the user did not write it.
    """
    return _named(function, _writer(function))


def called(call: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that the user calls under another name: `call`."""

    def write(*args: object, **kwargs: object) -> str:
        return call

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _named(function, write)

    return decorate


def _named(function: Callable[P, R], write: Callable[..., str]) -> Callable[P, R]:
    """The function, noted as the public call under way while it runs outside of another one."""

    @functools.wraps(function)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        if _under_way.get() is not None:
            return function(*args, **kwargs)
        token = _under_way.set(_PublicCall(write, args, kwargs))
        try:
            return function(*args, **kwargs)
        except Exception as error:
            refused = _out_of_memory(error)
            if refused is None:
                raise
            raise refused from error
        finally:
            _under_way.reset(token)

    return named


def _out_of_memory(error: Exception) -> MemoryBudgetError | None:
    """The error for memory that was refused, to NumPy or to XLA; None for any other exception."""
    # JAX is not imported to look.
    of_xla = type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error)
    if not of_xla and not isinstance(error, MemoryError):
        return None
    reason = str(error).partition("\n")[0] or type(error).__name__
    return MemoryBudgetError(
        expected="memory for all of the call",
        got=reason.removesuffix("."),
        do="Take fewer examples, or run it where there is more memory. Where the call has memory=, "
        "a smaller budget leaves more for the rest.",
    )


def current_call(argument: str = "") -> str:
    """The public call under way in code form, ``ntk(f, params, x)``, an `argument` at its end."""
    under_way = _under_way.get()
    if under_way is None:
        return argument or "ntkdiag"
    call = under_way.write(*under_way.args, **under_way.kwargs)
    if not argument:
        return call
    # Open the closing parenthesis again.
    opened = call.removesuffix(")")
    separator = "" if opened.endswith("(") else ", "
    return f"{opened}{separator}{argument})"


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn the user: the warning points at the line outside ntkdiag that led here."""
    level = 1  # what `warnings.warn` calls the frame of this function
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


def _is_ours(frame: types.FrameType) -> bool:
    """Whether a frame is one of ntkdiag, or of a type checker that stands before its functions."""
    file = frame.f_code.co_filename
    if file.startswith((_PACKAGE, "<@beartype")):  # code that beartype wrote has no module
        return True
    module = str(frame.f_globals.get("__name__", ""))
    root_package, _, _ = module.partition(".")
    return root_package in _TYPE_CHECKERS


def _writer(function: Callable[..., object]) -> Callable[..., str]:
    """What writes a call of a function, from the arguments that it was called with."""
    signature = inspect.signature(function)
    path = function.__qualname__.split(".")
    name = path[-1]
    if name == "__post_init__":
        return _write_construction
    # A method is written with its class; a nested function is not a method.
    owner = path[-2] if len(path) > 1 else "<locals>"
    is_method = owner != "<locals>"
    if is_method:
        name = owner if name == "__init__" else f"{owner}.{name}"

    def write(*args: object, **kwargs: object) -> str:
        called_name = name
        if is_method and path[-1] != "__init__":
            called_name = f"{type(args[0]).__name__}.{path[-1]}"
        shown = []
        for position, parameter in enumerate(signature.parameters.values()):
            if is_method and position == 0:
                continue  # self
            # Arguments by position are shown by name, if they are required or were given. Of the
            # keyword arguments only required ones are: an error names the optional one at fault.
            is_required = parameter.default is parameter.empty
            value = args[position] if position < len(args) else kwargs.get(parameter.name)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                if is_required or value is not None:
                    shown.append(parameter.name)
            elif parameter.kind is parameter.KEYWORD_ONLY and is_required:
                shown.append(f"{parameter.name}=...")
        return f"{called_name}({', '.join(shown)})"

    return write


def _write_construction(instance: object) -> str:
    """The construction of a dataclass: the values that are not its defaults."""
    shown = []
    for field in dataclasses.fields(instance):  # pyright: ignore[reportArgumentType]
        value = getattr(instance, field.name)
        if value is not field.default:
            shown.append(f"{field.name}={value!r}")
    return f"{type(instance).__name__}({', '.join(shown)})"
