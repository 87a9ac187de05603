"""The largest singular value of each matrix of weights, and its stable rank."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax
from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.instruments.layers import Layers
from ntkdiag.monitor.instruments.traced_program import trained_layers
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext


@dataclasses.dataclass(frozen=True)
class WeightSpectra(Instrument):
    """||W||_2 and ||W||_F^2 / ||W||_2^2 of every layer that is a matrix.

    All axes of an array but the last are taken together, so a convolution [h w i o] is a matrix of
    h w i rows. A layer is that of `LayerNorms`: of what a scan stacks each slice is one. NaN where
    a layer is a vector; where modules are layers, of which there are more than 512 otherwise, the
    largest singular value in them, and the smallest stable rank.

    Gives `layer_spectral_norm` and `layer_stable_rank`, `[L]` each, exact up to rounding. In no
    tier: name it, `instruments=("economy", "spectral", WeightSpectra())`.

    Cost: no passes; one eigendecomposition of the smaller Gram matrix of each array.
    """

    name: ClassVar[str] = "weight_spectra"

    def forwards(self, layout: ProbeLayout) -> float:
        """No passes."""
        return 0.0

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """Both numbers of all layers."""
        layers = context.once(trained_layers)
        largest, squares = [], []
        for leaf, axis in zip(jax.tree.leaves(context.params), layers.stacked, strict=True):
            matrices = _matrices(leaf, axis)
            largest.append(_largest_singular_values(matrices))
            squares.append(jnp.square(jnp.abs(matrices)).sum(axis=(1, 2)))
        norms = jnp.concatenate(largest)
        ranks = jnp.concatenate(squares) / jnp.square(norms)
        numbers = {
            "layer_spectral_norm": _largest_of_each(layers, norms),
            "layer_stable_rank": -_largest_of_each(layers, -ranks),
        }
        return {name: Estimate.exact(values) for name, values in numbers.items()}, memory


def _matrices(leaf: Array, axis: int | None) -> Float[Array, "s i o"]:
    """The matrices of an array, one for each layer stacked in it."""
    stacked = leaf[None] if axis is None else jnp.moveaxis(leaf, axis, 0)
    wide = stacked.astype(_jax.at_least_float32(stacked.dtype))
    return wide.reshape(wide.shape[0], -1, wide.shape[-1] if wide.ndim > 1 else 1)


def _largest_singular_values(matrices: Float[Array, "s i o"]) -> Float[Array, " s"]:
    """Of each matrix; NaN of a vector."""
    _, rows, columns = matrices.shape
    if min(rows, columns) == 1:
        return jnp.full(matrices.shape[0], jnp.nan, matrices.dtype)
    transposed = jnp.swapaxes(matrices, 1, 2).conj()
    gram = matrices @ transposed if rows < columns else transposed @ matrices
    return jnp.sqrt(jnp.linalg.eigvalsh(gram)[:, -1])


def _largest_of_each(layers: Layers, of_slices: Float[Array, " s"]) -> Float[Array, " L"]:
    """The largest number of the slices of each layer; NaN where it has none."""
    known = jnp.where(jnp.isnan(of_slices), -jnp.inf, of_slices)
    lowest = jnp.full(len(layers.names), -jnp.inf, of_slices.dtype)
    largest = lowest.at[np.asarray(layers.places)].max(known)
    return jnp.where(jnp.isneginf(largest), jnp.nan, largest)
