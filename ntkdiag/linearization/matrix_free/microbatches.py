"""Products with the Jacobian of a batch, one microbatch at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _compat
from ntkdiag.linearization.pushforward import linearization, pushforward
from ntkdiag.tangents.channels_last import channels_last

Function = Callable[[Any, Any], jax.Array]


def split(tree: Any, n: int, size: int) -> Any:
    """Cut the example axis into microbatches; the last one is filled up with copies of the last example.

    Copies of a real example are safe where zeros are not: a norm at zero has no derivative.

    Cost: one copy where n is no multiple of the size.

    Args:
        tree: Arrays `[n ...]`.
        n: Number of examples.
        size: Of a microbatch.

    Returns:
        Arrays `[b size ...]`.
    """
    count = -(-n // size)

    def cut(leaf: jax.Array) -> jax.Array:
        padded = jnp.pad(leaf, [(0, count * size - n)] + [(0, 0)] * (leaf.ndim - 1), mode="edge")
        return padded.reshape(count, size, *leaf.shape[1:])

    return jax.tree.map(cut, tree)


def tangents(f: Function, params: Any, batches: Any, step: Any, n: int) -> tuple[jax.Array, jax.Array]:
    """f(params, x) and J(x) step for every example.

    Cost: one `jax.jvp`, about two forward passes; memory of one microbatch.

    Args:
        f: `f(params, x)`.
        params: Where J is taken.
        batches: Examples `[b size ...]`.
        step: A tangent of the parameters.
        n: Number of examples.

    Returns:
        Two arrays `[n ...]`.
    """
    push = channels_last(lambda params, step, x: pushforward(lambda p: f(p, x), params, step))
    both = jax.lax.map(lambda x: push(params, step, x), batches)
    return jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:])[:n], both)


def outputs(f: Function, params: Any, batches: Any, n: int) -> jax.Array:
    """f(params, x) for every example.

    Cost: one forward pass.

    Args:
        f: `f(params, x)`.
        params: The parameters.
        batches: Examples `[b size ...]`.
        n: Number of examples.

    Returns:
        `[n ...]`.
    """
    y = jax.lax.map(lambda x: channels_last(f)(params, x), batches)
    return y.reshape(-1, *y.shape[2:])[:n]


def cotangents(f: Function, params: Any, batches: Any, v: jax.Array) -> Any:
    """J^T v, summed over the microbatches.

    Cost: one forward and one backward pass; memory of one microbatch and of the parameters.

    Args:
        f: `f(params, x)`.
        params: Where J is taken.
        batches: Examples `[b size ...]`.
        v: `[n ...]`, like the outputs.

    Returns:
        A tree like the parameters, summed in float32 at least.
    """

    def pull(x: Any, cotangent: jax.Array) -> Any:
        y, back = jax.vjp(lambda p: f(p, x), params)
        return back(cotangent.astype(y.dtype))[0]

    return _summed(pull, params, batches, v)


def gram(f: Function, params: Any, batches: Any, step: Any, weigh: Callable[[Any, Any], Any], rows: Any) -> Any:
    """sum over microbatches of J_b^T weigh(J_b step, rows_b): J^T J step, or J^T H J step, in one sweep.

    Cost: one `jax.linearize` and its transpose, about four forward passes; memory of one microbatch.

    Args:
        f: `f(params, x)`.
        params: Where J is taken.
        batches: Examples `[b size ...]`.
        step: A tangent of the parameters.
        weigh: From a tangent of the outputs of a microbatch, and its rows, to a cotangent.
        rows: Arrays `[n ...]` handed to `weigh`, or a tree without leaves.

    Returns:
        A tree like the parameters.
    """

    def product(x: Any, part: Any) -> Any:
        y, push, pull = linearization(lambda p: f(p, x), params)
        return pull(weigh(push(step), part).astype(y.dtype))

    return _summed(product, params, batches, rows)


def _summed(part: Callable[[Any, Any], Any], params: Any, batches: Any, rows: Any) -> Any:
    """Add up `part(x, row)` over microbatches; rows beyond the last example are zero."""
    count, size = jax.tree.leaves(batches)[0].shape[:2]

    def cut(leaf: jax.Array) -> jax.Array:
        padded = jnp.pad(leaf, [(0, count * size - leaf.shape[0])] + [(0, 0)] * (leaf.ndim - 1))
        return padded.reshape(count, size, *leaf.shape[1:])

    zero = jax.tree.map(lambda p: jnp.zeros(p.shape, _compat.at_least_float32(p.dtype)), params)
    add = lambda total, xs: (jax.tree.map(jnp.add, total, channels_last(part)(*xs)), None)
    return jax.lax.scan(add, zero, (batches, jax.tree.map(cut, rows)))[0]
