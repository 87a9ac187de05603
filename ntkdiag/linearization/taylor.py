"""Taylor models of any degree."""

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.linearization.pushforward import pushforward
from ntkdiag.linearization.tangent import as_arrays, tangent


def taylor_expand(f: Callable[..., Any], params: Any, degree: int) -> Callable[..., Any]:
    """f_k(p, x) = sum_{j <= degree} (1/j!) d^j/dt^j f(params + t (p - params), x) at t = 0.

    Degree 0 is f(params, x), degree 1 is `linearize`, degree 2 is the quadratic model. For ReLU networks the second
    and higher derivatives are 0 almost everywhere, so they miss what happens when a kink is crossed.
    Cost of a call: nested `jax.jvp`, about 2^degree forward passes. `jax.experimental.jet` would need fewer, but
    fails on ReLU, max-pooling, scan, cond and remat (JAX 0.10 and 0.12), so it is not used.

    Args:
        f: `f(params, x, **kwargs)`, any pytree of outputs. Integer outputs are returned as f gives them.
        params: Where to expand; integer leaves are held at their value.
        degree: Highest order kept, 0 or more.

    Returns:
        `f_k(p, x, **kwargs)`, which checks p as `linearize` does.

    Raises:
        InvalidInputError: When the degree is not an integer of 0 or more.
    """
    degree = require_degree(degree)
    base = as_arrays(params)

    def f_taylor(p: Any, x: Any, **kwargs: Any) -> Any:
        step = tangent(base, as_arrays(p), f"taylor_expand(f, params, {degree})(p, x)")
        return sum_of_series(ray_derivatives(lambda q: f(q, x, **kwargs), base, step, degree))

    return f_taylor


def ray_derivatives(f: Callable[[Any], Any], base: Any, step: Any, degree: int) -> tuple[Any, ...]:
    """The derivatives of t -> f(base + t step) at t = 0.

    Cost: about 2^degree evaluations of f.

    Args:
        f: A function of the parameters.
        base: The parameters.
        step: A tangent of them, float0 at integer leaves.
        degree: Highest order.

    Returns:
        Orders 0 to `degree`, each like the output of f; float0 for integer outputs from order 1 on.
    """

    def extend(series: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
        def longer(q: Any) -> tuple[Any, ...]:
            values, changes = pushforward(series, q, step)
            return (*values, changes[-1])

        return longer

    series = lambda q: (f(q),)
    for _ in range(degree):
        series = extend(series)
    return series(base)


def sum_of_series(series: tuple[Any, ...]) -> Any:
    """sum_j derivatives_j / j!.

    Cost: one pass over the outputs for each order.

    Args:
        series: What `ray_derivatives` returns.

    Returns:
        The Taylor polynomial; integer outputs as they are.
    """
    return jax.tree.map(_sum, series[0], *series[1:])


def _sum(value: jax.Array, *derivatives: Any) -> jax.Array:
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return value
    return value + sum(d / math.factorial(order) for order, d in enumerate(derivatives, start=1))


def require_degree(degree: int) -> int:
    """Check the degree of a Taylor model.

    Cost: none.

    Args:
        degree: The argument.

    Returns:
        The degree as an integer.

    Raises:
        InvalidInputError: When it is not an integer of 0 or more.
    """
    try:
        number = operator.index(degree)
    except TypeError:
        number = -1
    if number < 0 or isinstance(degree, bool):
        raise errors.InvalidInputError(
            errors.message(
                "taylor_expand(f, params, degree)",
                expected="an integer degree of 0 or more",
                got=repr(degree),
                do="Use 1 for the linear model, 2 for the quadratic one.",
            )
        )
    return number
