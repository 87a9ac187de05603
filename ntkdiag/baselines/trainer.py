"""One training loop for the network and its linearizations: same optimizer, same batches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag._jax import compiler_options
from ntkdiag.baselines.training_data import Data
from ntkdiag.engine.jacobian.channels_last import channels_last


def train(
    f: Callable[..., Any],
    params: Any,
    optimizer: Any,
    data: Data,
    order: Any,
    marks: Sequence[int],
    state: Any = None,
) -> Iterator[tuple[Any, Any]]:
    """Train by an Optax optimizer and stop by at marks.

    Cost: one forward and backward pass over a batch per step.

    Args:
        f: `f(params, x)`.
        params: Where to begin.
        optimizer: An Optax transformation.
        data: The data.
        order: `[steps size]` indices of the examples of every step, or `[1 n]` for the same in all.
        marks: Ascending numbers of steps, counted from `params`.
        state: Optimizer state to go on from; None for a fresh one.

    Yields:
        Parameters and optimizer state at every mark.
    """
    order = jnp.asarray(order)
    state = optimizer.init(params) if state is None else state

    def step(index: Any, carry: tuple[Any, Any], order: Any, x: Any, y: Any) -> tuple[Any, Any]:
        params, state = carry
        rows = order[index % order.shape[0]]
        batch, labels = jax.tree.map(lambda leaf: leaf[rows], (x, y))
        gradient = channels_last(jax.grad(lambda p: data.loss(f(p, batch), labels)))(params)
        updates, state = optimizer.update(gradient, state, params)
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates), state

    def run(carry: Any, first: Any, last: Any, order: Any, x: Any, y: Any) -> Any:
        return jax.lax.fori_loop(first, last, lambda i, c: step(i, c, order, x, y), carry)

    advance = jax.jit(run, compiler_options=compiler_options(reduces=True) or None)
    carry, done = (params, state), 0
    for mark in marks:
        carry = advance(carry, done, mark, order, data.x, data.y)
        done = mark
        yield carry


def log_spaced(steps: int, count: int = 12) -> list[int]:
    """0, 1, ... to `steps`, spaced evenly in the logarithm.

    Cost: none.

    Args:
        steps: The last one.
        count: About how many.

    Returns:
        Ascending integers.
    """
    if steps == 0:
        return [0]
    ratio = steps ** (1.0 / max(count - 2, 1))
    return sorted({0, steps, *(round(ratio**k) for k in range(count - 1))} & set(range(steps + 1)))
