"""Which inputs a model gets, and which outputs are differentiated."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.adapters import structure


def select(selector: Any, tree: Any, x: Any = None) -> Any:
    """Take a part of a tree.

    Args:
        selector: None for the whole; a path such as ``"logits"``, ``"0"`` or ``"decoder/logits"`` of keys, positions
            and attributes; or a function of the tree, or of the tree and `x`.
        tree: What the model returned, or what it is about to get.
        x: The batch.

    Returns:
        The part.
    """
    if selector is None:
        return tree
    if isinstance(selector, str):
        return _at(tree, selector)
    return selector(tree, x) if _takes_two(selector) else selector(tree)


def opened(tree: Any) -> Any:
    """Write dataclasses that JAX does not know as dictionaries of their fields."""

    def fields(leaf: Any) -> Any:
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return leaf
        return opened({field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)})

    return jax.tree.map(fields, tree)


def _takes_two(selector: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(selector).parameters.values()
    except (TypeError, ValueError):  # some compiled callables have none
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len([one for one in positional if one.default is one.empty]) == 2


def _at(tree: Any, path: str) -> Any:
    """Follow a path of keys, positions and attributes."""
    found = tree
    for part in path.split("/"):
        names: dict[str, Any] = {}
        if isinstance(found, Mapping):
            names = {str(key): value for key, value in found.items()}
        elif isinstance(found, tuple | list):
            names = {str(index): value for index, value in enumerate(found)}
            names |= {name: getattr(found, name) for name in getattr(found, "_fields", ())}
        elif dataclasses.is_dataclass(found):
            names = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        if part not in names:
            raise errors.InvalidInputError(
                errors.message(
                    f'functionalize(model, ...) with the path "{path}"',
                    expected=f'"{part}" to be in it',
                    got=", ".join(names) or structure.describe(found) + ", which has no parts",
                    do="Write the path of keys, positions and attributes, joined by slashes, or pass a function.",
                )
            )
        found = names[part]
    return found
