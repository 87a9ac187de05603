"""Functions that JAX itself cannot differentiate in reverse mode are refused in so many words."""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from ntkdiag import _compat, errors


def explain(closed: Any, params: list, inputs: Any, error: Exception) -> NoReturn:
    """Say that f has no reverse derivative, if that is why `error` was raised; otherwise raise it again.

    Cost: tracing an ordinary VJP of f, after a failure only.

    Args:
        closed: f as a jaxpr of flat parameters and flat inputs.
        params: Shapes of the flat parameters.
        inputs: Shapes of the other inputs.
        error: What was raised while factors were traced.

    Raises:
        UnsupportedModelError: The ordinary VJP fails too.
    """
    jaxpr, consts = _compat.open_jaxpr(closed)

    def plain(params, inputs):
        y, vjp = jax.vjp(lambda *p: _compat.eval_jaxpr(jaxpr, consts, *p, *inputs)[0], *params)
        return vjp(jnp.zeros_like(y))

    try:
        jax.eval_shape(plain, params, jax.tree.leaves(inputs))
    except (ValueError, TypeError, NotImplementedError) as reason:
        raise errors.UnsupportedModelError(
            errors.message(
                "f(params, x)",
                expected="a function that JAX can differentiate in reverse mode",
                got="JAX's refusal: " + str(reason).splitlines()[0].rstrip("."),
                do="Write loops as lax.scan or with a fixed number of steps, and give other operations a "
                "jax.custom_vjp.",
            )
        ) from reason
    raise error
