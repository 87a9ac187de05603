"""Parameters and fixed collections inside the tree a training script happened to save."""

import dataclasses
import os
from typing import Any

from ntkdiag.checkpoints.contained import require_contained
from ntkdiag.checkpoints.location import Location, checkpoint_error, locate
from ntkdiag.checkpoints.manifest import Keys
from ntkdiag.checkpoints.orbax import Tree, describe, keyed_leaves, load

NOT_COLLECTIONS = ("opt_state", "optimizer", "optimizer_state", "optim", "ema", "ema_params", "grads")


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint holds, as numpy.

    Attributes:
        params: Nested dicts and lists of arrays.
        collections: Trees saved beside the parameters, such as `batch_stats`; empty when there are none.
        location: Where it was found.
    """

    params: Tree
    collections: dict[str, Tree]
    location: Location


def read_contents(path: str | os.PathLike[str], step: int | None = None, at: str | None = None) -> Contents:
    """Read parameters, and the collections beside them, from an Orbax checkpoint.

    The parameters are the tree under the shallowest key `params` (a variables dict, or a saved train state);
    a tree without such a key is taken to be the parameters. Optimizer state is not read from disk.

    Args:
        path: Checkpoint, step or item directory, or a manager root.
        step: Step of a manager root; None takes the latest finished one.
        at: Where the parameters stand when the rule above does not fit, such as ``"model"`` or ``"ema/params"``.

    Returns:
        The contents; NNX's `value` level is taken out of the keys.

    Raises:
        CheckpointError: The checkpoint cannot be opened or read, or `at` names nothing in it.
    """
    location = locate(path, step)
    require_contained(location)
    described = describe(location)
    prefix = _params_prefix(location, described, at)
    beside = _collection_names(described, prefix) if prefix and prefix[-1] == "params" else []
    roots = [prefix, *((*prefix[:-1], name) for name in beside)]
    tree = load(location, described, lambda keys: any(keys[: len(root)] == root for root in roots))
    collections = {name: strip_value_level(_subtree(tree, (*prefix[:-1], name))) for name in beside}
    return Contents(strip_value_level(_subtree(tree, prefix)), collections, location)


def strip_value_level(tree: Tree) -> Tree:
    """Take out the `value` level that a saved NNX State has under every variable.

    Only when every leaf stands under such a level, so that a parameter that is itself named `value` stays.
    """
    leaves = keyed_leaves(tree)
    if leaves and all(keys and keys[-1] == "value" for keys, _ in leaves):
        return _without_value(tree)
    return tree


def _without_value(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return tree["value"] if set(tree) == {"value"} else {key: _without_value(sub) for key, sub in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_value(sub) for sub in tree]
    return tree


def _params_prefix(location: Location, described: Tree, at: str | None) -> Keys:
    leaf_keys = [keys for keys, _ in keyed_leaves(described)]
    if at is not None:
        prefix = tuple(at.split("/"))
        if not any(keys[: len(prefix)] == prefix for keys in leaf_keys):
            raise checkpoint_error(location.root, f"nothing under {at!r}", f"It holds: {_top_level(described)}.")
        return prefix
    found = {prefix for keys in leaf_keys if (prefix := _up_to_params(keys))}
    if not found and "opt_state" in _top_level(described).split(", "):
        got = f"an optimizer state but no key 'params' (it holds: {_top_level(described)})"
        raise checkpoint_error(location.root, got, 'Say where the parameters stand: load_params(path, at="model").')
    shallowest = sorted(prefix for prefix in found if len(prefix) == min(map(len, found)))
    if len(shallowest) > 1:
        names = ["/".join(prefix) for prefix in shallowest]
        got = f"several parameter trees: {', '.join(names)}"
        raise checkpoint_error(location.root, got, f'Choose one: load_params(path, at="{names[0]}").')
    return _innermost(described, shallowest[0]) if shallowest else ()


def _innermost(described: Tree, prefix: Keys) -> Keys:
    inner = _subtree(described, prefix)
    while isinstance(inner, dict) and isinstance(inner.get("params"), dict):  # `params` was a whole variables dict
        prefix, inner = (*prefix, "params"), inner["params"]
    return prefix


def _up_to_params(keys: Keys) -> Keys | None:
    if "params" not in keys:
        return None
    prefix = keys[: keys.index("params") + 1]
    return None if set(NOT_COLLECTIONS) & set(prefix) else prefix


def _collection_names(described: Tree, prefix: Keys) -> list[str]:
    parent = _subtree(described, prefix[:-1])
    if not isinstance(parent, dict):
        return []
    names = [name for name, subtree in parent.items() if isinstance(subtree, dict) and subtree]
    return [name for name in names if name not in ("params", *NOT_COLLECTIONS)]


def _subtree(tree: Tree, prefix: Keys) -> Any:
    for key in prefix:
        tree = tree[int(key)] if isinstance(tree, list | tuple) else tree[key]
    return tree


def _top_level(described: Tree) -> str:
    return ", ".join(map(str, described)) if isinstance(described, dict) else f"a {type(described).__name__}"
