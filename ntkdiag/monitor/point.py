"""A point of training: what there is between two steps, and all that a measurement reads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from ntkdiag import errors

if TYPE_CHECKING:
    import optax


class Point(NamedTuple):
    """Parameters and what belongs to them, in trees as the optimizer holds them."""

    params: PyTree  # the parameters, or all variables of the model
    opt_state: PyTree = None  # the state of the optimizer; None where it is not at hand
    gradient: PyTree = None  # the last one that the optimizer got; None takes that of the probe
    # Path -> array of what moves beside the parameters, such as running statistics.
    model_state: Mapping[str, PyTree] = {}
    extra_args: Mapping[str, PyTree] = {}  # what else the optimizer gets


def after_update(params: PyTree, update: PyTree) -> PyTree:
    """Parameters after an update, by the operations of Optax, so that XLA does them once."""

    def move(param: Any, change: Any) -> Any:
        if param is None or change is None:
            return param
        return jnp.asarray(param + change).astype(jnp.asarray(param).dtype)

    return jax.tree.map(move, params, update, is_leaf=lambda node: node is None)


def moves_parameters(opt_state: PyTree) -> Bool[Array, ""] | None:
    """Whether the step that led to a state moved the parameters; None where every step does."""

    def is_multi_steps(node: object) -> bool:
        return type(node).__name__ == "MultiStepsState"

    for node in jax.tree.leaves(opt_state, is_leaf=is_multi_steps):
        if is_multi_steps(node):
            return node.mini_step == 0
    return None


def as_optimizer(optimizer: object) -> "optax.GradientTransformationExtraArgs":
    """An optimizer of Optax that takes any arguments, refused where it is something else."""
    import optax

    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if not isinstance(optimizer, optax.GradientTransformation):
        raise errors.InvalidInputError(
            expected="an optimizer of Optax",
            got=f"a {type(optimizer).__name__}",
            do="Wrap the whole optimizer: ntkdiag.watch(optax.adamw(1e-3), fn, train=(x, y), "
            'loss="cross_entropy").',
        )
    return optax.with_extra_args_support(optimizer)


def traceable(value: PyTree) -> PyTree:
    """An extra argument of the optimizer; a number as an array, to be compiled for all numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return jnp.asarray(value) if is_number else value
