"""Trace of the kernel, leaf by leaf."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag._compat import compiler_options
from ntkdiag.adapters import leaves_by_path

CHUNK = 8  # examples whose gradients are held at the same time


def leaf_traces(f: Callable[..., Any], params: Any, x: Any) -> dict[str, float]:
    """Compute tr Theta_l = sum_{i,c} ||d f_c(x_i) / d theta_l||^2 for every leaf l; they sum to tr Theta.

    Exact because Theta = sum_l J_l J_l^T. Each example is evaluated by itself.
    Cost: N C VJPs; memory for the gradients of 8 examples.

    Args:
        f: `f(params, x)`, outputs `[N ...]`, examples independent.
        params: Parameters.
        x: `[N ...]`, or a tree of such arrays.

    Returns:
        Trace by path, in leaf order.
    """
    squares = jax.jit(functools.partial(_squares, f), compiler_options=compiler_options(reduces=True))
    traces = squares(params, x)
    return {path: float(trace) for path, trace in leaves_by_path(traces).items()}


def _squares(f: Callable[..., Any], params: Any, x: Any) -> Any:
    def one(example: Any) -> Any:
        def outputs(p: Any) -> jax.Array:
            return f(p, jax.tree.map(lambda leaf: leaf[None], example)).ravel()

        value, vjp = jax.vjp(outputs, params)
        rows = jax.vmap(lambda cotangent: vjp(cotangent)[0])(jnp.eye(value.size, dtype=value.dtype))
        return jax.tree.map(lambda row: jnp.sum(row.astype(jnp.promote_types(row.dtype, jnp.float32)) ** 2), rows)

    per_example = jax.lax.map(one, x, batch_size=CHUNK)
    return jax.tree.map(jnp.sum, per_example)
