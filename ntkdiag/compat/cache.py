"""What was worked out for arguments of some shapes, kept for the next arguments of these shapes."""

import collections
from typing import Any

import jax

from ntkdiag.kernels.keywords import hashable

_KEPT = 64


class Cache:
    """A few entries by key; the one not asked for the longest goes first."""

    def __init__(self):
        self._entries: collections.OrderedDict[Any, Any] = collections.OrderedDict()

    def get(self, key: Any) -> Any:
        """The entry, or None."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Any, entry: Any) -> None:
        """Keep an entry."""
        self._entries[key] = entry
        while len(self._entries) > _KEPT:
            self._entries.popitem(last=False)


def signature(arguments: Any) -> tuple:
    """What calls must share to share a program: structure, shapes and dtypes, the values of what is no array, the mesh.

    Args:
        arguments: Any pytree.

    Returns:
        A key for `Cache`.
    """
    leaves, tree = jax.tree.flatten(arguments)
    mode = jax.config.read("jax_enable_x64"), jax.sharding.get_abstract_mesh()
    return tree, tuple(map(_of_leaf, leaves)), mode


def _of_leaf(leaf: Any) -> Any:
    if hasattr(leaf, "dtype"):
        return leaf.shape, leaf.dtype
    return type(leaf), hashable(leaf)
