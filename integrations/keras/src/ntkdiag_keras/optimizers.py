"""A Keras optimizer as the one of Optax that makes the same updates, which ntkdiag reads.

The rate of a schedule, or one that a callback sets, stands in the state beside the moments. The
epsilon of Adam is that of Keras up to the bias correction.
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import optax
from jaxtyping import PyTree

from ntkdiag_keras.variables import nested

_OPTIMIZERS = keras.optimizers
# Those that have a counterpart, compared with dense computations.
_KNOWN = (
    _OPTIMIZERS.SGD,
    _OPTIMIZERS.Adam,
    _OPTIMIZERS.AdamW,
    _OPTIMIZERS.RMSprop,
    _OPTIMIZERS.Adagrad,
)


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
    if getattr(optimizer, "amsgrad", False) or getattr(optimizer, "centered", False):
        return f"{name} has amsgrad=True or centered=True, which has no counterpart in Optax."
    if clips:
        return f"{name} has {clips[0]}, and whether a step is clipped is not known outside of it."
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        return f"{name} overwrites the weights with their averages (ema_overwrite_frequency)."
    if not isinstance(rate, keras.Variable | _OPTIMIZERS.schedules.LearningRateSchedule):
        return f"The learning rate of {name} is a function of nothing, which is not seen to change."
    if any(variable.constraint is not None for variable in variables):
        return "Weights have constraints, which act beside the optimizer."
    return ""


def as_optax(optimizer: keras.optimizers.Optimizer, why_not: str = "") -> Any:
    """The optimizer of Optax.

    Args:
        optimizer: Built, and no `LossScaleOptimizer`.
        why_not: What `objection` says; the margin is NaN then.

    Returns:
        Its state is what `state_of` returns.
    """
    if why_not:
        return optax.GradientTransformation(_unknown_state, _unknown_update)
    decay = optimizer.weight_decay or 0.0

    def make(learning_rate: Any) -> optax.GradientTransformation:
        if isinstance(optimizer, _OPTIMIZERS.SGD):
            momentum = optimizer.momentum or None
            bare = optax.sgd(learning_rate, momentum, nesterov=optimizer.nesterov)
        elif isinstance(optimizer, _OPTIMIZERS.Adam):
            averages = (optimizer.beta_1, optimizer.beta_2)
            bare = optax.adam(learning_rate, *averages, eps=optimizer.epsilon)
        elif isinstance(optimizer, _OPTIMIZERS.RMSprop):
            momentum = optimizer.momentum or None
            bare = optax.rmsprop(
                learning_rate, optimizer.rho, eps=optimizer.epsilon, momentum=momentum
            )
        else:
            bare = optax.adagrad(learning_rate, eps=optimizer.epsilon)
        if not decay:
            return bare
        return optax.chain(bare, optax.add_decayed_weights(-decay * learning_rate))

    return optax.inject_hyperparams(make)(learning_rate=0.0)


def state_of(
    optimizer: keras.optimizers.Optimizer,
    transform: optax.GradientTransformation,
    params: dict[str, jax.Array],
) -> PyTree:
    """The state of the optimizer of Optax; `params` are by path, in the order of Keras."""
    state = transform.init(nested(params))
    if isinstance(state, dict):  # of what is not known
        return state
    rate = jnp.asarray(optimizer.learning_rate, jnp.float32)

    def tree(variables: Any, factor: Any = 1.0) -> PyTree:
        values = (factor * variable.value for variable in variables)
        return nested(dict(zip(params, values, strict=True)))

    buffers: dict[str, PyTree] = {"count": jnp.asarray(optimizer.iterations, jnp.int32)}
    if isinstance(optimizer, _OPTIMIZERS.Adam):
        buffers["mu"] = tree(optimizer._momentums)
        buffers["nu"] = tree(optimizer._velocities)
    elif isinstance(optimizer, _OPTIMIZERS.RMSprop):
        buffers["nu"] = tree(optimizer._velocities)
        if optimizer.momentum:
            buffers["trace"] = tree(optimizer._momentums, -1.0)
    elif isinstance(optimizer, _OPTIMIZERS.Adagrad):
        buffers["sum_of_squares"] = tree(optimizer._accumulators)
    elif optimizer.momentum:
        # Keras has the rate in its momentum.
        buffers["trace"] = tree(optimizer.momentums, -1.0 / jnp.where(rate == 0, 1.0, rate))
    return _with_fields(state, {**buffers, "hyperparams": {"learning_rate": rate}})


def _with_fields(state: Any, fields: dict[str, PyTree]) -> Any:
    """A state with other values in the fields of these names, wherever they are."""
    if isinstance(state, tuple) and not hasattr(state, "_fields"):
        return tuple(_with_fields(part, fields) for part in state)
    if not isinstance(state, tuple):
        return state
    values = {}
    for name, value in state._asdict().items():
        values[name] = fields[name] if name in fields else _with_fields(value, fields)
    return type(state)(**values)


def _unknown_state(params: PyTree) -> dict[str, jax.Array]:
    """A state in no class of Optax, which ntkdiag refuses to read."""
    del params
    return {"unknown": jnp.zeros(1)}


def _unknown_update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
    """An update that is not known."""
    del params
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), updates), state
