"""Norms of a step, by layer and in all: what an update is beside the parameters that it moves.

||a||^2 in all = the sum of ||a_l||^2 over layers l,       ratio = ||update|| / ||parameters||
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates
from ntkdiag.monitor.instruments.layers import Layers


def norms_of_step(layers: Layers, params: PyTree, gradient: PyTree, update: PyTree) -> Estimates:
    """Norms of what is at hand, exact; None for a tree that is not."""
    norms: dict[str, Float[Array, ...]] = {}
    for name, tree in {"gradient": gradient, "update": update, "parameter": params}.items():
        if tree is not None:
            squares = layers.sums_of_squares(tree)
            norms[f"layer_{name}"] = jnp.sqrt(squares)
            norms[f"{name}_norm"] = jnp.sqrt(squares.sum())
    if params is not None and update is not None:
        norms["layer_update_ratio"] = _ratio(norms["layer_update"], norms["layer_parameter"])
        norms["update_ratio"] = _ratio(norms["update_norm"], norms["parameter_norm"])
    return {name: Estimate.exact(norm) for name, norm in norms.items()}


def _ratio(updates: Float[Array, "*L"], params: Float[Array, "*L"]) -> Float[Array, "*L"]:
    """One norm over the other; NaN where parameters are zero, as a bias is at first."""
    return jnp.where(params > 0.0, updates / jnp.where(params > 0.0, params, 1.0), jnp.nan)
