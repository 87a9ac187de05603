"""What an optimizer did at one step of training, and what the optimizer is."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from ntkdiag import errors
from ntkdiag.descent import Descent
from ntkdiag.optimizer.optimizer_error import Update as UpdateRule
from ntkdiag.optimizer.undone_step import Kept, kept_of, undone, without
from ntkdiag.pytree_dataclass import pytree

if TYPE_CHECKING:
    import optax


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
    """One step, in trees as the optimizer holds them; None for what is not at hand."""

    params: PyTree  # the parameters before the update, or all variables of the model
    gradient: PyTree = None  # of the loss, as the optimizer got it
    update: PyTree = None  # what it adds to the parameters
    state: PyTree = None  # its state before the step
    state_after: PyTree = None  # its state after the step
    # Path -> array of what moves beside the parameters, such as running statistics.
    model_state: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)
    # What else the optimizer got.
    extra_args: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)
    # The update rule at this step as it was stated, where it is not read.
    descent: Descent | None = None


@pytree(
    "params_after",
    "gradient",
    "state_after",
    "kept",
    "kept_update",
    "model_state",
    "extra_args",
)
@dataclasses.dataclass(frozen=True, eq=False)
class StepAfter:
    """One step by what there is after it: nothing of it is overwritten while it is measured."""

    params_after: PyTree  # the parameters after the update
    gradient: PyTree  # as in `TrainingStep`
    state_after: PyTree  # as in `TrainingStep`
    # What the state after the step does not tell of that before, by path.
    kept: Mapping[str, PyTree]
    kept_update: PyTree  # the update, where it cannot be recovered
    model_state: Mapping[str, PyTree]  # as in `TrainingStep`
    extra_args: Mapping[str, PyTree]  # as in `TrainingStep`

    @staticmethod
    def of(step: TrainingStep) -> "StepAfter":
        """What there is after a step."""
        kept = kept_of(step.state, step.update)
        return StepAfter(
            params_after=_moved(step.params, step.update),
            gradient=step.gradient,
            state_after=step.state_after,
            kept=kept.arrays,
            kept_update=kept.update,
            model_state=step.model_state,
            extra_args=step.extra_args,
        )

    def without_state(self, update: PyTree) -> "StepAfter":
        """The same with the update that was made, and nothing of the state of the optimizer."""
        return dataclasses.replace(
            self, state_after=None, kept={}, kept_update=update, extra_args={}
        )

    def undone(self, update: UpdateRule) -> TrainingStep:
        """The step, with state and parameters before it."""
        if self.state_after is None:
            params = without(self.params_after, self.kept_update)
            return TrainingStep(params, gradient=self.gradient, update=self.kept_update)
        kept = Kept(dict(self.kept), self.kept_update)
        step = undone(
            update, self.gradient, self.state_after, self.params_after, kept, self.extra_args
        )
        return TrainingStep(
            step.params,
            gradient=self.gradient,
            update=step.update,
            state=step.state,
            state_after=self.state_after,
            model_state=self.model_state,
            extra_args=self.extra_args,
        )


def _moved(params: PyTree, update: PyTree) -> PyTree:
    """Parameters after an update, by the operations of Optax, so that XLA does them once."""

    def move(param: Any, made: Any) -> Any:
        if param is None or made is None:
            return param
        return jnp.asarray(param + made).astype(jnp.asarray(param).dtype)

    return jax.tree.map(move, params, update, is_leaf=lambda node: node is None)


def moves_parameters(state_after: PyTree) -> Bool[Array, ""] | None:
    """Whether a step moved the parameters; None where every step does."""

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


def traceable(value: PyTree) -> PyTree:
    """An extra argument of the optimizer; a number as an array, to be compiled for all numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return jnp.asarray(value) if is_number else value
