"""Which leaves are differentiated: path globs, predicates, boolean trees."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.adapters import parameters, structure

_SHOWN = 20


def trainable_mask(tree: Any, trainable: Any, *, call: str) -> list[bool]:
    """Decide for every leaf whether it is differentiated.

    Args:
        tree: All candidates, a pytree.
        trainable: None for every floating array; a path glob or a list of them (``*`` stays within one part of the
            path, ``**`` spans any number); a predicate `(path, leaf)` or `(leaf)`; or a tree of booleans (or
            predicates) that is a prefix of `tree`.
        call: The call to name in messages, in code form.

    Returns:
        One boolean per leaf, in leaf order.
    """
    named = structure.leaves_by_path(tree)
    if trainable is None:
        return [parameters.is_inexact(leaf) for leaf in named.values()]
    globs = [trainable] if isinstance(trainable, str) else trainable
    if isinstance(globs, list | tuple | set | frozenset) and globs and all(isinstance(g, str) for g in globs):
        return _by_glob(named, sorted(globs), call)
    if _is_predicate(trainable):
        test = _predicate(trainable, call)
        return [parameters.is_inexact(leaf) and bool(test(path, leaf)) for path, leaf in named.items()]
    return _by_tree(tree, named, trainable, call)


def _by_glob(named: dict[str, Any], globs: list[str], call: str) -> list[bool]:
    candidates = {path for path, leaf in named.items() if parameters.is_inexact(leaf)}
    chosen: set[str] = set()
    for glob in globs:
        pattern = _compile(glob)
        matched = {path for path in named if pattern.fullmatch(path)}
        if not matched:
            raise _no_match(glob, candidates, named, call)
        # A broad glob passes over integers; one that names nothing but integers asks for the impossible.
        chosen |= (matched & candidates) or matched
    return [path in chosen for path in named]


def _compile(glob: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?)", glob)
    spelled = {"**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(spelled.get(part, re.escape(part)) for part in parts))


def _no_match(glob: str, candidates: set[str], named: dict[str, Any], call: str) -> errors.InvalidInputError:
    paths = [path for path in named if path in candidates]
    more = f", and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return errors.InvalidInputError(
        errors.message(
            call,
            expected="every glob in `trainable` to match a parameter",
            got=f'"{glob}", which matches none of: ' + ", ".join(paths[:_SHOWN]) + more,
            do='Write the path as shown; "**/kernel" is every kernel, "head/**" everything under head.',
        )
    )


def _is_predicate(trainable: Any) -> bool:
    # A module of booleans can be callable too; it has leaves, and a function has none but itself.
    return callable(trainable) and jax.tree.leaves(trainable) == [trainable]


def _predicate(trainable: Callable[..., Any], call: str) -> Callable[[str, Any], bool]:
    signature = inspect.signature(trainable)
    for count, test in ((2, trainable), (1, lambda path, leaf: trainable(leaf))):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return test
    raise errors.InvalidInputError(
        errors.message(
            call,
            expected="a predicate `trainable(path, leaf)` or `trainable(leaf)`",
            got=f"a callable with signature {signature}",
            do="Wrap it in a lambda.",
        )
    )


def _by_tree(tree: Any, named: dict[str, Any], trainable: Any, call: str) -> list[bool]:
    try:
        wanted = jax.tree.leaves(jax.tree.broadcast(trainable, tree))
    except ValueError as reason:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="`trainable` to be a glob, a list of globs, a predicate, or a tree of booleans that is a "
                "prefix of the parameters",
                got=f"{type(trainable).__name__} ({reason})",
                do="Build it with jax.tree.map over the parameters.",
            )
        ) from None
    mask = []
    for want, leaf in zip(wanted, named.values(), strict=True):
        chosen = want(leaf) if callable(want) else want
        mask.append(bool(chosen) and parameters.is_array(leaf))
    return mask
