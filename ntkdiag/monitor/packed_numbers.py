"""The numbers of a watch without data in two arrays: in all, and by layer.

ntk_in_all [k]      ntk_by_layer [m L]
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from ntkdiag.monitor.instruments.layers import Layers
from ntkdiag.monitor.watch_state import PackedState

IN_ALL: tuple[str, ...] = (
    "gradient_norm",
    "update_norm",
    "parameter_norm",
    "update_ratio",
    "learning_rate",
    "optimizer_status",
    "optimizer_residual",
    "batch_loss",
    "not_finite_step",
    "not_finite_steps",
)
BY_LAYER: tuple[str, ...] = (
    "layer_gradient",
    "layer_update",
    "layer_parameter",
    "layer_update_ratio",
    "layer_gradient_not_finite",
    "layer_parameter_not_finite",
)


def blank(layers: Layers) -> dict[str, Array]:
    """Both arrays before the first measurement, NaN."""
    return {
        "ntk_in_all": jnp.full(len(IN_ALL), jnp.nan, jnp.float32),
        "ntk_by_layer": jnp.full((len(BY_LAYER), len(layers.names)), jnp.nan, jnp.float32),
    }


def packed(numbers: Mapping[str, Array]) -> dict[str, Array]:
    """Both arrays, of numbers by name."""
    in_all = jnp.stack([jnp.asarray(numbers[name], jnp.float32) for name in IN_ALL])
    by_layer = jnp.stack([jnp.asarray(numbers[name], jnp.float32) for name in BY_LAYER])
    return {"ntk_in_all": in_all, "ntk_by_layer": by_layer}


def unpacked(state: PackedState) -> dict[str, Array]:
    """Numbers by name, of the state that holds both arrays."""
    numbers = dict(zip(IN_ALL, state.ntk_in_all, strict=True))
    return numbers | dict(zip(BY_LAYER, state.ntk_by_layer, strict=True))
