"""The arrays of a step in one order, layer by layer, from the trees that the optimizer holds.

Gradient and update may be trees with None for what is not trained, and the parameters a whole
module with functions among its leaves. What all have in common are the paths of their arrays of
floating-point numbers, which name the layers as the measured function names its parameters.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ntkdiag.models.paths import leaves_by_path
from ntkdiag.monitor.instruments.layers import Layers, layers_alone


def arrays_by_path(tree: PyTree) -> dict[str, Array]:
    """Path -> array, of all arrays of floating-point or complex numbers."""
    arrays = {}
    for path, leaf in leaves_by_path(tree).items():
        if jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.inexact):
            arrays[path.removesuffix("/value")] = leaf  # in an NNX State
    # Variables of linen hold their parameters under a name of their own.
    if arrays and all(path.startswith("params/") for path in arrays):
        return {path.removeprefix("params/"): leaf for path, leaf in arrays.items()}
    return arrays


@dataclasses.dataclass(frozen=True)
class ArrayOrder:
    """The arrays that an optimizer was begun with, in their order."""

    paths: tuple[str, ...]  # of the arrays
    layers: Layers  # their layers

    @staticmethod
    def of(params: PyTree) -> "ArrayOrder":
        """The order of the arrays of some parameters, or of a tree like them."""
        arrays = arrays_by_path(params)
        return ArrayOrder(tuple(arrays), layers_alone(arrays))

    def fits(self, tree: PyTree) -> bool:
        """Whether all arrays of a tree are among these."""
        return arrays_by_path(tree).keys() <= set(self.paths)

    def arranged(self, tree: PyTree) -> list[Array]:
        """The arrays of a tree in this order; zero stands for what is not trained."""
        arrays = arrays_by_path(tree)
        return [arrays.get(path, jnp.zeros(())) for path in self.paths]
