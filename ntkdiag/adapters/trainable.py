"""Which leaves are differentiated: path globs, predicates, boolean trees, labels."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters import parameters, structure
from ntkdiag.adapters.labels import Labelled


def trainable_mask(tree: Any, trainable: Any, *, call: str) -> list[bool]:
    """Decide for every leaf whether it is differentiated.

    A choice that takes in floating arrays and others (a broad glob) means the floating ones; a choice of nothing but
    others is kept, for `parameters.require_real` to refuse by name.

    Args:
        tree: All candidates, a pytree.
        trainable: None for every floating array; a path glob or a list of them (``*`` stays within one part of the
            path, ``**`` spans any number); a predicate `(path, leaf)` or `(leaf)`; a tree of booleans (or
            predicates), of the same paths as `tree` or a prefix of it; or the labels of Optax, `labelled`.
        call: The call to name in messages, in code form.

    Returns:
        One boolean per leaf, in leaf order.
    """
    named = structure.leaves_by_path(tree)
    candidates = {path for path, leaf in named.items() if parameters.is_inexact(leaf)}
    globs = [trainable] if isinstance(trainable, str) else trainable
    if trainable is None:
        chosen = candidates
    elif isinstance(globs, list | tuple | set | frozenset) and globs and all(isinstance(g, str) for g in globs):
        chosen = _by_glob(named, candidates, sorted(globs), call)
    elif isinstance(trainable, Labelled):
        mask = trainable.mask(tree, call=call)
        matched = {path for path, leaf in named.items() if mask[path] and parameters.is_array(leaf)}
        chosen = (matched & candidates) or matched
    elif callable(trainable) and _is_leaf(trainable):
        test = _predicate(trainable, call)
        matched = {path for path, leaf in named.items() if parameters.is_array(leaf) and test(path, leaf)}
        chosen = (matched & candidates) or matched
    else:
        chosen = _by_tree(tree, named, trainable, call)
    return [path in chosen for path in named]


def _by_glob(named: dict[str, Any], candidates: set[str], globs: list[str], call: str) -> set[str]:
    chosen: set[str] = set()
    for glob in globs:
        pattern = _compile(glob)
        matched = {path for path in named if pattern.fullmatch(path)}
        if not matched:
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected="every glob in `trainable` to match a parameter",
                    got=f'"{glob}", which matches none of: '
                    + structure.shown([path for path in named if path in candidates], 40),
                    do='Write the path as shown; "**/kernel" is every kernel, "head/**" everything under head.',
                )
            )
        chosen |= (matched & candidates) or matched
    return chosen


def _compile(glob: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?)", glob)
    spelled = {"**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(spelled.get(part, re.escape(part)) for part in parts))


def _is_leaf(trainable: Any) -> bool:
    # A module of booleans can be called too, but it is a tree; a function is a leaf.
    return jax.tree.structure(trainable) == jax.tree.structure(0)


def _predicate(trainable: Callable[..., Any], call: str) -> Callable[[str, Any], bool]:
    signature = inspect.signature(trainable)
    for count, test in ((2, trainable), (1, lambda path, leaf: trainable(leaf))):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return test
    raise _refused("a predicate `trainable(path, leaf)` or `trainable(leaf)`", f"a callable {signature}", call)


def _by_tree(tree: Any, named: dict[str, Any], trainable: Any, call: str) -> set[str]:
    wanted: dict[str, Any] = structure.leaves_by_path(trainable)
    held = {path for path, leaf in named.items() if not parameters.is_inexact(leaf)}
    if wanted.keys() < named.keys() and named.keys() - wanted.keys() <= held:
        wanted = {**dict.fromkeys(held, False), **wanted}  # a mask of the floating arrays, as Optax has it
    if wanted.keys() != named.keys():
        try:
            wanted = dict(zip(named, jax.tree.leaves(jax.tree.broadcast(trainable, tree)), strict=True))
        except ValueError:
            expected = (
                "`trainable` to be a glob, a list of globs, a predicate, or a tree of booleans like the parameters"
            )
            got = f"{type(trainable).__name__} with leaves at {structure.shown([path or 'the top' for path in wanted])}"
            got += f", for parameters at {structure.shown(list(named))}"
            raise _refused(expected, got, call) from None
    chosen = set()
    for path, leaf in named.items():
        want = wanted[path](leaf) if callable(wanted[path]) else wanted[path]
        if isinstance(want, str):
            raise _labels(want, path, call)
        if not isinstance(want, bool | np.bool_):
            raise _refused("a tree of booleans in `trainable`", f"{want!r} at {path}", call)
        if want and parameters.is_array(leaf):
            chosen.add(path)
    return chosen


def _labels(label: str, path: str, call: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        errors.message(
            call,
            expected="a tree of booleans in `trainable`, or which labels are trained",
            got=f"the label {label!r} at {path}",
            do='Pass trainable=ntkdiag.adapters.labelled(labels, "adam") with the labels that are trained.',
        )
    )


def _refused(expected: str, got: str, call: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        errors.message(call, expected=expected, got=got, do='Globs are the shortest way: trainable="**/kernel".')
    )
