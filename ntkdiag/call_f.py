"""Calls of the user's f: any exception becomes one error, whichever function calls it.

Called with the user's parameters on the user's examples, f mostly fails where these do not fit. The
exception of f stays the cause of the refusal.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors

Kwargs: TypeAlias = Mapping[str, Any]

_MOST_LETTERS = 400  # of an exception's text
_DO = "Check that x has the shape f takes, and that params are those of f."
_DO_ABOUT_KEYWORDS = (
    "ntkdiag passes keyword arguments that it does not know to f: check their spelling."
)
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_DO_ABOUT_VALUES = (
    "f is traced, as by jax.jit: use jax.numpy in it, and jnp.where or jax.lax.cond in place of if."
)


@contextlib.contextmanager
def running() -> Iterator[None]:
    """A context in which only f runs or is traced."""
    try:
        yield
    except errors.NtkdiagError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise refusal(error) from error


def outputs_of(f: Callable[..., PyTree], params: PyTree, x: PyTree, kwargs: Kwargs) -> PyTree:
    """f(params, x, **kwargs), refused where f does not run; Python numbers in it become arrays."""
    with running():
        return jax.tree.map(_as_array, f(params, x, **kwargs))


def _as_array(output: object) -> object:
    """A number of Python as an array, which alone can be differentiated; all else as it is."""
    return jnp.asarray(output) if isinstance(output, bool | int | float | complex) else output


def refusal(error: Exception, of: str = "", do: str = "") -> errors.InvalidInputError:
    """The error about the arguments for an exception inside f; `of` names f if needed."""
    remedies = []
    if "unexpected keyword argument" in str(error):
        remedies.append(_DO_ABOUT_KEYWORDS)
    names = missing_arguments(error)
    if names:
        call_kwargs = ", ".join(f'"{name}": ...' for name in names)
        remedies.append(f"Pass functionalize(f, params, call_kwargs={{{call_kwargs}}}).")
    if isinstance(error, _NEEDS_VALUES):
        remedies.append(_DO_ABOUT_VALUES)
    return errors.InvalidInputError(
        expected="f(params, x) to run",
        got=of + in_words(error),
        do=do or " ".join(remedies) or _DO,
    )


def missing_arguments(error: Exception) -> list[str]:
    """The arguments that a call lacked, as Python names them; none for any other error."""
    if not isinstance(error, TypeError):
        return []
    # "... missing 2 required positional arguments: 'a' and 'b'", or "keyword-only arguments"
    _, is_missing, names = str(error).partition(" required ")
    return re.findall(r"'(\w+)'", names) if is_missing else []


def in_words(error: BaseException) -> str:
    """Type and text of an exception; of a long text its first paragraph."""
    text = str(error).strip() or "no message"
    paragraph = " ".join(text.split("\n\n")[0].split()).removesuffix(".")
    if len(paragraph) > _MOST_LETTERS:
        paragraph = paragraph[:_MOST_LETTERS] + " ..."
    return f"{type(error).__name__}: {paragraph}"
