"""Keyword arguments of f: arrays are inputs of what is compiled, the rest is part of f.

    {"train": False, "scale": array, "name": "a"}
        arrays   [array]                            handed over at every call
        Fixed    {"train": False, "scale": None, "name": "a"}
                                                    a part of the key of the program

A program that is found again by its key gets the arrays of the new call: `Fixed.fill` puts them
back where they were.
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag._jax import TreeStructure


@dataclasses.dataclass(frozen=True, eq=False)
class Same:
    """A value that is equal only to itself, kept alive so that no other object takes its place."""

    value: object

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def hashable(value: object) -> Hashable:
    """The value as part of a key, or by its identity where it cannot be hashed."""
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return value


def arrays(kwargs: PyTree) -> list:
    """The leaves that are arrays, in tree order."""
    return [leaf for leaf in jax.tree.leaves(kwargs) if _is_array(leaf)]


def switches(kwargs: PyTree) -> tuple[bytes, ...]:
    """Whole numbers and truth values among the arrays, such as `train`: f may decide by them."""
    values = []
    for leaf in arrays(kwargs):
        is_number = math.prod(leaf.shape) == 1
        is_random_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        is_real = jnp.issubdtype(leaf.dtype, jnp.inexact)
        if is_number and not is_random_key and not is_real:
            values.append(np.asarray(leaf).tobytes())
    return tuple(values)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Keyword arguments without their arrays; two are equal when only array values differ."""

    structure: TreeStructure  # tree of the keyword arguments
    # Type and value of each leaf, None where it is an array.
    leaves: tuple[tuple[type, Hashable] | None, ...]

    @staticmethod
    def of(kwargs: dict[str, Any]) -> "Fixed":
        """The keyword arguments with their arrays taken out."""
        leaves, structure = jax.tree.flatten(kwargs)
        kept = []
        for leaf in leaves:
            if _is_array(leaf):  # an input of what is compiled
                kept.append(None)
            elif type(leaf) is float:
                # A float by its bits: 0.0 and -0.0 are equal, and NaN is not equal to itself.
                kept.append((float, leaf.hex()))
            else:
                kept.append((type(leaf), hashable(leaf)))
        return Fixed(structure, tuple(kept))

    def fill(self, arrays: Sequence[Array | np.ndarray]) -> dict[str, Any]:
        """The keyword arguments with these arrays."""
        remaining = iter(arrays)
        leaves = []
        for kept in self.leaves:
            if kept is None:
                leaves.append(next(remaining))
                continue
            kind, value = kept
            # The inverse of what `of` does.
            if kind is float:
                value = float.fromhex(value)  # type: ignore[arg-type]
            elif isinstance(value, Same):
                value = value.value
            leaves.append(value)
        return jax.tree.unflatten(self.structure, leaves)


def _is_array(leaf: object) -> bool:
    """Whether a leaf is an array of any library, or the shape of one."""
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")
