"""Parameters and fixed collections of a checkpoint, in any layout that training scripts save.

`location` finds the directory or file with the arrays, and its format; `orbax` and `files` describe
and read it, as far as `safety` allows; `tree_parts` tells which part of the tree is what. Parts may
be items, or files, of their own. A file of Equinox has no keys: its arrays are those of a module.
"""

import dataclasses
import os
from collections.abc import Container

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.files import ParameterNames, read_equinox_leaves, read_file
from ntkdiag.checkpoints.formats import NAMED
from ntkdiag.checkpoints.location import Location, locate
from ntkdiag.checkpoints.names import (
    OPTIMIZER_STATES,
    PARAMETERS,
    SELDOM_COLLECTIONS,
    keyed_leaves,
)
from ntkdiag.checkpoints.orbax import describe, load, read_aggregate
from ntkdiag.checkpoints.safety import require_contained
from ntkdiag.checkpoints.tree_parts import ModelStructure, find_parts, subtree, top_level
from ntkdiag.path_argument import as_path

# The levels between a variable of NNX and its array: of today, and of 2024.
VALUE_LEVELS = ("value", "raw_value")


@errors.public
def load_params(
    path: str | os.PathLike[str],
    step: int | None = None,
    *,
    at: str | None = None,
    parameter_names: ParameterNames | None = None,
    model: PyTree = None,
) -> PyTree:
    """Read the parameters of a checkpoint into numpy.

    Reads what both Orbax APIs write and wrote (Standard, PyTree, CheckpointManager, v1; the
    aggregate file of 2023), saved on any number of devices; safetensors, as a file or a Hugging
    Face directory with shards; msgpack files of `flax.serialization` and
    `flax.training.checkpoints`; archives of `numpy.savez`; and leaves of Equinox. The content of a
    file decides its format. Pickles are refused unless an installed distribution reads files of
    their suffix (ntkdiag-torch, a `state_dict`). No format here runs code.

    Structure comes back as it was stored: nested dicts and lists, without NNX's `value` level and
    without optimizer state. The parameters are the tree under the key `params`; without that, the
    tree next to the state of an optimizer, in a dictionary such as ``{"model": ..., "optimizer":
    ...}``, in items, in files `model-100` and `optimizer-100`, or first in a pair; else all. No
    format stores a checksum: a flipped bit in the data is not detected.

    Cost: one read of the parameters; other parts of a train state in Orbax stay on disk.

    Args:
        path: Checkpoint, step or item directory, a file, or a root of numbered checkpoints such as
            that of a CheckpointManager. Links leading out of an Orbax checkpoint are refused.
        step: Step of a root; None takes the latest finished one.
        at: The path of the parameters, such as ``"ema/params"``, if they are not found or you mean
            others; its first part may be the name of an item.
        parameter_names: A function of name and array that returns ``(path, array)``, or None to
            leave it out: what paths the names of a safetensors or .npz file have, and where arrays
            of another layout are transposed. None splits names at slashes or, without, at dots.
        model: For a file of Equinox: a module of the structure that was saved, or what was saved
            with it: (module, state), (module, opt_state).

    Returns:
        Nested dicts and lists with numpy leaves, of the shapes and dtypes that were saved; of a
        file of Equinox, the module with these arrays and None for all else.

    Raises:
        CheckpointError: The path is missing, empty, unfinished, damaged, a pickle or of no known
            format; the step does not exist; or the parameters cannot be told apart from the rest.
        StructureError: The arrays of a file of Equinox are not those of `model`.
        MissingDependencyError: safetensors is not installed.

    Example:
        >>> import numpy, tempfile
        >>> from orbax.checkpoint import v1
        >>> path = tempfile.mkdtemp() + "/100"
        >>> v1.save(path, {"params": {"w": numpy.ones(3)}, "step": 100})
        >>> load_params(path)
        {'w': array([1., 1., 1.])}
    """
    as_path(path)  # refuses what is none
    contents = read_contents(
        path,
        step,
        at,
        parameter_names=parameter_names,
        skeleton=model,
        with_collections=False,
    )
    if parameter_names is not None and contents.location.format not in NAMED:
        got = f"a checkpoint of {contents.location.format}, and parameter_names="
        raise contents.location.error(got, "Leave it out: it has paths of its own.")
    return contents.params


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint holds, as numpy."""

    params: PyTree  # nested dicts and lists of arrays
    # Trees saved beside the parameters, such as `batch_stats`; empty when there are none.
    collections: dict[str, PyTree]
    location: Location  # where it was found
    top_level: str = ""  # what the checkpoint holds, by the names at its top, for a message
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
    """Read parameters, and the collections beside them, from a checkpoint of any format."""
    location = locate(path, step, at)
    if location.format == "equinox":
        return _in_skeleton(location, at, skeleton)
    tree, described = _tree_of(location, at, parameter_names)
    held = top_level(described)
    if location.format == "by suffix":
        return Contents(tree, {}, location, held)
    parts = find_parts(location, described, at, model)
    in_collections = parts.collections if with_collections else {}
    if tree is None:
        read = [parts.params, *in_collections.values()]
        if with_optimizer and parts.optimizer_state is not None:
            read.append(parts.optimizer_state)
        tree = load(location, described, lambda keys: any(keys[: len(p)] == p for p in read))

    params = strip_value_level(subtree(tree, parts.params))
    collections = _collection_items(location, model) if with_collections else {}
    for name, keys in in_collections.items():
        collections[name] = strip_value_level(subtree(tree, keys))
    optimizer_state = None
    if with_optimizer and parts.optimizer_state is not None:
        optimizer_state = subtree(tree, parts.optimizer_state)
    elif with_optimizer:
        optimizer_state = _optimizer_beside(location, collections)
    return Contents(params, collections, location, held, optimizer_state)


def _tree_of(
    location: Location, at: str | None = None, parameter_names: ParameterNames | None = None
) -> tuple[PyTree | None, PyTree]:
    """The tree of a checkpoint, None where its parts can be read alone, and what describes it."""
    if location.format == "orbax":
        require_contained(location)
        tree = read_aggregate(location)
        return tree, describe(location) if tree is None else tree
    tree = read_file(location, at, parameter_names)
    return tree, tree


def _whole(location: Location) -> PyTree:
    tree, described = _tree_of(location)
    return load(location, described, lambda _: True) if tree is None else tree


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
        # A state cannot be assembled from these: one has no names, the other no order.
        if neighbour is not None and neighbour.format not in ("equinox", "by suffix"):
            return _whole(neighbour)
    return None


def _in_skeleton(location: Location, at: str | None, skeleton: PyTree) -> Contents:
    """Parameters in a module of Equinox, and what was saved beside it."""
    if at is not None:
        raise location.error(f"leaves of Equinox, which have no names, and at={at!r}")
    import equinox

    tree = read_equinox_leaves(location, skeleton)
    beside: list[tuple[PyTree, PyTree]] = []
    # A module, or a tuple of it with its state, the state of an optimizer, or both. A module may
    # itself be a tuple.
    while isinstance(tree, tuple | list):
        beside += zip(skeleton[1:], tree[1:], strict=True)
        skeleton, tree = skeleton[0], tree[0]
    collections = {}
    optimizer_state = None
    for of_skeleton, arrays in beside:
        if isinstance(of_skeleton, equinox.nn.State):
            collections["state"] = jax.tree.leaves(arrays)
        elif isinstance(arrays, tuple | list):
            optimizer_state = arrays
    return Contents(
        tree, collections, location, "leaves of Equinox", optimizer_state=optimizer_state
    )


def strip_value_level(tree: PyTree) -> PyTree:
    """Take out the `value` level of a saved NNX State, where every leaf stands under one."""
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
