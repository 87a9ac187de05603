"""The arrays among the leaves of a tree, without what JAX cannot trace.

An Equinox module has activation functions and settings among its leaves.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree


def split_arrays(tree: PyTree) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """The arrays among the leaves of a tree, and how they are put back among the others."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    # Places of arrays are None: `join` may outlive the arrays, and is not to keep them.
    others = [None if hasattr(leaf, "dtype") else leaf for leaf in leaves]

    def join(arrays: list[Any]) -> PyTree:
        """The tree with these arrays in the places of its own."""
        remaining = iter(arrays)
        mixed = [next(remaining) if leaf is None else leaf for leaf in others]
        return jax.tree.unflatten(structure, mixed)

    return arrays, join


def arrays_alone(tree: PyTree) -> PyTree:
    """A tree with None for what is no array, as Equinox filters a module for its optimizer."""
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else None, tree)


# Anything with a shape and a dtype will do: these are the ones that occur.
ArrayLeaf: TypeAlias = jax.Array | np.ndarray | jax.ShapeDtypeStruct


def is_array(leaf: object) -> TypeGuard[ArrayLeaf]:
    """Whether a leaf has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_inexact(leaf: object) -> TypeGuard[ArrayLeaf]:
    """Whether a leaf is an array of a floating or complex dtype."""
    return is_array(leaf) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def as_jax(leaf: object) -> object:
    """Turn a NumPy array into a JAX array; everything else stays as it is."""
    if isinstance(leaf, np.ndarray | np.generic):
        return jnp.asarray(leaf)
    return leaf


def copied(tree: PyTree) -> PyTree:
    """Copy the arrays of a tree: a training step that donates its state deletes the user's own."""

    def copy_of(leaf: object) -> object:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.clone(leaf)  # its method `copy` fails inside a trace
        return leaf.copy()

    return jax.tree.map(copy_of, tree)
