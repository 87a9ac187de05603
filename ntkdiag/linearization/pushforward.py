"""J v, also of functions that have a reverse-mode derivative only."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax

from ntkdiag import _compat, errors

Linear = Callable[[Any], Any]


def pushforward(f: Callable[[Any], Any], base: Any, step: Any) -> tuple[Any, Any]:
    """f(base) and J step: by `jax.jvp`, and with a `custom_vjp` on the way as the transpose of its backward pass.

    Cost: one `jax.jvp`, about two forward passes; with a `custom_vjp` about four.

    Args:
        f: A function of the parameters.
        base: Where J is taken.
        step: A tangent of `base`.

    Returns:
        Outputs, and their change.

    Raises:
        UnsupportedModelError: f has a derivative rule that works backward only and cannot be transposed.
    """
    if not _backward_only(f, base):
        return jax.jvp(f, (base,), (step,))
    output, push, _ = _by_transposing(f, base)
    return output, push(step)


def linearization(f: Callable[[Any], Any], base: Any) -> tuple[Any, Linear, Linear]:
    """f(base), v -> J v and u -> J^T u, as `jax.linearize` and its transpose; otherwise as `pushforward`.

    Cost: one `jax.linearize`, about two forward passes.

    Args:
        f: A function of the parameters.
        base: Where J is taken.

    Returns:
        Outputs and the two functions.

    Raises:
        UnsupportedModelError: As `pushforward`.
    """
    if _backward_only(f, base):
        return _by_transposing(f, base)
    output, push = jax.linearize(f, base)
    transposed = jax.linear_transpose(push, base)
    return output, push, lambda cotangent: transposed(cotangent)[0]


def _backward_only(f: Callable[[Any], Any], base: Any) -> bool:
    """Whether there is a `custom_vjp` in f. JAX itself would say so only when a program with one is compiled."""
    return _compat.contains(jax.make_jaxpr(f)(base), "custom_vjp_call")


def _by_transposing(f: Callable[[Any], Any], base: Any) -> tuple[Any, Linear, Linear]:
    output, pull = jax.vjp(f, base)
    backward = lambda cotangent: pull(cotangent)[0]

    def push(step: Any) -> Any:
        try:
            return jax.linear_transpose(backward, output)(step)[0]
        except Exception as found:
            _refuse(found)

    return output, push, backward


def _refuse(error: Exception) -> NoReturn:
    raise errors.UnsupportedModelError(
        errors.message(
            "J v of f at params",
            expected="a function with forward-mode derivatives, or rules by jax.custom_vjp that can be transposed",
            got=f"{type(error).__name__}: {error}",
            do="Write the rule as jax.custom_jvp; in diffrax choose adjoint=diffrax.DirectAdjoint(). `ntk` takes it.",
        )
    ) from error
