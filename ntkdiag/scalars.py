"""Arguments that are one number: checked when their value is known, let through when traced."""

import math
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.jaxtools.tracing import Tracer

AnyArray: TypeAlias = Array | np.ndarray  # NumPy's keep float64 outside x64 mode
Number: TypeAlias = float | int | np.number | jax.Array  # an argument, which may be traced
Scalar: TypeAlias = Float[Array, ""]
AnyScalar: TypeAlias = Scalar | np.number  # a result: NumPy's where it kept float64


def is_concrete(value: object) -> bool:
    """Whether a value is known now, that is outside `jax.jit`, `jax.vmap` and `jax.grad`."""
    return not isinstance(value, Tracer)


def nan_if_unknown(value: Number | None) -> float:
    """A number as a float: NaN for one that is not known."""
    return math.nan if value is None else float(value)


def require_positive(value: Number, name: str) -> None:
    """Refuse a number that is not above zero."""
    require_number(value, name)
    if is_concrete(value) and not np.all(np.asarray(value) > 0):
        raise errors.InvalidInputError(
            expected=f"a positive `{name}`",
            got=f"{value}",
            do="Its units stand in the docstring.",
        )


def require_at_least_zero(value: Number | np.ndarray, name: str, *, many: bool = False) -> None:
    """Refuse a negative number; with `many`, an array with a negative entry."""
    require_number(value, name, many=many)
    if is_concrete(value) and not np.all(np.asarray(value) >= 0):
        raise errors.InvalidInputError(
            expected=f"a non-negative `{name}`",
            got=f"{value}",
            do="Its units stand in the docstring.",
        )


def require_in_range(value: Number, name: str, least: float, below: float, do: str) -> None:
    """Refuse a number outside [least, below)."""
    require_number(value, name)
    if is_concrete(value) and not least <= float(value) < below:
        raise errors.InvalidInputError(
            expected=f"`{name}` in [{least:g}, {below:g})",
            got=f"{value}",
            do=do,
        )


def require_number(value: Number | np.ndarray, name: str, *, many: bool = False) -> None:
    """Refuse what is not one number: a schedule, a string, or (unless `many`) an array."""
    if isinstance(value, bool | int | float):
        return
    # Arrays, traced values and the numbers of NumPy have a shape; what else has none is no number.
    shape = getattr(value, "shape", None)
    if shape is None:
        got = f"a {type(value).__name__}"
    elif shape and not many:
        got = f"shape {tuple(shape)}"
    else:
        return
    do = "Call it once for each number."
    if callable(value):
        do = "Pass schedule(step) for a schedule."
    raise errors.InvalidInputError(expected=f"one number `{name}`", got=got, do=do)
