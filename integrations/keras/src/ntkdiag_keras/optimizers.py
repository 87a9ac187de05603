"""A Keras optimizer as one of Optax, so that ntkdiag reads from it what the margin depends on.

Nothing is translated: `update` calls the optimizer's own `stateless_apply` with gradient,
parameters and variables handed in, and ntkdiag differentiates that. Rates, schedules, bias
corrections and weight decay are those of the next step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import optax
from jaxtyping import PyTree

from ntkdiag_keras.variables import flat, nested

_OPTIMIZERS = keras.optimizers
# Those that answer each number of a gradient by itself, compared with dense computations.
_KNOWN = (
    _OPTIMIZERS.SGD,
    _OPTIMIZERS.Adam,
    _OPTIMIZERS.AdamW,
    _OPTIMIZERS.RMSprop,
    _OPTIMIZERS.Adagrad,
)
_EMPTY_AT_FIRST = (_OPTIMIZERS.Adam, _OPTIMIZERS.RMSprop)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer inside one that scales the loss, which undoes that before."""
    if isinstance(optimizer, _OPTIMIZERS.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def objection(optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> str:
    """Why there is no margin, as a sentence; empty where there is one."""
    name = type(optimizer).__name__
    clips = []
    for setting in ("clipnorm", "global_clipnorm", "clipvalue"):
        if getattr(optimizer, setting):
            clips.append(f"{setting}={getattr(optimizer, setting)}")
    rate = optimizer._learning_rate
    if type(optimizer) not in _KNOWN:
        known = ", ".join(kind.__name__ for kind in _KNOWN)
        return f"{name} is none of the optimizers that are read: {known}."
    if clips:
        return f"{name} has {clips[0]}, and whether a step is clipped is not known outside of it."
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        return f"{name} overwrites the weights with their averages (ema_overwrite_frequency)."
    if not isinstance(rate, keras.Variable | _OPTIMIZERS.schedules.LearningRateSchedule):
        return f"The learning rate of {name} is a function of nothing, which is not seen to change."
    if any(variable.constraint is not None for variable in variables):
        return "Weights have constraints, which act beside the optimizer."
    return ""


def as_optax(
    optimizer: keras.optimizers.Optimizer, paths: list[str], why_not: str = ""
) -> optax.GradientTransformation:
    """The optimizer as one of Optax.

    Args:
        optimizer: Built, and no `LossScaleOptimizer`.
        paths: Paths of the parameters, in the order of the variables that it was built with.
        why_not: What `objection` says; the margin is NaN then.

    Returns:
        Its state is the list of values of `optimizer.variables`.
    """

    def init(params: PyTree) -> list[Any]:
        return state_of(optimizer)

    def update(updates: PyTree, state: Any, params: Any = None) -> tuple[PyTree, Any]:
        if why_not:
            raise NotImplementedError(why_not)
        gradients = flat(updates)
        weights = flat(params)
        factor, state = _whole_step(optimizer, state)
        new_weights, new_state = optimizer.stateless_apply(
            state, [factor * gradients[path] for path in paths], [weights[path] for path in paths]
        )
        changes = {}
        for path, new in zip(paths, new_weights, strict=True):
            changes[path] = new - weights[path]
        return nested(changes), new_state

    return optax.GradientTransformation(init, update)


def state_of(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The values of the variables of an optimizer."""
    return [variable.value for variable in optimizer.variables]


def _whole_step(
    optimizer: keras.optimizers.Optimizer, state: list[jax.Array]
) -> tuple[Any, list[jax.Array]]:
    """The state before the last micro-step of a step, and what a gradient is multiplied by.

    The other micro-steps count as if their gradients were zero, and the factor makes up for them.
    """
    factor = optimizer.loss_scale_factor or 1.0
    n = optimizer.gradient_accumulation_steps or 1
    accumulators = getattr(optimizer, "_accumulated_gradients", [])
    accumulator_ids = {id(variable) for variable in accumulators}
    at_last = []
    for variable, value in zip(optimizer.variables, state, strict=True):
        if variable is optimizer._iterations:
            # Second moments are zero before the first step, and say nothing about it.
            is_first = (value < n) & isinstance(optimizer, _EMPTY_AT_FIRST)
            factor = factor * jnp.where(is_first, jnp.nan, 1.0)
            value = value - value % n + n - 1
        if id(variable) in accumulator_ids:
            value = jnp.zeros_like(value)
        at_last.append(value)
    return factor * n, at_last
