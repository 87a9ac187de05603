"""The floating-point arrays of a tree, by their paths."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ntkdiag.jaxtools.precision import at_least_float32

Leaves = dict[str, Array]


def floats_of(tree: PyTree) -> tuple[Leaves, Callable[[Mapping[str, Array]], PyTree]]:
    """The floating-point arrays of a tree by path, and a function that replaces some of them."""
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = [(jax.tree_util.keystr(path), leaf) for path, leaf in with_paths]
    floats = {path: jnp.asarray(leaf) for path, leaf in named if is_float(leaf)}

    def whole(replaced: Mapping[str, Array]) -> PyTree:
        return jax.tree.unflatten(structure, [replaced.get(path, leaf) for path, leaf in named])

    return floats, whole


def is_float(leaf: object) -> bool:
    """Whether a leaf is an array of floating-point numbers."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def wide(leaf: Array) -> Array:
    """An array in float32, or in its own dtype where that is wider."""
    return leaf.astype(at_least_float32(leaf.dtype))
