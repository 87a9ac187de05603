"""Keyword arguments of f: arrays are inputs of what is compiled, everything else is part of the function."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Same:
    """A value that is equal only to itself, kept alive so that no other object takes its place."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def hashable(value: Any) -> Any:
    """The value as part of a key, or by its identity where it cannot be hashed."""
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return value


def arrays(kwargs: Any) -> list:
    """The leaves that are arrays, in tree order."""
    return [leaf for leaf in jax.tree.leaves(kwargs) if _is_array(leaf)]


def switches(kwargs: Any) -> tuple:
    """Whole numbers and truth values among the arrays: what a function may decide by, such as `train`."""
    kinds = jnp.inexact, jax.dtypes.extended
    small = [leaf for leaf in arrays(kwargs) if math.prod(leaf.shape) == 1]
    return tuple(np.asarray(v).tobytes() for v in small if not any(jnp.issubdtype(v.dtype, kind) for kind in kinds))


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Keyword arguments without their arrays; two are equal when nothing but array values differs.

    Attributes:
        structure: Tree of the keyword arguments.
        leaves: Type and value of each leaf, None where it is an array.
    """

    structure: Any
    leaves: tuple[tuple[type, Any] | None, ...]

    @staticmethod
    def of(kwargs: dict) -> "Fixed":
        """What is left when the arrays are taken out."""
        leaves, structure = jax.tree.flatten(kwargs)
        # Floats by their bits: 0.0 and -0.0 are equal, and NaN is not equal to itself.
        value = lambda leaf: leaf.hex() if type(leaf) is float else hashable(leaf)
        kept = tuple(None if _is_array(leaf) else (type(leaf), value(leaf)) for leaf in leaves)
        return Fixed(structure, kept)

    def fill(self, arrays: list) -> dict:
        """The keyword arguments with these arrays."""
        rest = iter(arrays)
        plain = lambda value: value.value if isinstance(value, Same) else value
        value = lambda kind, kept: float.fromhex(kept) if kind is float else plain(kept)
        leaves = [next(rest) if leaf is None else value(*leaf) for leaf in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")
