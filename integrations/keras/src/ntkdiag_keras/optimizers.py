"""A Keras optimizer as the one of Optax that makes the same updates, which ntkdiag reads.

The rate of a schedule, or one that a callback sets, stands in the state beside the moments. The
epsilon of Adam is that of Keras up to the bias correction.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import keras
import optax
from jaxtyping import PyTree

_Adam = keras.optimizers.Adam  # AdamW is one
_KNOWN = (keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW)
_CHANGING_A_STEP = (
    "amsgrad",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "ema_overwrite_frequency",
)


def objection(optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> str:
    """Why there is no margin, as a sentence; empty where there is one."""
    name = type(optimizer).__name__
    if type(optimizer) not in _KNOWN:
        return f"{name} is none of the optimizers that are read: SGD, Adam, AdamW."
    for setting in _CHANGING_A_STEP:
        if getattr(optimizer, setting, None):
            value = getattr(optimizer, setting)
            return f"{name} has {setting}={value}, and its effect is not known outside of a step."
    if any(variable.constraint is not None for variable in variables):
        return "Weights have constraints, which act beside the optimizer."
    return ""


def as_optax(optimizer: keras.optimizers.Optimizer) -> optax.GradientTransformation:
    """An optimizer without objections as one of Optax, whose state is what `state_of` returns."""
    if isinstance(optimizer, _Adam):
        averages = {"b1": optimizer.beta_1, "b2": optimizer.beta_2, "eps": optimizer.epsilon}
        bare = functools.partial(optax.adam, **averages)
    else:
        momentum = optimizer.momentum or None
        bare = functools.partial(optax.sgd, momentum=momentum, nesterov=optimizer.nesterov)

    def make(learning_rate: Any) -> optax.GradientTransformation:
        if not optimizer.weight_decay:
            return bare(learning_rate)
        decay = optax.add_decayed_weights(-optimizer.weight_decay * learning_rate)
        return optax.chain(bare(learning_rate), decay)

    return optax.inject_hyperparams(make)(learning_rate=0.0)


def unknown() -> optax.GradientTransformation:
    """An optimizer with NaN as its updates, and a state that ntkdiag refuses to read."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return jax.tree.map(lambda leaf: leaf * jnp.nan, updates), state

    return optax.GradientTransformation(lambda params: {"unknown": jnp.zeros(1)}, update)


def state_of(
    optimizer: keras.optimizers.Optimizer,
    transform: optax.GradientTransformation,
    params: dict[str, jax.Array],
) -> PyTree:
    """The state of `as_optax(optimizer)`; `params` are by path, in the order of Keras."""
    rate = jnp.asarray(optimizer.learning_rate, jnp.float32)
    count = jnp.asarray(optimizer.iterations, jnp.int32)

    def by_path(variables: list[keras.Variable], factor: Any = 1.0) -> PyTree:
        values = (factor * variable.value for variable in variables)
        return dict(zip(params, values, strict=True))

    fields: dict[str, PyTree] = {}
    if isinstance(optimizer, _Adam):
        moments = {"mu": optimizer._momentums, "nu": optimizer._velocities}
        fields = {"count": count, **{name: by_path(of) for name, of in moments.items()}}
    elif optimizer.momentum:
        # Keras has the rate in its momentum.
        fields = {"trace": by_path(optimizer.momentums, -1.0 / jnp.where(rate == 0, 1.0, rate))}
    state: Any = transform.init(params)
    inner = optax.tree_utils.tree_set(state.inner_state, **fields)
    return state._replace(count=count, hyperparams={"learning_rate": rate}, inner_state=inner)
