"""`implementation=`: how a kernel is computed, never what it is."""

import enum
import functools
import warnings
from typing import Any

from ntkdiag import errors


class NtkImplementation(enum.IntEnum):
    """How a kernel is computed. Every choice gives the same kernel; the names and numbers are neural-tangents'.

    Attributes:
        AUTO: The cheapest exact way, chosen for each parameter by counting multiply-adds. The default.
        JACOBIAN_CONTRACTION: The Jacobian of every parameter is formed, one example at a time.
        NTK_VECTOR_PRODUCTS: J1 (J2^T v) for every output v of x2, by one backward and one forward derivative: no
            Jacobian and nothing of the engine, N C of these products. Older releases called it `delta_vjp_jvp`, the
            torch.func tutorial "implicit".
        STRUCTURED_DERIVATIVES: Factors of the Jacobian wherever there is a structured form, whatever they cost.
    """

    AUTO = 0
    JACOBIAN_CONTRACTION = 1
    NTK_VECTOR_PRODUCTS = 2
    STRUCTURED_DERIVATIVES = 3


PREFERENCE = {
    NtkImplementation.AUTO: None,
    NtkImplementation.JACOBIAN_CONTRACTION: "dense",
    NtkImplementation.STRUCTURED_DERIVATIVES: "structured",
}


def read_implementation(implementation: Any) -> NtkImplementation:
    """An implementation by enum or number.

    Args:
        implementation: As the user gave it.

    Returns:
        The implementation.

    Raises:
        InvalidInputError: There is none of this number.
    """
    try:
        if isinstance(implementation, bool | str | float):
            raise ValueError
        return NtkImplementation(int(implementation))
    except (TypeError, ValueError) as error:
        raise errors.InvalidInputError(
            expected="an `NtkImplementation` or its number, 0 to 3",
            got=f"implementation={implementation!r}",
            do="Leave it out: AUTO plans for each parameter.",
        ) from error


def note_switches(j_rules: Any, s_rules: Any, fwd: Any) -> None:
    """Warn, once, that neural-tangents' internal switches have nothing to switch here.

    Args:
        j_rules: `_j_rules`, None where it was not given.
        s_rules: `_s_rules`, likewise.
        fwd: `_fwd`, likewise.
    """
    if not (j_rules is None and s_rules is None and fwd is None):
        _warn_about_switches()


@functools.cache
def _warn_about_switches() -> None:
    warnings.warn(
        "_j_rules, _s_rules and _fwd switched internals of neural-tangents; the tangent engine has nothing to switch, "
        "and they are ignored.",
        UserWarning,
        stacklevel=4,
    )
