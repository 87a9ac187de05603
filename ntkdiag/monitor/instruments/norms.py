"""Norms of the gradient, of the update and of the parameters, by layer and in all; and the loss."""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.context import Context
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Rows
from ntkdiag.monitor.instruments.layers import Layers
from ntkdiag.monitor.products import Products


class Norms(Instrument):
    """||gradient||, ||update|| and ||parameters||, and how the gradient lies to that of the loss.

    A layer is a leaf of the parameters, or a slice of one that f scans over. The update is the one
    that the optimizer would make next with the gradient at hand.

    Gives `layer_gradient`, `layer_update` and `layer_parameter`, `[L]` each, `gradient_norm`,
    `update_norm` and `parameter_norm`; ||update|| / ||parameters||, NaN of zero parameters:
    `layer_update_ratio` `[L]` and `update_ratio`; the `loss` of the probe, where one was named, and
    `batch_loss`, what was handed to the optimizer as `value=`; 1 for layers with NaN or infinity,
    `layer_gradient_not_finite` and `layer_parameter_not_finite`, `[L]` each.
    """

    name: ClassVar[str] = "norms"

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """Norms of what is at hand."""
        layers, gradient = context.layers, context.gradient
        numbers = norms(layers, context.params, gradient, context.update)
        for name in ("layer_parameter", "layer_gradient"):
            if name in numbers:
                is_broken = ~jnp.isfinite(numbers[name].value)
                numbers[f"{name}_not_finite"] = Estimate.exact(is_broken.astype(jnp.float32))
        numbers["batch_loss"] = Estimate.exact(context.batch_loss)
        if context.probe.has_loss:
            numbers["loss"] = Estimate.exact(context.loss_of(context.outputs))
        return numbers, rows


def norms(layers: Layers, params: PyTree, gradient: PyTree, update: PyTree) -> Estimates:
    """Norms by layer and in all, exact; None for a tree that is not at hand."""
    found: dict[str, Float[Array, ...]] = {}
    for name, tree in {"gradient": gradient, "update": update, "parameter": params}.items():
        if tree is not None:
            squares = layers.sums_of_squares(tree)
            found[f"layer_{name}"] = jnp.sqrt(squares)
            found[f"{name}_norm"] = jnp.sqrt(squares.sum())
    if params is not None and update is not None:
        found["layer_update_ratio"] = _ratio(found["layer_update"], found["layer_parameter"])
        found["update_ratio"] = _ratio(found["update_norm"], found["parameter_norm"])
    return {name: Estimate.exact(norm) for name, norm in found.items()}


def _ratio(updates: Float[Array, "*L"], params: Float[Array, "*L"]) -> Float[Array, "*L"]:
    """One norm over the other; NaN where parameters are zero, as a bias is at first."""
    return jnp.where(params > 0.0, updates / jnp.where(params > 0.0, params, 1.0), jnp.nan)
