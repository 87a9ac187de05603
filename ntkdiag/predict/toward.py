"""What a ridge pulls the parameters to: where training started, or zero.

A ridge adds (ridge / 2D) ||theta - anchor||^2 to the loss. With the anchor theta_0 ("start") a
kernel is all one needs. Weight decay in training has the anchor zero: then theta_0 itself decays,
and the outputs change by J theta_0, which no kernel knows. An `NTKOperator` knows its parameters
and computes it.
"""

from typing import Literal, TypeAlias

from ntkdiag import errors

Toward: TypeAlias = Literal["start", "zero"]


def require_toward(toward: Toward) -> None:
    """Refuse what is neither of the two.

    Raises:
        InvalidInputError: When it is something else.
    """
    if toward not in ("start", "zero"):
        raise errors.InvalidInputError(
            expected='`toward` "start" or "zero"',
            got=repr(toward),
            do="Weight decay pulls to zero, ridge regression to the start.",
        )


def refuse_zero(toward: Toward) -> None:
    """Refuse a pull to zero beside a kernel that is an array.

    Raises:
        InvalidInputError: When the ridge is to pull to zero, or to something else than the start.
    """
    require_toward(toward)
    if toward == "zero":
        raise errors.InvalidInputError(
            expected='`toward` "start" beside a kernel that is an array, which does not know the '
            "parameters",
            got=repr(toward),
            do='Pass NTKOperator(f, params, x), which does, and takes "zero".',
        )
