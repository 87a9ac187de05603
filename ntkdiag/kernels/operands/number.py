"""Scalar arguments: checked when their value is known, let through when traced."""

from typing import TypeAlias

import jax
import numpy as np

from ntkdiag.kernels.operands.operand import is_concrete, refuse

Number: TypeAlias = float | int | np.number | jax.Array


def require_positive(value: Number, call: str, name: str, *, many: bool = False) -> None:
    """Refuse a number that is not above zero.

    Cost: none.

    Args:
        value: The argument.
        call: The public call, for the message.
        name: The argument's name, for the message.
        many: Whether it may be an array, all of whose entries are meant then.

    Raises:
        InvalidInputError: When it is zero, negative or NaN, or not one number.
    """
    require_number(value, call, name, many)
    if is_concrete(value) and not np.all(np.asarray(value) > 0):
        refuse(call, expected=f"a positive `{name}`", got=f"{value}", do="Its units stand in the docstring.")


def require_at_least_zero(value: Number, call: str, name: str, *, many: bool = False) -> None:
    """Refuse a negative number.

    Cost: none.

    Args:
        value: The argument.
        call: The public call, for the message.
        name: The argument's name, for the message.
        many: As for `require_positive`.

    Raises:
        InvalidInputError: When it is negative or NaN, or not one number.
    """
    require_number(value, call, name, many)
    if is_concrete(value) and not np.all(np.asarray(value) >= 0):
        refuse(call, expected=f"a non-negative `{name}`", got=f"{value}", do="Its units stand in the docstring.")


def require_number(value: Number, call: str, name: str, many: bool = False) -> None:
    """Refuse what is not one number: a schedule, a string, an array; arguments as of `require_positive`."""
    shape = getattr(value, "shape", None) if not isinstance(value, bool | int | float) else ()
    if shape is None or (shape and not many):
        refuse(
            call,
            expected=f"one number `{name}`",
            got=f"shape {tuple(shape)}" if shape else f"a {type(value).__name__}",
            do="Pass schedule(step) for a schedule." if callable(value) else "Call it once for each number.",
        )
