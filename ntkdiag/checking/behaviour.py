"""Is a model a function of its parameters and its own inputs, and of nothing else?"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.adapters import leaves_by_path
from ntkdiag.checking.numbers import listed
from ntkdiag.checking.result import Finding
from ntkdiag.kernels.interaction import rounding


def deterministic(
    f: Callable[..., Any], compiled: Callable[..., Any], params: Any, x: Any, y: Any, unit: float
) -> Finding:
    """Does the same call give the same outputs, also when it is compiled?"""
    again, other = f(params, x), compiled(params, x)
    if difference(again, y):
        text = f"two calls differ by {difference(again, y):.2g}: something draws random numbers outside of JAX's keys"
        return Finding("deterministic", "wrong", text)
    if difference(other, y) > tolerance(y, unit):
        text = f"compiled, the outputs differ by {difference(other, y):.2g}: something is read while tracing"
        return Finding("deterministic", "wrong", text)
    return Finding("deterministic", "ok", "two calls give the same outputs, and so does the compiled function")


def interaction(f: Callable[..., Any], params: Any, x: Any, joint: bool, unit: float) -> Finding:
    """Do the outputs of an example change when another one does, or when it is evaluated by itself?"""
    n = _length(x)
    if n < 2:
        return Finding("examples", "not checked", "there is one example only")
    y = f(params, x)
    moved = f(params, jax.tree.map(_with_another_first, x))
    others = jax.tree.map(lambda leaf: leaf[1:], (moved, y))
    by_others = difference(*others)
    last = lambda tree: jax.tree.map(lambda leaf: leaf[n - 1 :], tree)
    by_itself = difference(f(params, last(x)), last(y))
    allowed = tolerance(y, unit)
    if max(by_others, by_itself) > allowed:
        allowed = max(allowed, rounding(lambda params: f(params, x), params, unit))
    if max(by_others, by_itself) <= allowed:
        status = "note" if joint else "ok"
        extra = '; examples="joint" is not needed' if joint else ""
        return Finding("examples", status, f"independent: no example changes the outputs of another{extra}")
    if by_others > allowed:
        text = f"changing one example changes the outputs of others by {by_others:.2g}"
    else:
        text = f"an example by itself gives other outputs (by {by_itself:.2g}), as with masks drawn by position"
    if joint:
        return Finding("examples", "ok", f"they interact, as said: {text}")
    do = 'Use mode="eval" or mode="dropout", or examples="joint" if that is meant.'
    return Finding("examples", "wrong", f"they interact: {text}. {do}")


def inputs(f: Callable[..., Any], params: Any, x: Any) -> Finding:
    """Does every array of x reach the outputs?"""
    y, named = f(params, x), leaves_by_path(x)
    reached, lost, untested = [], [], []
    for path, leaf in named.items():
        moves = []
        for changed in _changed(leaf):
            leaves = [changed if other == path else value for other, value in named.items()]
            moves.append(difference(f(params, jax.tree.unflatten(jax.tree.structure(x), leaves)), y) > 0)
        (reached if any(moves) else lost if moves else untested).append(path)
    names = lambda paths: listed([f'"{path}"' if path else "x" for path in paths])
    if not reached and lost:
        return Finding("inputs", "wrong", "the outputs do not depend on x: they are the same for other inputs")
    if lost:
        return Finding("inputs", "note", f"{names(lost)} does not reach the outputs; {names(reached)} does")
    if untested:
        return Finding("inputs", "not checked", f"{names(untested)} is the same for all examples and not floating")
    return Finding("inputs", "ok", f"{names(reached)} reaches the outputs" if len(reached) == 1 else "all reach them")


def _changed(leaf: Any) -> list[Any]:
    """Other valid values: those of the next example, shifted ones where they are floating, inverted ones."""
    rolled = jnp.roll(leaf, 1, axis=0)
    others = [] if np.array_equal(rolled, leaf) else [rolled]
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        others.append(leaf + jnp.linspace(0.5, 1.0, leaf.size, dtype=leaf.dtype).reshape(leaf.shape))
    return [*others, ~leaf] if leaf.dtype == bool else others


def _with_another_first(leaf: Any) -> Any:
    """Put the last example in place of the first, and shift it where it is floating."""
    other = leaf[-1]
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        other = other * 0.5 + 0.1
    return leaf.at[0].set(other)


def _length(x: Any) -> int:
    return jax.tree.leaves(x)[0].shape[0]


def difference(a: Any, b: Any) -> float:
    """How far outputs are apart, at most."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    gaps = [np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)).max(initial=0.0) for x, y in pairs]
    return float(np.max(gaps))


def tolerance(y: Any, unit: float) -> float:
    """What rounding may change: the square root of the unit roundoff, of the largest output."""
    return unit**0.5 * max(float(jnp.abs(leaf).max(initial=0.0)) for leaf in jax.tree.leaves(y))
