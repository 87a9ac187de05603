"""What an optimizer would do at the next step of training, from its state and a gradient.

A checkpoint lies between two steps. The next one is taken on trial: `update` is called as training
would call it.

1. Where gradients are accumulated, the step is as many micro-steps as it takes.
2. The gradient of the trial is that of a probe, and not the one that training will meet. It is a
   small part of second moments; before the first step it is all of them, and the margin is that of
   a first step on the probe.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ntkdiag import _jax
from ntkdiag.optimizer.linearized_update import accumulator_paths, floats_of
from ntkdiag.optimizer.optimizer_error import guarded
from ntkdiag.optimizer.saved_state import Optimizer

# Micro-steps after which no update is to be expected any more.
_MOST_MICRO_STEPS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class TrialStep:
    """A step of an optimizer, in trees as it holds them."""

    params: PyTree  # the parameters
    gradient: PyTree  # what the optimizer got
    state: PyTree  # before the step, or before the micro-step that ends it
    update: PyTree  # what is added to the parameters
    state_after: PyTree  # after the step
    number: int  # calls of `update` before, as the state counts them
    update_norm: float  # the size of the update


@dataclasses.dataclass(frozen=True, eq=False)
class TrialSteps:
    """Steps of one optimizer on trial, at one checkpoint after the other; compiled once."""

    optimizer: Optimizer

    def take(self, state: PyTree, params: PyTree, gradient: PyTree) -> TrialStep:
        """The step that these three lead to."""
        accumulates = bool(accumulator_paths(state))
        made, after, norm = self._update(gradient, state, params)
        for _ in range(_MOST_MICRO_STEPS if accumulates else 0):
            # A step ends with an update, which is zero where the rate is: then the count is back.
            if norm > 0.0 or _largest_count(after, ".mini_step") == 0:
                break
            state = after
            made, after, norm = self._update(gradient, state, params)
        n_calls = 1 + _largest_count(state, ".mini_step")
        n_steps = _largest_count(state, ".count")
        return TrialStep(params, gradient, state, made, after, n_calls * n_steps, float(norm))

    @functools.cached_property
    def _update(self) -> Callable[..., tuple[PyTree, PyTree, Array]]:
        def update(gradient: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree, Array]:
            made, after = guarded(self.optimizer.update)(gradient, state, params)
            return made, after, _norm(made)

        return jax.jit(update)


def _largest_count(state: PyTree, ending: str) -> int:
    """The largest of the counters with such a path in a state; 0 where there are none."""
    counts = [0]
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jax.tree_util.keystr(path).endswith(ending):
            counts.append(int(leaf))
    return max(counts)


def _norm(tree: PyTree) -> Array:
    """The size of an update."""
    squares = []
    for leaf in floats_of(tree)[0].values():
        squares.append(jnp.sum(jnp.square(leaf.astype(_jax.at_least_float32(leaf.dtype)))))
    return jnp.sqrt(sum(squares, start=jnp.zeros(())))
