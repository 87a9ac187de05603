"""Keyword arguments of f: arrays are inputs of what is compiled, everything else is part of the function."""

import dataclasses
from typing import Any

import jax


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
        kept = tuple(None if _is_array(leaf) else (type(leaf), hashable(leaf)) for leaf in leaves)
        return Fixed(structure, kept)

    def fill(self, arrays: list) -> dict:
        """The keyword arguments with these arrays."""
        rest = iter(arrays)
        plain = lambda value: value.value if isinstance(value, Same) else value
        leaves = [next(rest) if leaf is None else plain(leaf[1]) for leaf in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")
