"""Parameter trees by path: names, differences, and repacking into another container."""

from typing import Any

import jax
import numpy as np

from ntkdiag import errors


def path_string(key_path: tuple[Any, ...]) -> str:
    """Write a JAX key path as ``"a/b/0"``; the path of a tree that is a single leaf is ``""``.

    Dictionary keys, attribute names and positions are written alike, `str(key)`, so that the same parameter has the
    same name in a module, in a dictionary restored from a checkpoint, and in a list turned into a dictionary.

    Args:
        key_path: A key path of `jax.tree_util.tree_flatten_with_path`, or a plain tuple of keys.

    Returns:
        The path, its parts joined by slashes.
    """
    return "/".join(str(_bare(key)) for key in key_path)


def _bare(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Name every leaf of a tree by its path.

    Args:
        tree: Any pytree.

    Returns:
        Path -> leaf, in the leaf order of JAX.

    Raises:
        StructureError: If two leaves have the same path, as in ``{1: a, "1": b}``.
    """
    named: dict[str, Any] = {}
    for key_path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = path_string(key_path)
        if path in named:
            raise errors.StructureError(
                errors.message(
                    "leaves_by_path(tree)",
                    expected="every leaf to have a path of its own",
                    got=f'two leaves named "{path}"',
                    do="Rename one of the keys: integers and strings, and keys with slashes, are written alike.",
                )
            )
        named[path] = leaf
    return named


def differences(a: Any, b: Any) -> list[str]:
    """Compare two trees leaf by leaf: paths, shapes and dtypes, not values and not containers.

    Args:
        a: The reference.
        b: The tree to compare with it.

    Returns:
        One line per path that differs, empty if none does.
    """
    expected, got = leaves_by_path(a), leaves_by_path(b)
    changed = [
        f"{_named(path)}: expected {describe(leaf)}, got {describe(got[path])}"
        for path, leaf in expected.items()
        if path in got and describe(leaf) != describe(got[path])
    ]
    return _unpaired(expected, got) + changed


def _unpaired(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    missing = [f"{_named(p)}: missing, expected {describe(leaf)}" for p, leaf in expected.items() if p not in got]
    unexpected = [f"{_named(p)}: unexpected {describe(leaf)}" for p, leaf in got.items() if p not in expected]
    return missing + unexpected


def _named(path: str) -> str:
    return path or "(the whole tree)"


def describe(leaf: Any) -> str:
    """Write dtype and shape of a leaf as ``"float32[3, 4]"``."""
    dtype = getattr(leaf, "dtype", None)
    return type(leaf).__name__ if dtype is None else f"{dtype}{list(np.shape(leaf))}"


def shown(lines: list[str], most: int = 12) -> str:
    """Join the parts of a list for a message, and count the parts that are left out."""
    more = f"; and {len(lines) - most} more" if len(lines) > most else ""
    return "; ".join(lines[:most]) + more if lines else "nothing"


def require_same(a: Any, b: Any, *, call: str) -> None:
    """Refuse a tree that differs from the reference in paths, shapes or dtypes.

    Args:
        a: The reference.
        b: The tree to check.
        call: The call to name in the message, in code form.

    Raises:
        StructureError: If they differ; the message lists the differences by path.
    """
    _refuse(differences(a, b), call)


def repack(tree: Any, like: Any, *, call: str) -> Any:
    """Put the leaves of `tree` into the containers of `like`, matched by path.

    This lets a dictionary restored from a checkpoint stand for a module, and a frozen dictionary for a plain one.

    Args:
        tree: Leaves to take; shapes and dtypes are free.
        like: The tree whose containers and leaf order are wanted.
        call: The call to name in the message, in code form.

    Returns:
        A tree with the structure of `like` and the leaves of `tree`.

    Raises:
        StructureError: If the paths differ.
    """
    structure = jax.tree.structure(like)
    if jax.tree.structure(tree) == structure:
        return tree
    expected, got = leaves_by_path(like), leaves_by_path(tree)
    _refuse(_unpaired(expected, got), call)
    return jax.tree.unflatten(structure, [got[path] for path in expected])


def _refuse(lines: list[str], call: str) -> None:
    if lines:
        raise errors.StructureError(
            errors.message(
                call,
                expected="parameters with the paths, shapes and dtypes of this model",
                got=f"{len(lines)} difference{'s' if len(lines) > 1 else ''}: {shown(lines)}",
                do="Pass parameters of the same model (Functional.extract takes them out of a model), or call "
                "ntkdiag.functionalize anew.",
            )
        )
