"""The first-order Taylor model of a network."""

from collections.abc import Callable
from typing import Any

from ntkdiag.kernels import arguments
from ntkdiag.linearization.pushforward import pushforward
from ntkdiag.linearization.tangent import add, as_arrays, tangent


def linearize(f: Callable[..., Any], params: Any) -> Callable[..., Any]:
    """f_lin(p, x) = f(params, x) + J(x) (p - params), with J the Jacobian of f at `params`.

    Linear in p, not in x. Training it by gradient descent is training with the kernel J J^T held fixed.
    Cost of a call: one `jax.jvp`, about two forward passes; compile it with `jax.jit` like f itself.
    Source: Lee et al. 2019 (arXiv 1902.06720), eq. 2.

    Args:
        f: `f(params, x, **kwargs)`, any pytree of outputs. Integer outputs are returned as f gives them.
        params: Where to expand; integer leaves are held at their value.

    Returns:
        `f_lin(p, x, **kwargs)`. Each call raises `StructureError` when p differs from `params` in a path, shape or
        dtype, and `InvalidInputError` when an integer leaf has another value.

    Example:
        >>> import jax.numpy as jnp
        >>> square = linearize(lambda p, x: p**2 * x, jnp.array(3.0))
        >>> float(square(jnp.array(4.0), jnp.array(1.0)))
        15.0
    """
    arguments.check_function(f, "linearize(f, params)")
    base = as_arrays(params)

    def f_lin(p: Any, x: Any, **kwargs: Any) -> Any:
        step = tangent(base, as_arrays(p), "linearize(f, params)(p, x)")
        output, change = pushforward(lambda q: f(q, x, **kwargs), base, step)
        return add(output, change)

    return f_lin
