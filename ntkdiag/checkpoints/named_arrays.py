"""Arrays under names, such as `Dense_0.kernel`, put into a tree.

A name is a path: its parts are joined by slashes or, where no name has one, by dots, or stand as
`jax.tree_util.keystr` writes them. Names of another library, and arrays in another layout, are
translated by the user, array by array.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import PyTree

from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.path_sandbox import MOST_LEVELS, too_deep_error

# (name, array) -> (path, array), None for an array that is left out.
ParameterNames: TypeAlias = Callable[[str, np.ndarray], tuple[str, np.ndarray] | None]

# One key in "['Dense_0']['kernel']" or ".layers[0].weight".
_KEY_OF_KEYSTR = r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)"
_KEYSTR = re.compile(f"(?:{_KEY_OF_KEYSTR})+")


def tree_of_named_arrays(
    location: Location, arrays: Mapping[str, np.ndarray], parameter_names: ParameterNames | None
) -> PyTree:
    """Put arrays by name into nested dictionaries, under the paths that the user has for them."""
    keys_of = _keys_between_slashes
    if parameter_names is None:
        keys_of = _reader_of(arrays)
    else:
        arrays = _by_function(location, arrays, parameter_names)
    tree: dict[str, PyTree] = {}
    for path, array in arrays.items():
        _put(location, tree, keys_of(path), array)
    return tree


def _reader_of(names: Collection[str]) -> Callable[[str], list[str]]:
    """What takes these names apart into keys."""
    if all(_KEYSTR.fullmatch(name) for name in names):
        return _keys_of_keystr
    return _keys_between_slashes if any("/" in name for name in names) else _keys_between_dots


def _keys_between_slashes(name: str) -> list[str]:
    return name.split("/")


def _keys_between_dots(name: str) -> list[str]:
    return name.split(".")


def _keys_of_keystr(name: str) -> list[str]:
    return ["".join(parts) for parts in re.findall(_KEY_OF_KEYSTR, name)]


def _by_function(
    location: Location,
    arrays: Mapping[str, np.ndarray],
    translate: Callable[[str, np.ndarray], tuple[str, np.ndarray] | None],
) -> dict[str, np.ndarray]:
    """The arrays that a function of name and array returns, by their paths."""
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        translated = translate(name, array)
        if translated is None:
            continue
        is_pair = isinstance(translated, tuple) and len(translated) == 2
        if not is_pair or not isinstance(translated[0], str):
            raise checkpoint_error(
                location.root,
                f"{translated!r:.60} of parameter_names(name, array) for {name!r}",
                "Return (path, array), or None to leave it out.",
            )
        path, converted = translated
        if path in renamed:
            raise checkpoint_error(
                location.root,
                f"two arrays for {path!r} by parameter_names=",
                "Give each a path of its own.",
            )
        renamed[path] = np.asarray(converted)
    if not renamed:
        raise checkpoint_error(
            location.root,
            "nothing that parameter_names= does not leave out",
            f"It holds: {listed(list(arrays))}.",
        )
    return renamed


def _put(location: Location, tree: dict[str, PyTree], keys: list[str], array: np.ndarray) -> None:
    """Put an array where its keys lead to."""
    if len(keys) > MOST_LEVELS:
        raise too_deep_error(location)
    for depth, key in enumerate(keys[:-1]):
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise _no_tree_error(location, keys[: depth + 1])
    if keys[-1] in tree:
        raise _no_tree_error(location, keys)
    tree[keys[-1]] = array


def _no_tree_error(location: Location, keys: list[str]) -> Exception:
    """The error for names of which one is the beginning of another."""
    return checkpoint_error(
        location.root,
        f"names that make no tree: {'/'.join(keys)!r} is an array and the beginning of others",
        "Say with parameter_names= which path each name has.",
    )


def listed(names: Sequence[str]) -> str:
    """Names for a message; of many, how many there are."""
    text = ", ".join(names[:12])
    return f"{text} and {len(names) - 12} more" if len(names) > 12 else text or "nothing"
