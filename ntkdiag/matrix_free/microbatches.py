"""Products with the Jacobian of a batch, one microbatch at a time.

The examples are cut into b microbatches `[b size ...]`, and a loop of the compiled program goes
over them: its memory is that of one. Forward products (J step) stack what the microbatches give;
backward products (J^T v) add it up. The last microbatch is filled up with copies of the last
example; forward products drop their rows at the end, backward products meet zero cotangents there.

    outputs       f(params, x)        stacked     [n ...]
    tangents      J step              stacked     [n ...]
    cotangents    J^T v               summed      a tree like the parameters
    gram          J^T J step          summed      a tree like the parameters

All bodies of these loops go through `channels_last`: on a CPU convolutions in a loop are slow else.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag.jaxtools.cpu import channels_last
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.linearization.taylor import linearization, pushforward

Function: TypeAlias = Callable[[PyTree, PyTree], jax.Array]  # f(params, x)


def split(tree: PyTree, n: int, size: int) -> PyTree:
    """Cut the example axis into microbatches, `[n ...] -> [b size ...]`, the last one filled up."""
    # With copies of a real example: a norm at zero has no derivative.
    count = -(-n // size)  # rounded up
    return jax.tree.map(lambda leaf: _cut(leaf, count, size, mode="edge"), tree)


def outputs(f: Function, params: PyTree, batches: PyTree, n: int) -> Float[Array, "n *o"]:
    """f(params, x) for every example."""

    def evaluate(x: PyTree) -> jax.Array:
        return channels_last(f)(params, x)

    return _joined(jax.lax.map(evaluate, batches), n)


def tangents(
    f: Function, params: PyTree, batches: PyTree, step: PyTree, n: int
) -> tuple[Float[Array, "n *o"], Float[Array, "n *o"]]:
    """f(params, x) and J(x) step for every example."""

    def push(params: PyTree, step: PyTree, x: PyTree) -> tuple[jax.Array, jax.Array]:
        return pushforward(lambda p: f(p, x), params, step)

    def evaluate(x: PyTree) -> tuple[jax.Array, jax.Array]:
        return channels_last(push)(params, step, x)

    values, changes = jax.lax.map(evaluate, batches)
    return _joined(values, n), _joined(changes, n)


def cotangents(f: Function, params: PyTree, batches: PyTree, v: Float[Array, "n *o"]) -> PyTree:
    """J^T v, a tree like the parameters, summed in float32 at least."""

    def pull(x: PyTree, cotangent: jax.Array) -> PyTree:
        y, back = jax.vjp(lambda p: f(p, x), params)
        (pulled,) = back(cotangent.astype(y.dtype))
        return pulled

    return _summed(pull, params, batches, v)


def gram(f: Function, params: PyTree, batches: PyTree, step: PyTree, n: int) -> PyTree:
    """J^T J step: the sum of J_b^T J_b step over the microbatches, in one sweep."""
    size = jax.tree.leaves(batches)[0].shape[1]

    def product(x: PyTree, is_example: jax.Array) -> PyTree:
        y, push, pull = linearization(lambda p: f(p, x), params)
        # Copies that only fill up the microbatch change too: their part must not be pulled back.
        keep = is_example.reshape(size, *[1] * (y.ndim - 1))  # [size] -> [size 1 ... 1]
        change = jnp.where(keep, push(step), 0)
        return pull(change.astype(y.dtype))

    is_example = jnp.ones(n, bool)  # `_summed` continues it by False
    return _summed(product, params, batches, is_example)


def _summed(
    part: Callable[[PyTree, jax.Array], PyTree], params: PyTree, batches: PyTree, rows: jax.Array
) -> PyTree:
    """The sum of `part(x, rows)` over microbatches, with rows `[n ...]` continued by zeros."""
    count, size = jax.tree.leaves(batches)[0].shape[:2]
    zero = jax.tree.map(lambda p: jnp.zeros(p.shape, at_least_float32(p.dtype)), params)
    rows_of_batches = _cut(rows, count, size, mode="constant")  # [b size ...]

    def add(total: PyTree, microbatch: tuple[PyTree, jax.Array]) -> tuple[PyTree, None]:
        x, rows = microbatch
        return jax.tree.map(jnp.add, total, channels_last(part)(x, rows)), None

    total, _ = jax.lax.scan(add, zero, (batches, rows_of_batches))
    return total


def _cut(leaf: jax.Array, count: int, size: int, *, mode: str) -> jax.Array:
    """`[n ...] -> [count size ...]`, filled up at the end as `jnp.pad` does in a mode."""
    missing = count * size - leaf.shape[0]
    widths = [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)  # the example axis alone
    padded = jnp.pad(leaf, widths, mode=mode)
    return padded.reshape(count, size, *leaf.shape[1:])


def _joined(rows: Float[Array, "b size *o"], n: int) -> Float[Array, "n *o"]:
    """`[b size ...] -> [n ...]`, without what the last microbatch was filled up with."""
    return rows.reshape(-1, *rows.shape[2:])[:n]
