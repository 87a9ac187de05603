"""What an optimizer did at one step of training, and what the optimizer is."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import jax
from jaxtyping import Array, Bool, PyTree

from ntkdiag import errors
from ntkdiag.descent import Descent
from ntkdiag.nouns import pytree

if TYPE_CHECKING:
    import optax

# update(gradient, state, params, **extra_args) -> (update, state after)
UpdateRule: TypeAlias = Callable[..., tuple[PyTree, PyTree]]


@pytree(
    "params",
    "gradient",
    "update",
    "state",
    "state_after",
    "model_state",
    "extra_args",
    "descent",
)
@dataclasses.dataclass(frozen=True, eq=False)
class TrainingStep:
    """One step, in trees as the optimizer holds them; None for what is not at hand.

    Attributes:
        params: The parameters before the update, or all variables of the model.
        gradient: Of the loss, as the optimizer got it.
        update: What it adds to the parameters.
        state: Its state before the step.
        state_after: Its state after the step, where that before is not at hand.
        model_state: Path -> array of what moves beside the parameters, such as running statistics.
        extra_args: What else the optimizer got.
        descent: The update rule at this step as it was stated, where it is not read.
    """

    params: PyTree
    gradient: PyTree = None
    update: PyTree = None
    state: PyTree = None
    state_after: PyTree = None
    model_state: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)
    extra_args: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)
    descent: Descent | None = None


def moves_parameters(state_after: PyTree) -> Bool[Array, ""] | None:
    """Whether a step moved the parameters; None where every step does.

    `optax.MultiSteps` gathers the gradients of some micro-steps before it does.
    """

    def is_multi_steps(node: object) -> bool:
        return type(node).__name__ == "MultiStepsState"

    for node in jax.tree.leaves(state_after, is_leaf=is_multi_steps):
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


def update_rule_of(optimizer: object) -> UpdateRule:
    """The `update` of an optimizer of Optax."""
    return as_optimizer(optimizer).update
