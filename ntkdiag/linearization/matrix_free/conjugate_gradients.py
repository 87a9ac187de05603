"""Conjugate gradients on trees, with the true residual and the number of iterations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_REFRESH = 50  # iterations after which the residual is computed anew: rounding makes the recursion drift
_PATIENCE = 5  # how often in a row the true residual may turn out no smaller than before


class Found(NamedTuple):
    """What the iteration found.

    Attributes:
        x: The solution.
        iterations: How many.
        residual: ||b - A x|| / ||b||, computed anew; 0 for b = 0.
    """

    x: Any
    iterations: jax.Array
    residual: jax.Array


class _State(NamedTuple):
    x: Any
    r: Any
    p: Any
    gamma: jax.Array  # r^T P^-1 r
    size: jax.Array  # r^T r
    step: jax.Array
    best: jax.Array  # smallest true residual so far
    kept: Any  # x there
    waited: jax.Array  # how often it has not fallen since


def dot(a: Any, b: Any) -> jax.Array:
    """Sum of products over all leaves.

    Cost: one pass.

    Args:
        a: A tree.
        b: A tree like it.

    Returns:
        A number.
    """
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jnp.sum(jnp.stack([jnp.vdot(x, y) for x, y in pairs]))


def conjugate_gradients(
    product: Callable[[Any], Any],
    b: Any,
    *,
    precondition: Callable[[Any], Any] | None,
    tolerance: float,
    max_steps: int,
    inner: Callable[[Any, Any], jax.Array] = dot,
) -> Found:
    """Solve A x = b for A that is symmetric and positive semidefinite in an inner product.

    It stops when the true residual meets the tolerance, or rounding keeps it from doing so; at the last step allowed;
    or when a direction has no positive curvature, which means that b has a part outside the range of A. It starts at
    0, so that x stays in that range.
    Cost: one product per iteration, one more every 50 and to confirm the end.
    Source: Hestenes and Stiefel 1952; residual replacement as in Shewchuk 1994, B.2.

    Args:
        product: x -> A x.
        b: Right-hand side, a tree.
        precondition: r -> P^-1 r, symmetric and positive definite in the inner product; None for r.
        tolerance: Relative residual at which to stop.
        max_steps: Most iterations.
        inner: The inner product.

    Returns:
        The solution with its residual.
    """
    precondition = precondition or (lambda r: r)
    goal = tolerance**2 * inner(b, b)
    z = precondition(b)
    zero = jax.tree.map(jnp.zeros_like, b)
    start = _State(zero, b, z, inner(b, z), inner(b, b), jnp.asarray(0), inner(b, b), zero, jnp.asarray(0))

    def unfinished(s: _State) -> jax.Array:
        return (s.size > goal) & (s.step < max_steps) & (s.gamma > 0) & (s.waited < _PATIENCE)

    def iterate(s: _State) -> _State:
        moved = product(s.p)
        curvature = inner(s.p, moved)
        alpha = jnp.where(curvature > 0, s.gamma / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        x = _axpy(alpha, s.p, s.x)
        fresh = lambda: jax.tree.map(jnp.subtract, b, product(x))
        cheap = _axpy(-alpha, moved, s.r)
        renewed = (inner(cheap, cheap) <= goal) | ((s.step + 1) % _REFRESH == 0)
        r = jax.lax.cond(renewed, fresh, lambda: cheap)
        size = inner(r, r)
        waited = jnp.where(renewed, jnp.where(size < 0.8 * s.best, 0, s.waited + 1), s.waited)
        better = renewed & (size < s.best)
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), x, s.kept)
        best = jnp.where(better, size, s.best)
        z = precondition(r)
        gamma = jnp.where(curvature > 0, inner(r, z), 0.0)
        return _State(x, r, _axpy(gamma / s.gamma, s.p, z), gamma, size, s.step + 1, best, kept, waited)

    end = jax.lax.while_loop(unfinished, iterate, start)
    left = jax.tree.map(jnp.subtract, b, product(end.x))
    size, scale = inner(left, left), inner(b, b)
    # Where b is out of reach the iteration grows without bound: what counts is the best point it passed.
    x = jax.tree.map(lambda last, best: jnp.where(size <= end.best, last, best), end.x, end.kept)
    smallest = jnp.maximum(jnp.minimum(size, end.best), 0.0)
    return Found(x, end.step, jnp.sqrt(smallest / jnp.where(scale > 0, scale, 1.0)))


def _axpy(factor: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda u, v: factor * u + v, a, b)
