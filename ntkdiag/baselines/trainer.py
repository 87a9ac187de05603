"""One training loop for the network and its linearizations: same optimizer, same batches.

The loop runs compiled from one recorded step to the next. Which examples a step sees is looked up
in a table of indices, the same for all models, so that they differ in nothing but the model.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from ntkdiag.baselines.training_data import Data
from ntkdiag.jaxtools.cpu import channels_last, compiler_options


class Position(NamedTuple):
    """Where training stands."""

    params: PyTree  # the parameters
    state: PyTree  # the state of the optimizer


def train(
    f: Callable[..., PyTree],
    params: PyTree,
    optimizer: Any,
    data: Data,
    order: Int[np.ndarray, "steps size"],
    marks: Sequence[int],
    state: PyTree = None,
) -> Iterator[Position]:
    """Train by an Optax optimizer from `params` on, and stop by at `marks`, numbers of steps.

    Row t of `order` holds the examples of step t; a single row is taken in all steps. Without a
    state the optimizer begins anew. Cost: one forward and backward pass over a batch per step.
    """
    rows_of_steps = jnp.asarray(order)
    if state is None:
        state = optimizer.init(params)

    def step(
        index: Int[Array, ""], position: Position, rows_of_steps: Array, x: PyTree, y: PyTree
    ) -> Position:
        # The examples of this step [size]; a table of one row serves all steps.
        rows = rows_of_steps[index % rows_of_steps.shape[0]]
        batch, labels = jax.tree.map(lambda leaf: leaf[rows], (x, y))

        def loss(params: PyTree) -> Array:
            return data.loss(f(params, batch), labels)

        gradient = channels_last(jax.grad(loss))(position.params)
        updates, state = optimizer.update(gradient, position.state, position.params)
        # The parameters keep their dtype, whatever the optimizer computes in.
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), position.params, updates)
        return Position(params, state)

    def steps_from_to(
        position: Position,
        first: Int[Array, ""],
        last: Int[Array, ""],
        rows_of_steps: Array,
        x: PyTree,
        y: PyTree,
    ) -> Position:
        def body(index: Int[Array, ""], position: Position) -> Position:
            return step(index, position, rows_of_steps, x, y)

        return jax.lax.fori_loop(first, last, body, position)

    # One program for all stretches: where they begin and end are arguments of it, and so are data,
    # which would be folded and held twice as constants.
    advance = jax.jit(steps_from_to, compiler_options=compiler_options(reduces=True) or None)
    position = Position(params, state)
    done = 0
    for mark in marks:
        position = advance(position, done, mark, rows_of_steps, data.x, data.y)
        done = mark
        yield position


def log_spaced(steps: int, count: int = 12) -> list[int]:
    """About `count` integers from 0 and 1 to `steps`, ascending, evenly spaced in the logarithm."""
    if steps == 0:
        return [0]
    # 0, then 1, ratio, ratio^2, ... to ratio^(count - 2) = steps.
    ratio = steps ** (1.0 / max(count - 2, 1))
    powers = {round(ratio**k) for k in range(count - 1)}
    return sorted({0, steps} | {power for power in powers if 0 <= power <= steps})
