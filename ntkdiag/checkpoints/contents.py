"""Parameters and fixed collections inside the tree a training script happened to save.

Scripts save bare parameters, variables dictionaries, train states with optimizer states beside
them, several networks. The rule: the parameters are the tree under the shallowest key `params`; a
tree without such a key is taken to be the parameters; what stands beside `params` and is no state
of an optimizer is a collection of fixed arrays. `at` says where they are when the rule does not
fit. Of an Orbax checkpoint only what is asked for is read from disk. A file of Equinox has no keys:
its arrays are those of a module, and beside it of a state. In a file that another distribution
reads, that one finds the parameters.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence

import jax
from jaxtyping import PyTree

from ntkdiag.checkpoints.by_suffix import read_by_suffix
from ntkdiag.checkpoints.contained import require_contained
from ntkdiag.checkpoints.equinox_leaves import read_equinox_leaves
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import ITEM_FILE, Location, locate
from ntkdiag.checkpoints.manifest import Keys
from ntkdiag.checkpoints.msgpack_file import read_msgpack
from ntkdiag.checkpoints.named_arrays import ParameterNames
from ntkdiag.checkpoints.orbax import describe, keyed_leaves, load
from ntkdiag.checkpoints.safetensors_file import read_safetensors

# Names of the state of an optimizer.
OPTIMIZER_STATES = ("opt_state", "optimizer", "optimizer_state", "optim")
# What train states hold beside the parameters and the collections of a model.
NOT_COLLECTIONS = (
    *OPTIMIZER_STATES,
    "ema",
    "ema_params",
    "target_params",
    "grads",
    "metrics",
    "dynamic_scale",
    "loss_scale",
    "rngs",
)


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint holds, as numpy.

    Attributes:
        params: Nested dicts and lists of arrays.
        collections: Trees saved beside the parameters, such as `batch_stats`; empty when there are
            none.
        location: Where it was found.
        top_level: What the checkpoint holds, by the names at its top, for a message.
        optimizer_state: The state of the optimizer beside the parameters, as it was saved; None
            where there is none, or it was not asked for.
    """

    params: PyTree
    collections: dict[str, PyTree]
    location: Location
    top_level: str = ""
    optimizer_state: PyTree = None


def read_contents(
    path: str | os.PathLike[str],
    step: int | None = None,
    at: str | None = None,
    *,
    parameter_names: ParameterNames | None = None,
    skeleton: PyTree = None,
    with_optimizer: bool = False,
) -> Contents:
    """Read parameters, and the collections beside them, from a checkpoint of any format.

    `path`, `step`, `at` and `parameter_names` are those of `load_params`; `skeleton` is an Equinox
    module, or one with its state. Optimizer state is read only `with_optimizer`, and NNX's `value`
    level is taken out of the keys.
    """
    location = locate(path, step)
    if location.format == "equinox":
        return _in_skeleton(location, at, skeleton)
    if location.format == "by suffix":
        tree = read_by_suffix(location, at, parameter_names)
        return Contents(tree, {}, location, _top_level(tree))
    if location.format == "safetensors":
        described = tree = read_safetensors(location, parameter_names)
    elif location.format == "msgpack":
        described = tree = read_msgpack(location)
    else:
        require_contained(location)
        described = describe(location)
        tree = None
    params_keys, collection_keys = _find_parts(location, described, at)
    optimizer_keys = _find_optimizer_state(described, params_keys) if with_optimizer else None
    if tree is None:
        # Read these parts of the tree, and nothing else.
        parts_to_read = [params_keys, *collection_keys.values()]
        if optimizer_keys is not None:
            parts_to_read.append(optimizer_keys)
        tree = load(location, described, functools.partial(_begins_with_any, parts_to_read))

    params = strip_value_level(_subtree(tree, params_keys))
    collections = {}
    for name, keys in collection_keys.items():
        collections[name] = strip_value_level(_subtree(tree, keys))
    optimizer_state = None
    if optimizer_keys is not None:
        optimizer_state = _subtree(tree, optimizer_keys)
    elif with_optimizer:
        optimizer_state = _optimizer_item(location)
    return Contents(params, collections, location, _top_level(described), optimizer_state)


def _find_parts(
    location: Location, described: PyTree, at: str | None
) -> tuple[Keys, dict[str, Keys]]:
    """Where the parameters are, and the collections beside them by name."""
    params_keys = _find_params(location, described, at)
    collection_keys: dict[str, Keys] = {}
    if params_keys and params_keys[-1] == "params":
        parent_keys = params_keys[:-1]
        for name in _collection_names(_subtree(described, parent_keys)):
            collection_keys[name] = (*parent_keys, name)
    return params_keys, collection_keys


def _in_skeleton(location: Location, at: str | None, skeleton: PyTree) -> Contents:
    """Parameters in a module of Equinox, and the leaves of the state beside it."""
    if at is not None:
        raise checkpoint_error(
            location.root,
            f"leaves of Equinox, which have no names, and at={at!r}",
            "Leave at out.",
        )
    tree = read_equinox_leaves(location, skeleton)
    if isinstance(tree, tuple | list):
        module, state = tree
        return Contents(module, {"state": jax.tree.leaves(state)}, location)
    return Contents(tree, {}, location)


def _find_optimizer_state(described: PyTree, params_keys: Keys) -> Keys | None:
    """Keys that lead to the state of the optimizer, beside the parameters or further up."""
    for depth in range(len(params_keys) - 1, -1, -1):
        parent_keys = params_keys[:depth]
        parent = _subtree(described, parent_keys)
        if isinstance(parent, dict):
            for name in OPTIMIZER_STATES:
                if name in parent:
                    return (*parent_keys, name)
        # A pair (variables, state of the optimizer).
        elif len(parent) == 2 and params_keys[depth] == "0":
            return (*parent_keys, "1")
    return None


def _optimizer_item(location: Location) -> PyTree:
    """The state of the optimizer from an item of its own beside that of the parameters."""
    if location.item is None:
        return None
    for name in OPTIMIZER_STATES:
        item = dataclasses.replace(location, item=name)
        if (item.folder / ITEM_FILE).is_file():
            require_contained(item)
            return load(item, describe(item), _is_any)
    return None


def _is_any(keys: Keys) -> bool:
    """Every leaf is read."""
    del keys
    return True


def _find_params(location: Location, described: PyTree, at: str | None) -> Keys:
    """Keys that lead to the parameters; none where the whole tree is taken to be the parameters."""
    leaf_keys = [keys for keys, _ in keyed_leaves(described)]
    # 1. The user says where.
    if at is not None:
        prefix = tuple(at.split("/"))
        if not any(_begins(keys, prefix) for keys in leaf_keys):
            raise checkpoint_error(
                location.root, f"nothing under {at!r}", f"It holds: {_top_level(described)}."
            )
        return prefix

    # 2. Every place that is called `params`; without one, the whole tree is taken for it.
    prefixes = set()
    for keys in leaf_keys:
        prefix = _up_to_params(keys)
        if prefix is not None:
            prefixes.add(prefix)
    if not prefixes:
        _require_no_optimizer_state(location, described)
        return ()
    # 3. The shallowest, if no other one is as shallow.
    depth = min(len(prefix) for prefix in prefixes)
    shallowest = sorted(prefix for prefix in prefixes if len(prefix) == depth)
    if len(shallowest) > 1:
        names = ["/".join(prefix) for prefix in shallowest]
        raise checkpoint_error(
            location.root,
            f"several parameter trees: {', '.join(names)}",
            f'Choose one: load_params(path, at="{names[0]}").',
        )
    return _innermost_params(described, shallowest[0])


def _begins_with_any(prefixes: Sequence[Keys], keys: Keys) -> bool:
    """Whether keys lead to something below one of several prefixes."""
    return any(_begins(keys, prefix) for prefix in prefixes)


def _begins(keys: Keys, prefix: Keys) -> bool:
    """Whether keys lead to something below a prefix."""
    return keys[: len(prefix)] == prefix


def _up_to_params(keys: Keys) -> Keys | None:
    """The beginning of the keys up to the first `params`, unless that is a part of an optimizer."""
    if "params" not in keys:
        return None
    prefix = keys[: keys.index("params") + 1]
    if any(key in NOT_COLLECTIONS for key in prefix):
        return None
    return prefix


def _require_no_optimizer_state(location: Location, described: PyTree) -> None:
    """Refuse to take a tree with an optimizer state for parameters."""
    if isinstance(described, dict) and "opt_state" in described:
        raise checkpoint_error(
            location.root,
            f"an optimizer state but no key 'params' (it holds: {_top_level(described)})",
            'Say where the parameters stand: load_params(path, at="model").',
        )


def _innermost_params(described: PyTree, prefix: Keys) -> Keys:
    """Follow `params` inside of `params`: some save a whole variables dictionary under that key."""
    tree = _subtree(described, prefix)
    while isinstance(tree, dict) and isinstance(tree.get("params"), dict):
        tree = tree["params"]
        prefix = (*prefix, "params")
    return prefix


def _collection_names(parent: PyTree) -> list[str]:
    """Names of the trees beside `params` that are no state of an optimizer."""
    if not isinstance(parent, dict):
        return []
    names = []
    for name, subtree in parent.items():
        # The State of Equinox is saved as a list of arrays.
        is_collection = isinstance(subtree, dict) or name == "state"
        if is_collection and subtree and name not in ("params", *NOT_COLLECTIONS):
            names.append(name)
    return names


def _subtree(tree: PyTree, keys: Keys) -> PyTree:
    """Follow keys, which are strings also where they are positions in a list."""
    for key in keys:
        tree = tree[int(key)] if isinstance(tree, list | tuple) else tree[key]
    return tree


def _top_level(described: PyTree) -> str:
    """What a checkpoint holds, for a message."""
    if isinstance(described, dict):
        return ", ".join(map(str, described))
    return f"a {type(described).__name__}"


def strip_value_level(tree: PyTree) -> PyTree:
    """Take out the `value` level that a saved NNX State has under every variable.

    Only when every leaf stands under such a level, so that a parameter that is itself named `value`
    stays.
    """
    leaf_keys = [keys for keys, _ in keyed_leaves(tree)]
    if leaf_keys and all(keys and keys[-1] == "value" for keys in leaf_keys):
        return _without_value_level(tree)
    return tree


def _without_value_level(tree: PyTree) -> PyTree:
    """The same tree with every ``{"value": leaf}`` replaced by its leaf."""
    if isinstance(tree, dict):
        if set(tree) == {"value"}:
            return tree["value"]
        return {key: _without_value_level(subtree) for key, subtree in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_value_level(subtree) for subtree in tree]
    return tree
