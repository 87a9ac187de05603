"""J v, also of functions that have a reverse-mode derivative only.

`jax.custom_vjp` gives a function a backward pass and takes away its forward mode. The backward pass
u -> J^T u is linear in u, so where JAX can transpose it, its transpose is v -> J v.

    forward mode there         jax.jvp                   v -> J v
    custom_vjp somewhere       jax.vjp, then its vjp     u -> J^T u, v -> J v
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools import jaxprs

Function: TypeAlias = Callable[[PyTree], PyTree]


def pushforward(f: Function, base: PyTree, step: PyTree) -> tuple[PyTree, PyTree]:
    """f(base) and J step, for a function of the parameters and a tangent of them."""
    if _has_backward_rule(f, base):
        output, push, _ = _by_transposing(f, base)
        return output, push(step)
    return jax.jvp(f, (base,), (step,))


def linearization(f: Function, base: PyTree) -> tuple[PyTree, Function, Function]:
    """f(base), v -> J v and u -> J^T u."""
    if _has_backward_rule(f, base):
        return _by_transposing(f, base)
    # One linearization serves both directions: its transpose is J^T.
    output, push = jax.linearize(f, base)
    transposed = jax.linear_transpose(push, base)

    def pull(cotangent: PyTree) -> PyTree:
        return transposed(cotangent)[0]

    return output, push, pull


def _has_backward_rule(f: Function, base: PyTree) -> bool:
    """Whether there is a `custom_vjp` in f; JAX itself says so only when a program is compiled."""
    return jaxprs.contains(jax.make_jaxpr(f)(base), "custom_vjp_call")


def _by_transposing(f: Function, base: PyTree) -> tuple[PyTree, Function, Function]:
    """As `linearization`, from the backward pass and its transpose."""
    # Errors of a rule whose backward pass is only traced later are raised in `push`.
    output, backward = jax.vjp(f, base)

    def pull(cotangent: PyTree) -> PyTree:
        return backward(cotangent)[0]

    def push(step: PyTree) -> PyTree:
        # J^T u is linear in u, so that its derivative is the same at any u. `jax.vjp` also takes a
        # backward pass that has a rule by `custom_vjp` itself; `jax.linear_transpose` does not.
        # Whatever the rule is made of may refuse this, in words of its own.
        try:
            _, transposed = jax.vjp(pull, jax.tree.map(jnp.zeros_like, output))
            return transposed(step)[0]
        except Exception as error:
            raise errors.UnsupportedModelError(
                call="J v of f at params",
                expected="a function with forward-mode derivatives, or rules by jax.custom_vjp "
                "that can be transposed",
                got=f"{type(error).__name__}: {error}",
                do="Write the rule as jax.custom_jvp; in diffrax choose "
                "adjoint=diffrax.DirectAdjoint(). `ntk` takes it.",
            ) from error

    return output, push, pull
