"""Which leaves are differentiated: every floating array, or those that the user chooses.

A choice is a path glob, a list of globs, a predicate or a tree of booleans. Each kind is read into
the set of paths that it matches. If it matches floating arrays and others (as a broad glob does),
only the floating ones are chosen. A choice without floating arrays is kept, so that `check_params`
refuses it by name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.arguments import matches
from ntkdiag.models import paths
from ntkdiag.models.array_leaves import is_array, is_inexact
from ntkdiag.models.selectors import takes

# None | glob | globs | predicate | tree of booleans. Filters of NNX, which look at variables, are
# read by its adapter.
Trainable: TypeAlias = PyTree

_SHORTEST_WAY = 'Globs are the shortest way: trainable="**/kernel".'


def trainable_mask(tree: PyTree, trainable: Trainable) -> dict[str, bool]:
    """Path of every leaf of a tree, in leaf order -> whether it is differentiated."""
    leaves = paths.leaves_by_path(tree)
    # Read each kind of choice into the set of paths it means.
    if trainable is None:
        chosen = _floating(leaves)
    elif globs := _as_globs(trainable):
        chosen = _chosen_by_globs(leaves, globs)
    # A module of booleans can be called, too, but is a tree.
    elif callable(trainable) and jax.tree.structure(trainable) == jax.tree.structure(0):
        chosen = _chosen_by_predicate(leaves, _as_predicate(trainable))
    else:
        chosen = _chosen_by_tree(tree, leaves, trainable)
    return {path: path in chosen for path in leaves}


def _floating(leaves: Mapping[str, PyTree]) -> set[str]:
    """Paths of the floating arrays; complex ones are among them, to be refused by name later."""
    return {path for path, leaf in leaves.items() if is_inexact(leaf)}


def _floating_first(leaves: Mapping[str, PyTree], matched: set[str]) -> set[str]:
    """The floating arrays among the leaves that were matched, or all of these if there are none."""
    return (matched & _floating(leaves)) or matched


def _as_globs(trainable: Trainable) -> list[str]:
    """The globs of a choice that is one or several of them; otherwise none."""
    if isinstance(trainable, str):
        return [trainable]
    if not isinstance(trainable, list | tuple | set | frozenset):
        return []
    if not all(isinstance(glob, str) for glob in trainable):
        return []
    return sorted(trainable)


def _chosen_by_globs(leaves: Mapping[str, PyTree], globs: Sequence[str]) -> set[str]:
    """Paths of the leaves that any of the globs matches; each has to match one."""
    chosen: set[str] = set()
    for glob in globs:
        matched = {path for path in leaves if matches(glob, path)}
        if not matched:
            candidates = [path for path in leaves if is_inexact(leaves[path])]
            raise errors.InvalidInputError(
                expected="every glob in `trainable` to match a parameter",
                got=f'"{glob}", which matches none of: {paths.shown(candidates, 40)}',
                do='Write the path as shown; "**/kernel" is every kernel, "head/**" everything '
                "under head.",
            )
        chosen |= _floating_first(leaves, matched)
    return chosen


def _chosen_by_predicate(
    leaves: Mapping[str, PyTree], predicate: Callable[[str, PyTree], object]
) -> set[str]:
    """Paths of the arrays for which a predicate holds."""
    matched = set()
    for path, leaf in leaves.items():
        if is_array(leaf) and predicate(path, leaf):
            matched.add(path)
    return _floating_first(leaves, matched)


def _as_predicate(trainable: Callable[..., object]) -> Callable[[str, PyTree], object]:
    """A predicate of the path and the leaf, also where the user wrote one of the leaf alone."""
    if takes(trainable, 2):
        return trainable
    return lambda path, leaf: trainable(leaf)


def _chosen_by_tree(tree: PyTree, leaves: Mapping[str, PyTree], trainable: PyTree) -> set[str]:
    """Read a tree of booleans (or predicates of a leaf) with the paths of `tree`, or a prefix."""
    chosen = set()
    for path, choice in _choice_by_path(tree, leaves, trainable).items():
        leaf = leaves[path]
        if callable(choice):
            choice = choice(leaf)
        if not isinstance(choice, bool | np.bool_):
            raise errors.InvalidInputError(
                expected="a tree of booleans in `trainable`",
                got=f"{choice!r} at {path}",
                do=_SHORTEST_WAY,
            )
        if choice and is_array(leaf):
            chosen.add(path)
    return chosen


def _choice_by_path(
    tree: PyTree, leaves: Mapping[str, PyTree], trainable: PyTree
) -> dict[str, PyTree]:
    """What a tree of booleans says of every leaf."""
    choices = paths.leaves_by_path(trainable)
    # Optax has masks of the floating arrays alone: what they leave out is not trained.
    left_out = leaves.keys() - choices.keys()
    if choices.keys() < leaves.keys() and not left_out & _floating(leaves):
        choices = {**dict.fromkeys(left_out, False), **choices}
    if choices.keys() == leaves.keys():
        return {path: choices[path] for path in leaves}
    # Otherwise the tree has to be a prefix: one boolean for all leaves below it.
    below = paths.spread(trainable, tree)
    if below is not None:
        return below
    choice_paths = paths.shown([path or "the top" for path in choices])
    raise errors.InvalidInputError(
        expected="`trainable` to be a glob, a list of globs, a predicate, or a tree of booleans "
        "like the parameters",
        got=f"{type(trainable).__name__} with leaves at {choice_paths}, for parameters at "
        f"{paths.shown(list(leaves))}",
        do=_SHORTEST_WAY,
    )
