"""The step of an optimizer from what is there after it: state, parameters, and the gradient.

Inside a compiled step, what reads the state and the parameters *before* the step keeps XLA from
overwriting them, and costs a copy of both at every step. So they are recovered from those after:

1. Momentum and second moments are averages, s' = A s + (what the gradient adds), by element:

       s = s' + (s' - S(s')) / A,

   S the optimizer's own new state, and A its derivative. Averages that others go into, such as
   momentum of scaled gradients, come after these.
2. `update` is called with this state and the gradient: that is the update that was made. It is
   called with the parameters after it, and corrected to first order by its derivative.
3. Parameters before are those after without the update, to rounding.

What a step does not leave a trace of is kept as it was before: counts, other small arrays,
gradients that are being accumulated; and of an optimizer of which nothing is known all of its
state, and the update.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import _jax
from ntkdiag.optimizer.linearized_update import Leaves, floats_of, is_float
from ntkdiag.optimizer.optimizer_error import Update
from ntkdiag.optimizer.state_fields import (
    INDEPENDENT,
    can_be_undone,
    forgotten_paths,
    late_paths,
    state_classes,
)

# Arrays of so few numbers are kept as they were: to copy them costs nothing.
_FEW_NUMBERS = 16


@dataclasses.dataclass(frozen=True)
class UndoneStep:
    """A step as it was made."""

    state: PyTree  # the state of the optimizer before it
    params: PyTree  # the parameters before it, to rounding
    update: PyTree  # what was added to them


@dataclasses.dataclass(frozen=True)
class Kept:
    """What is kept of a step as it is made, as it cannot be recovered."""

    arrays: Leaves  # of the state before it, by their paths
    update: PyTree = None  # the update; None where it can be recovered


def kept_of(state: PyTree, update: PyTree) -> Kept:
    """What is to be kept of a step: of the state before it, and of the update."""
    knows_all = can_be_undone(state)
    forgotten = forgotten_paths(state)
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = jax.tree_util.keystr(path)
        if not hasattr(leaf, "dtype"):
            continue
        is_few = leaf.size <= _FEW_NUMBERS
        if not knows_all or is_few or name in forgotten or not is_float(leaf):
            arrays[name] = leaf
    return Kept(arrays, None if knows_all else update)


def undone(
    update: Update,
    gradient: PyTree,
    state_after: PyTree,
    params_after: PyTree,
    kept: Kept,
    extra_args: Mapping[str, PyTree],
) -> UndoneStep:
    """The step that led to a state and to parameters."""
    state = state_before(update, gradient, state_after, params_after, extra_args, kept.arrays)
    made = kept.update
    if made is None:
        made = _update_made(update, gradient, state, params_after, extra_args)
    return UndoneStep(state, without(params_after, made), made)


def state_before(
    update: Update,
    gradient: PyTree,
    state_after: PyTree,
    params: PyTree,
    extra_args: Mapping[str, PyTree],
    kept: Leaves | None = None,
) -> PyTree:
    """The state before the step that led to one; `kept` is of it, and None where nothing is.

    `params` may be those before or after the step: what they add to momentum is nearly the same.
    """
    if kept is None:
        kept = _counts_before(update, gradient, state_after, params, extra_args)
    after, with_averages = floats_of(state_after)
    after = {path: leaf for path, leaf in after.items() if path not in kept}

    def with_state(averages: Leaves) -> PyTree:
        """The state before, with these averages in it."""
        return _replaced(with_averages(averages), kept)

    def new_averages(averages: Leaves) -> Leaves:
        """What a step makes of them."""
        _, state = update(gradient, with_state(averages), params, **extra_args)
        arrays, _ = floats_of(state)
        return {path: arrays[path] for path in averages}

    before = dict(after)
    for group in _groups(state_after, after):
        directions = {
            path: jnp.ones_like(leaf) if path in group else jnp.zeros_like(leaf)
            for path, leaf in before.items()
        }
        reached, slopes = jax.jvp(new_averages, (before,), (directions,))
        for path in group:
            before[path] = _solved(before[path], after[path], reached[path], slopes[path])
    return with_state(before)


def _counts_before(
    update: Update,
    gradient: PyTree,
    state_after: PyTree,
    params: PyTree,
    extra_args: Mapping[str, PyTree],
) -> Leaves:
    """Counts before a step, which are those after it less what one more step adds."""
    _, later = update(gradient, state_after, params, **extra_args)
    counts = {}
    with_paths = jax.tree_util.tree_leaves_with_path(state_after)
    for (path, leaf), further in zip(with_paths, jax.tree.leaves(later), strict=True):
        if jnp.issubdtype(getattr(leaf, "dtype", np.bool_), jnp.integer):
            counts[jax.tree_util.keystr(path)] = leaf - (further - leaf)
    return counts


def _update_made(
    update: Update,
    gradient: PyTree,
    state: PyTree,
    params_after: PyTree,
    extra_args: Mapping[str, PyTree],
) -> PyTree:
    """The update of a step, from the state before it and the parameters after it."""
    weights, with_weights = floats_of(params_after)
    made, _ = update(gradient, state, params_after, **extra_args)
    updates, with_updates = floats_of(made)

    def made_at(weights: Leaves) -> Leaves:
        """The update at some parameters."""
        made, _ = update(gradient, state, with_weights(weights), **extra_args)
        return floats_of(made)[0]

    def state_at(weights: Leaves) -> Leaves:
        """The new state at some parameters."""
        _, new_state = update(gradient, state, with_weights(weights), **extra_args)
        return floats_of(new_state)[0]

    # Where parameters go into the averages, these are already as the right ones made them.
    if _jax.needs_inputs(state_at, weights):
        return made
    # From the parameters after the step back to those before it.
    back = {path: jnp.zeros_like(leaf) for path, leaf in weights.items()}
    for path, leaf in updates.items():
        back[path] = -leaf.astype(weights[path].dtype)
    _, changes = jax.jvp(made_at, (weights,), (back,))
    return with_updates({path: leaf + changes[path] for path, leaf in updates.items()})


def _groups(state: PyTree, averages: Leaves) -> list[list[str]]:
    """The paths of averages, in the order in which they are solved."""
    if state_classes(state) <= INDEPENDENT:
        return [list(averages)]
    late = late_paths(state)
    groups = [
        [path for path in averages if path not in late],
        [path for path in averages if path in late],
    ]
    # Twice: some second moments are of what is left of the gradient beside momentum.
    return 2 * [group for group in groups if group]


def _solved(leaf: Array, after: Array, reached: Array, slope: Array) -> Array:
    """An average before a step, from the one that a step leads to from here."""
    moves = slope != 0.0  # what the step forgets is nothing to it
    solved = leaf + (after - reached) / jnp.where(moves, slope, 1.0)
    return jnp.where(moves, solved, leaf).astype(leaf.dtype)


def _replaced(tree: PyTree, arrays: Leaves) -> PyTree:
    """A tree with other arrays at some paths."""
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [arrays.get(jax.tree_util.keystr(path), leaf) for path, leaf in with_paths]
    return jax.tree.unflatten(structure, leaves)


def without(params: PyTree, update: PyTree) -> PyTree:
    """Parameters without an update; None stands for what is not trained."""

    def take_back(made: Array | None, param: Any) -> Any:
        if made is None:
            return param
        return (param - made).astype(jnp.asarray(param).dtype)

    return jax.tree.map(take_back, update, params, is_leaf=lambda node: node is None)
