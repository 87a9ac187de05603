"""The arrays among the leaves of a tree, without what JAX cannot trace.

An Equinox module has activation functions and settings among its leaves.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import PyTree


def split_arrays(tree: PyTree) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """The arrays among the leaves of a tree, and how they are put back among the others."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    # Places of arrays are None: `whole` may outlive the arrays, and is not to keep them.
    others = [None if hasattr(leaf, "dtype") else leaf for leaf in leaves]

    def whole(arrays: list[Any]) -> PyTree:
        """The tree with these arrays in the places of its own."""
        remaining = iter(arrays)
        mixed = [next(remaining) if leaf is None else leaf for leaf in others]
        return jax.tree.unflatten(structure, mixed)

    return arrays, whole


def arrays_alone(tree: PyTree) -> PyTree:
    """A tree with None for what is no array, as Equinox filters a module for its optimizer."""
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else None, tree)
