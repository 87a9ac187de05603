"""The parts of a saved tree: parameters, collections beside them, state of the optimizer.

Scripts save bare parameters, variables dictionaries, train states with optimizer states in them, a
dictionary of model and optimizer, pairs, several networks. The rule:

1. `at` says where the parameters are.
2. A tree that has the paths of the model is taken as a whole, whatever is called how in it.
   Where there is no model, or it does not fit, names tell:
3. States of optimizers are set aside: what is called so, and in a pair or triple what looks so.
4. The parameters are the tree under the shallowest key `params`, or what is around it and fits,
   or the only tree in it that does.
5. A tree without such a key, beside which the state of an optimizer or a count of steps lies, is
   the parameters: the one called `model`, or the only one.
6. A tree without any of this is the parameters as a whole.
7. Dictionaries beside the parameters may be collections of fixed arrays: the model knows. Those
   with names that rarely mean one, such as `ema`, are read where the model has such arrays.

Where several trees could be meant all are named.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
from jaxtyping import PyTree

from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.names import (
    FIELDS_OF_OPTAX,
    NOT_COLLECTIONS,
    OPTIMIZER_STATES,
    PARAMETERS,
    PROGRESS,
    SELDOM_COLLECTIONS,
    Keys,
    keyed_leaves,
)


@runtime_checkable
class ModelStructure(Protocol):
    """The paths that a model has, for trees of shapes or arrays."""

    def fits(self, tree: PyTree) -> bool:
        """Whether a tree is the parameters of the model, and fixed arrays of it, by their paths."""
        ...

    def may_read(self, name: str, tree: PyTree) -> bool:
        """Whether a collection of that name may be fixed arrays of the model."""
        ...


@dataclasses.dataclass(frozen=True)
class TreeParts:
    """Where the parts of a tree are."""

    params: Keys  # keys that lead to the parameters; none where they are the whole tree
    collections: dict[str, Keys]  # keys that lead to dictionaries beside them, by name
    optimizer_state: Keys | None  # keys that lead to the state of the optimizer; None without


def find_parts(
    location: Location, described: PyTree, at: str | None, model: ModelStructure | None = None
) -> TreeParts:
    """The parts of a tree, of which shapes or arrays are given."""
    params = _find_params(location, described, at, model)
    collections = _collections_beside(described, params, model)
    return TreeParts(
        params, collections, _find_optimizer_state(described, params, list(collections.values()))
    )


def subtree(tree: PyTree, keys: Keys) -> PyTree:
    """Follow keys, which are strings also where they are positions in a list."""
    for key in keys:
        tree = tree[int(key)] if isinstance(tree, list | tuple) else tree[key]
    return tree


def top_level(described: PyTree) -> str:
    """What a checkpoint holds, for a message."""
    if isinstance(described, dict):
        return ", ".join(map(str, described))
    return f"a {type(described).__name__}"


def _find_params(
    location: Location, described: PyTree, at: str | None, model: ModelStructure | None
) -> Keys:
    """Keys that lead to the parameters; none where the whole tree is taken to be the parameters."""
    leaf_keys = [keys for keys, _ in keyed_leaves(described)]
    if at is not None:
        return _find_asked_for(location, described, at, leaf_keys, model)
    if model is not None and model.fits(described):
        return ()
    states = _optimizer_states(described)
    # The shallowest `params`, if no other one is as shallow.
    prefixes = set()
    for keys in leaf_keys:
        prefix = _up_to_params(keys)
        if prefix is not None and prefix[0] not in states:
            prefixes.add(prefix)
    if prefixes:
        depth = min(len(prefix) for prefix in prefixes)
        shallowest = sorted(prefix for prefix in prefixes if len(prefix) == depth)
        fitting = [] if model is None else _fitting(described, shallowest, model)
        if len(fitting) == 1:
            return fitting[0]
        _require_one(location, described, shallowest)
        params = _innermost_params(described, shallowest[0])
        if model is None:
            return params
        # Several networks may stand under that key: the one that fits.
        inside = [(*params, name) for name in _children(subtree(described, params))]
        inside = [_innermost_params(described, keys) for keys in inside]
        fitting = [keys for keys in inside if model.fits(subtree(described, keys))]
        candidates = fitting or [params]
        _require_one(location, described, candidates)
        return candidates[0]
    return _find_beside(location, described, states)


def _fitting(described: PyTree, prefixes: Sequence[Keys], model: ModelStructure) -> list[Keys]:
    """The trees on the way to some that fit the model, the shallowest of them."""
    for depth in range(1, len(prefixes[0]) + 1):
        on_the_way = sorted({prefix[:depth] for prefix in prefixes})
        fitting = [keys for keys in on_the_way if model.fits(subtree(described, keys))]
        if fitting:
            return fitting
    return []


def _find_asked_for(
    location: Location,
    described: PyTree,
    at: str,
    leaf_keys: Sequence[Keys],
    model: ModelStructure | None,
) -> Keys:
    """Keys that lead to what the user names, without that of an item that is open already."""
    asked = tuple(at.split("/"))
    for prefix in [asked, asked[1:]] if asked[0] == location.item else [asked]:
        if not prefix:
            return _find_params(location, described, None, model)
        if any(keys[: len(prefix)] == prefix for keys in leaf_keys):
            return prefix
    raise location.error(f"nothing under {at!r}", f"It holds: {top_level(described)}.")


def _find_beside(location: Location, described: PyTree, states: Sequence[str]) -> Keys:
    """The tree beside the state of an optimizer, or a count of steps; none where it is all."""
    children = _children(described)
    trees = [name for name in children if name not in (*states, *NOT_COLLECTIONS)]
    # The parameters of a pair may be a single array.
    trees = [name for name in trees if name == "0" or _is_tree(children[name])]
    if states:
        named = [(name,) for name in PARAMETERS if name in trees]
        candidates = named[:1] or [(name,) for name in trees]
        _require_one(location, described, candidates)
        return candidates[0]
    others = children.keys() - {"model", *NOT_COLLECTIONS}
    if trees == ["model"] and len(children) > 1 and others <= set(PROGRESS):
        return ("model",)
    return ()


def _require_one(location: Location, described: PyTree, candidates: Sequence[Keys]) -> None:
    """Refuse several trees that could be the parameters, or none."""
    names = ["/".join(keys) for keys in candidates]
    if len(names) > 1:
        raise location.error(
            f"several parameter trees: {', '.join(names)}",
            f'Choose one: load_params(path, at="{names[0]}").',
        )
    if not names:
        raise location.error(
            f"the state of an optimizer without parameters (it holds: {top_level(described)})",
            "Pass the checkpoint that contains the parameters.",
        )


def _optimizer_states(described: PyTree) -> list[str]:
    """Keys at the top of a tree that lead to states of optimizers."""
    children = _children(described)
    states = [name for name in children if name in OPTIMIZER_STATES]
    # A tuple of two to four has no names, but positions. Parameters come first in it.
    if sorted(children) in (["0", "1"], ["0", "1", "2"], ["0", "1", "2", "3"]):
        params, *others = list(children)
        states += [name for name in others if _is_of_optax(children[name], children[params])]
    return states


def _is_of_optax(tree: PyTree, params: PyTree) -> bool:
    """Whether a tree has fields of Optax, and below them numbers and the names of parameters."""
    if not isinstance(tree, dict | list | tuple):
        return False
    leaves = keyed_leaves(tree)
    names = {key for keys, _ in leaves for key in keys}
    if leaves and not names.intersection(FIELDS_OF_OPTAX):
        return False
    paths_of_params = {keys for keys, _ in keyed_leaves(params)}
    # Beside the variables of a linen module the optimizer may hold the parameters alone.
    paths_of_params |= {keys[1:] for keys in paths_of_params if keys[:1] == ("params",)}
    for keys, leaf in leaves:
        is_number = getattr(leaf, "shape", ()) == () or keys[-1] in ("rng_key", "weights_memory")
        endings = {keys[start:] for start in range(len(keys) + 1)}
        if not is_number and not endings & paths_of_params:
            return False
    return True


def _find_optimizer_state(
    described: PyTree, params: Keys, collections: Sequence[Keys]
) -> Keys | None:
    """Keys that lead to the state of the optimizer, beside the parameters or further up."""
    for depth in range(len(params) - 1, -1, -1):
        parent_keys = params[:depth]
        states = _optimizer_states(subtree(described, parent_keys))
        for name in states:
            if name != params[depth] and (*parent_keys, name) not in collections:
                return (*parent_keys, name)
    return None


def _collections_beside(
    described: PyTree, params: Keys, model: ModelStructure | None
) -> dict[str, Keys]:
    """Dictionaries beside the parameters that are no state of an optimizer, by name."""
    collections: dict[str, Keys] = {}
    # Some keep all the variables of a linen module under `params`, others beside them.
    while params and params[-1] in PARAMETERS:
        *parent_keys, of_params = params
        for name, tree in _children(subtree(described, tuple(parent_keys))).items():
            # The State of Equinox is saved as a list of arrays.
            is_collection = isinstance(tree, dict) or name == "state"
            if not is_collection or not tree or name in (of_params, *collections):
                continue
            if name not in SELDOM_COLLECTIONS or (model is not None and model.may_read(name, tree)):
                collections[name] = (*parent_keys, name)
        # Beside a `model` around them there are settings and data.
        params = tuple(parent_keys) if parent_keys[-1:] == [of_params] else ()
    return collections


def _children(tree: PyTree) -> dict[str, PyTree]:
    """What stands at the top of a tree, by key or by position."""
    if isinstance(tree, dict):
        return {str(key): child for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        return {str(index): child for index, child in enumerate(tree)}
    return {}


def _is_tree(child: PyTree) -> bool:
    return isinstance(child, dict | list | tuple) and bool(jax.tree.leaves(child))


def _up_to_params(keys: Keys) -> Keys | None:
    """The beginning of the keys up to the first `params`, unless that is a part of an optimizer."""
    if "params" not in keys:
        return None
    prefix = keys[: keys.index("params") + 1]
    if any(key in NOT_COLLECTIONS for key in prefix):
        return None
    return prefix


def _innermost_params(described: PyTree, prefix: Keys) -> Keys:
    """Follow `params` inside of `params`: some save a whole variables dictionary under that key."""
    tree = subtree(described, prefix)
    while isinstance(tree, dict) and isinstance(tree.get("params"), dict):
        tree = tree["params"]
        prefix = (*prefix, "params")
    return prefix
