"""What two calls must share to share what was worked out for the first."""

from typing import Any

import jax

from ntkdiag import _jax
from ntkdiag.engine.calls.keywords import hashable


def signature(arguments: Any) -> tuple:
    """What calls must share to share a program: structure, shapes and dtypes, the values of what is no array, the mesh.

    Args:
        arguments: Any pytree.

    Returns:
        A key for a `Cache`.
    """
    leaves, tree = jax.tree.flatten(arguments)
    return tree, tuple(map(_of_leaf, leaves)), _jax.trace_settings()


def _of_leaf(leaf: Any) -> Any:
    if hasattr(leaf, "dtype"):
        return leaf.shape, leaf.dtype
    return type(leaf), hashable(leaf)
