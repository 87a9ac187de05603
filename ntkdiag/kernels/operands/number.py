"""Scalar arguments: checked when their value is known, let through when traced."""

from typing import TypeAlias

import jax
import numpy as np

from ntkdiag.kernels.operands.operand import is_concrete, refuse

Number: TypeAlias = float | int | np.number | jax.Array


def require_positive(value: Number, call: str, name: str) -> None:
    """Refuse a number that is not above zero.

    Cost: none.

    Args:
        value: The argument; an array must be positive throughout.
        call: The public call, for the message.
        name: The argument's name, for the message.

    Raises:
        InvalidInputError: When it is zero, negative or NaN.
    """
    if is_concrete(value) and not np.all(np.asarray(value) > 0):
        refuse(call, expected=f"a positive `{name}`", got=f"{value}", do="Its units stand in the docstring.")


def require_at_least_zero(value: Number, call: str, name: str) -> None:
    """Refuse a negative number.

    Cost: none.

    Args:
        value: The argument; an array must be non-negative throughout.
        call: The public call, for the message.
        name: The argument's name, for the message.

    Raises:
        InvalidInputError: When it is negative or NaN.
    """
    if is_concrete(value) and not np.all(np.asarray(value) >= 0):
        refuse(call, expected=f"a non-negative `{name}`", got=f"{value}", do="Its units stand in the docstring.")
