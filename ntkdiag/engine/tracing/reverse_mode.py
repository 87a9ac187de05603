"""Functions that JAX itself cannot differentiate in reverse mode are refused in so many words.

Tracing factors may fail because of f, or because of us. An ordinary VJP of f tells: where that
fails too, f has no reverse derivative, and JAX's own words say why.
"""

from collections.abc import Sequence
from typing import NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import ClosedJaxpr

# What JAX raises where a derivative does not exist.
REFUSALS = (ValueError, TypeError, NotImplementedError)


def explain(
    closed: ClosedJaxpr, params: Sequence[jax.ShapeDtypeStruct], inputs: PyTree, error: Exception
) -> NoReturn:
    """Say that f, a closed jaxpr, has no reverse derivative, or raise `error` if it has one."""
    jaxpr, consts = jaxprs.open_jaxpr(closed)

    def plain_vjp(params: list, inputs: list) -> tuple:
        def f(*params):
            return jaxprs.eval_jaxpr(jaxpr, consts, *params, *inputs)[0]

        outputs, vjp = jax.vjp(f, *params)
        return vjp(jnp.zeros_like(outputs))

    # No numbers are needed to see whether it can be traced.
    try:
        jax.eval_shape(plain_vjp, params, jax.tree.leaves(inputs))
    except REFUSALS as reason:
        raise errors.UnsupportedModelError(
            call="f(params, x)",
            expected="a function that JAX can differentiate in reverse mode",
            got="JAX's refusal: " + str(reason).splitlines()[0].rstrip("."),
            do="Write loops as lax.scan or with a fixed number of steps, and give other operations "
            "a jax.custom_vjp.",
        ) from reason
    raise error
