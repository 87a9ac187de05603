"""Leaves of a tree that are arrays, and copies of them."""

from typing import TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

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
        if not _is_concrete(leaf):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.clone(leaf)  # its method `copy` fails inside a trace
        return leaf.copy()

    return jax.tree.map(copy_of, tree)


def _is_concrete(leaf: object) -> TypeGuard[jax.Array]:
    """Whether a leaf is a JAX array whose numbers are known now."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
