"""Selectors: which part of `x` a model gets, and which part of what it returns is differentiated.

A selector is None (everything), a path of keys, positions and attributes ("decoder/logits"), or a
function of the tree, which may take `x` as a second argument.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import paths

Selector: TypeAlias = str | Callable[..., PyTree] | None


def select(selector: Selector, tree: PyTree, x: PyTree = None) -> PyTree:
    """Take the part of a tree that a selector names; `x` is for selectors that take it as well."""
    if selector is None:
        return tree
    if isinstance(selector, str):
        return _part_at(tree, selector)
    if takes(selector, 2) and not takes(selector, 1):
        return selector(tree, x)
    return selector(tree)


def as_pytree(tree: PyTree) -> PyTree:
    """Write dataclasses that JAX takes for leaves as dictionaries of their fields."""

    def fields_of(leaf: PyTree) -> PyTree:
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return leaf
        fields = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
        return as_pytree(fields)

    return jax.tree.map(fields_of, tree)


def takes(function: Callable[..., object], count: int) -> bool:
    """Whether a function can be called with so many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):  # some compiled callables have no signature
        return False
    return True


def _part_at(tree: PyTree, path: str) -> PyTree:
    """Follow a path of keys, positions and attributes."""
    part = tree
    for name in path.split("/"):
        parts = _named_parts(part)
        if name not in parts:
            raise errors.InvalidInputError(
                call=f'functionalize(model, ...) with the path "{path}"',
                expected=f'"{name}" to be in it',
                got=", ".join(parts) or f"{paths.describe(part)}, which has no parts",
                do="Write the path of keys, positions and attributes, joined by slashes, or pass "
                "a function.",
            )
        part = parts[name]
    return part


def _named_parts(container: PyTree) -> dict[str, PyTree]:
    """The parts of a mapping, sequence, named tuple or dataclass by name; of a leaf, none."""
    if isinstance(container, Mapping):
        return {str(key): value for key, value in container.items()}
    if isinstance(container, tuple | list):
        parts = {str(position): value for position, value in enumerate(container)}
        for name in getattr(container, "_fields", ()):  # a named tuple
            parts[name] = getattr(container, name)
        return parts
    if dataclasses.is_dataclass(container):
        fields = dataclasses.fields(container)
        return {field.name: getattr(container, field.name) for field in fields}
    return {}
