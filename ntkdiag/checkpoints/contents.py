"""Parameters and fixed collections of a checkpoint, in whatever a training script happened to save.

`tree_parts` tells which part of a tree is what. Of an Orbax checkpoint only what is asked for is
read from disk; its parts may be items of their own, and the state of an optimizer may lie in a file
beside that of the model. A file of Equinox has no keys: its arrays are those of a module, and
beside it of a state, or of an optimizer. In a file that another distribution reads, that one finds
the parameters.
"""

import dataclasses
import functools
import os
from collections.abc import Container

import jax
from jaxtyping import PyTree

from ntkdiag.checkpoints.aggregate_file import read_aggregate
from ntkdiag.checkpoints.by_suffix import read_by_suffix
from ntkdiag.checkpoints.equinox_leaves import is_equinox_state, read_equinox_leaves
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import Location, locate
from ntkdiag.checkpoints.manifest import Keys
from ntkdiag.checkpoints.msgpack_file import read_msgpack
from ntkdiag.checkpoints.named_arrays import ParameterNames
from ntkdiag.checkpoints.npz_file import read_npz
from ntkdiag.checkpoints.orbax import describe, keyed_leaves, load
from ntkdiag.checkpoints.path_sandbox import require_contained
from ntkdiag.checkpoints.safetensors_file import read_safetensors
from ntkdiag.checkpoints.saved_names import (
    OPTIMIZER_STATES,
    PARAMETERS,
    SELDOM_COLLECTIONS,
)
from ntkdiag.checkpoints.tree_parts import (
    ModelStructure,
    TreeParts,
    begins_with_any,
    find_parts,
    subtree,
    top_level,
)

# The levels between a variable of NNX and its array: of today, and of 2024.
VALUE_LEVELS = ("value", "raw_value")


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint holds, as numpy."""

    params: PyTree  # nested dicts and lists of arrays
    # Trees saved beside the parameters, such as `batch_stats`; empty when there are none.
    collections: dict[str, PyTree]
    location: Location  # where it was found
    top_level: str = ""  # what the checkpoint holds, by the names at its top, for a message
    at: Keys = ()  # keys that lead to the parameters in what was saved
    # The state of the optimizer beside the parameters, as it was saved; None where there is none,
    # or it was not asked for.
    optimizer_state: PyTree = None


def read_contents(
    path: str | os.PathLike[str],
    step: int | None = None,
    at: str | None = None,
    *,
    parameter_names: ParameterNames | None = None,
    skeleton: PyTree = None,
    model: ModelStructure | None = None,
    with_collections: bool = True,
    with_optimizer: bool = False,
) -> Contents:
    """Read parameters, and the collections beside them, from a checkpoint of any format.

    `path`, `step`, `at` and `parameter_names` are those of `load_params`; `skeleton` is an Equinox
    module, or one with its state, that of an optimizer, or both; `model` tells which trees fit it,
    and which collections it reads. What is not asked for is not read,
    except of files that can only be read whole; NNX's `value` level is taken out of the keys.
    """
    location = locate(path, step, at)
    if location.format == "equinox":
        return _in_skeleton(location, at, skeleton)
    if location.format == "by suffix":
        tree = read_by_suffix(location, at, parameter_names)
        return Contents(tree, {}, location, top_level(tree))
    tree, described = _tree_of(location, parameter_names)
    parts = find_parts(location, described, at, model)
    if not with_collections:
        parts = dataclasses.replace(parts, collections={})
    if tree is None:
        tree = load(location, described, functools.partial(_is_asked_for, parts, with_optimizer))

    params = strip_value_level(subtree(tree, parts.params))
    collections = {}
    if with_collections:
        collections = _collection_items(location, model)
    for name, keys in parts.collections.items():
        collections[name] = strip_value_level(subtree(tree, keys))
    optimizer_state = None
    if with_optimizer and parts.optimizer_state is not None:
        optimizer_state = subtree(tree, parts.optimizer_state)
    elif with_optimizer:
        optimizer_state = _optimizer_beside(location, collections)
    held = top_level(described)
    return Contents(params, collections, location, held, parts.params, optimizer_state)


def _tree_of(
    location: Location, parameter_names: ParameterNames | None = None
) -> tuple[PyTree | None, PyTree]:
    """The tree of a checkpoint, None where its parts can be read alone, and what describes it."""
    if location.format == "safetensors":
        tree = read_safetensors(location, parameter_names)
    elif location.format == "npz":
        tree = read_npz(location, parameter_names)
    elif location.format == "msgpack":
        tree = read_msgpack(location)
    else:
        require_contained(location)
        tree = read_aggregate(location)
    return tree, describe(location) if tree is None else tree


def _whole(location: Location) -> PyTree:
    """All that is in a checkpoint."""
    tree, described = _tree_of(location)
    return load(location, described, _is_any) if tree is None else tree


def _is_any(keys: Keys) -> bool:
    """Every leaf is read."""
    del keys
    return True


def _is_asked_for(parts: TreeParts, with_optimizer: bool, keys: Keys) -> bool:
    """Whether a leaf is in a part that is read."""
    prefixes = [parts.params, *parts.collections.values()]
    if with_optimizer and parts.optimizer_state is not None:
        prefixes.append(parts.optimizer_state)
    return begins_with_any(prefixes, keys)


def _collection_items(location: Location, model: ModelStructure | None) -> dict[str, PyTree]:
    """Collections in items of their own beside that of the parameters, by name."""
    if location.item not in PARAMETERS:
        return {}
    collections = {}
    for item in location.items_beside:
        name = item.item
        if name is None or name in PARAMETERS:
            continue
        is_seldom = name in SELDOM_COLLECTIONS
        if is_seldom and (model is None or not model.may_read(name, _tree_of(item)[1])):
            continue
        tree = strip_value_level(_whole(item))
        # The state of an optimizer under another name is a list; so is the State of Equinox.
        if isinstance(tree, dict) or name == "state":
            collections[name] = tree
    return collections


def _optimizer_beside(location: Location, collections: Container[str]) -> PyTree:
    """The state of the optimizer from an item, or a file, of its own beside the parameters."""
    for item in location.items_beside:
        if item.item in OPTIMIZER_STATES and item.item not in collections:
            return _whole(item)
    for name in OPTIMIZER_STATES:
        neighbour = location.beside(name)
        # Of these two one has no names, the other no order, to put a state together by.
        if neighbour is not None and neighbour.format not in ("equinox", "by suffix"):
            return _whole(neighbour)
    return None


def _in_skeleton(location: Location, at: str | None, skeleton: PyTree) -> Contents:
    """Parameters in a module of Equinox, and what was saved beside it."""
    if at is not None:
        raise checkpoint_error(
            location.root,
            f"leaves of Equinox, which have no names, and at={at!r}",
            "Leave at out.",
        )
    tree = read_equinox_leaves(location, skeleton)
    beside: list[tuple[PyTree, PyTree]] = []
    # A module, or a tuple of it and its state, that of an optimizer, or both; it may be one itself.
    while isinstance(tree, tuple | list):
        beside += zip(skeleton[1:], tree[1:], strict=True)
        skeleton, tree = skeleton[0], tree[0]
    collections = {}
    optimizer_state = None
    for of_skeleton, arrays in beside:
        if is_equinox_state(of_skeleton):
            collections["state"] = jax.tree.leaves(arrays)
        elif isinstance(arrays, tuple | list):
            optimizer_state = arrays
    return Contents(
        tree, collections, location, "leaves of Equinox", optimizer_state=optimizer_state
    )


def strip_value_level(tree: PyTree) -> PyTree:
    """Take out the `value` level that a saved NNX State has under every variable.

    Only when every leaf stands under such a level, so that a parameter that is itself named `value`
    stays.
    """
    last_keys = {keys[-1] if keys else "" for keys, _ in keyed_leaves(tree)}
    if len(last_keys) == 1 and last_keys <= set(VALUE_LEVELS):
        return _without_value_level(tree)
    return tree


def _without_value_level(tree: PyTree) -> PyTree:
    """The same tree with every ``{"value": leaf}`` replaced by its leaf."""
    if isinstance(tree, dict):
        if len(tree) == 1 and set(tree) <= set(VALUE_LEVELS):
            [leaf] = tree.values()
            return leaf
        return {key: _without_value_level(child) for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_value_level(child) for child in tree]
    return tree
