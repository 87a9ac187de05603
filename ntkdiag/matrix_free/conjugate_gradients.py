"""Conjugate gradients on trees, with the true residual and the number of iterations.

Solves A x = b for A that is symmetric and positive semidefinite, starting at x = 0:

    alpha = r^T r / p^T A p,   x += alpha p,   r -= alpha A p,
    beta = r^T r (new) / r^T r (old),   p = r + beta p.

Rounding makes this r drift away from b - A x. So the true residual is computed every 50 iterations,
and whenever r claims to have met the goal. The iteration ends when the true residual meets the
tolerance, or has stopped falling; at the last step allowed; or when a direction has no positive
curvature, which means that b has a part outside the range of A.

Source: Hestenes and Stiefel 1952; residual replacement as in Shewchuk 1994, B.2.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from ntkdiag.arrays import Scalar

Product: TypeAlias = Callable[[PyTree], PyTree]  # v -> A v, on trees like b

REFRESH = 50  # iterations after which the true residual is computed
PATIENCE = 5  # how often in a row the true residual may turn out no smaller than before
CLEARLY_SMALLER = 0.8  # ratio of squared norms from which on a residual counts as having fallen


class LinearSolve(NamedTuple):
    """The solution of a linear system, and how well it solves it."""

    x: PyTree  # the solution
    iterations: Int[Array, ""]  # how many there were
    residual: Scalar  # ||b - A x|| / ||b||, computed again; 0 for b = 0


class _State(NamedTuple):
    """Where the iteration is."""

    x: PyTree
    r: PyTree  # b - A x, but for rounding
    p: PyTree  # the direction of the next step
    squared_norm: Scalar  # of r
    has_curvature: Bool[Array, ""]  # along the last direction
    step: Int[Array, ""]
    best: Scalar  # the smallest squared norm of a true residual so far
    best_x: PyTree
    waited: Int[Array, ""]  # how often the true residual has not fallen since


def dot(a: PyTree, b: PyTree) -> Scalar:
    """Sum of products over all leaves of two trees."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jnp.sum(jnp.stack([jnp.vdot(x, y) for x, y in pairs]))


def solve_shifted(
    kernel: Product, b: PyTree, ridge: Scalar, *, tolerance: float, max_steps: int
) -> LinearSolve:
    """Solve (K + ridge) x = b for a tree b, where K is symmetric."""

    def product(x: PyTree) -> PyTree:
        """A x, with A = K + ridge."""
        return jax.tree.map(lambda image, v: image + ridge * v, kernel(x), x)

    # All is compared in squared norms: ||b - A x|| <= tolerance ||b||.
    b_squared = dot(b, b)
    goal = tolerance**2 * b_squared

    def unfinished(s: _State) -> Bool[Array, ""]:
        going = (s.step < max_steps) & s.has_curvature & (s.waited < PATIENCE)
        return (s.squared_norm > goal) & going

    def iterate(s: _State) -> _State:
        # A step along p, to the minimum there.
        image = product(s.p)
        curvature = dot(s.p, image)
        is_curved = curvature > 0
        alpha = jnp.where(is_curved, s.squared_norm / jnp.where(is_curved, curvature, 1.0), 0.0)
        x = _add_multiple(s.x, alpha, s.p)

        # The residual: by recursion; recomputed at intervals, and when the recursion says that it
        # is small.
        recursive = _add_multiple(s.r, -alpha, image)
        claims_goal = dot(recursive, recursive) <= goal
        is_due = (s.step + 1) % REFRESH == 0
        is_true = claims_goal | is_due

        def true_residual() -> PyTree:
            return jax.tree.map(jnp.subtract, b, product(x))  # b - A x

        r = jax.lax.cond(is_true, true_residual, lambda: recursive)
        squared_norm = dot(r, r)

        # The best point so far, and the iterations since the last clear improvement.
        has_fallen = squared_norm < CLEARLY_SMALLER * s.best
        waited_if_true = jnp.where(has_fallen, 0, s.waited + 1)
        waited = jnp.where(is_true, waited_if_true, s.waited)
        is_best = is_true & (squared_norm < s.best)
        best_x = jax.tree.map(lambda new, old: jnp.where(is_best, new, old), x, s.best_x)
        best = jnp.where(is_best, squared_norm, s.best)

        # The next direction. Without curvature the iteration ends.
        beta = squared_norm / s.squared_norm
        p = _add_multiple(r, beta, s.p)
        return _State(x, r, p, squared_norm, is_curved, s.step + 1, best, best_x, waited)

    # At x = 0 the residual is b itself.
    no_x = jax.tree.map(jnp.zeros_like, b)
    start = _State(
        x=no_x,
        r=b,
        p=b,
        squared_norm=b_squared,
        has_curvature=b_squared > 0,
        step=jnp.asarray(0),
        best=b_squared,
        best_x=no_x,
        waited=jnp.asarray(0),
    )
    end = jax.lax.while_loop(unfinished, iterate, start)

    # If b is out of reach, x grows without bound: the best point on the way is returned.
    residual = jax.tree.map(jnp.subtract, b, product(end.x))
    squared_norm = dot(residual, residual)
    is_last = squared_norm <= end.best
    x = jax.tree.map(lambda last, best: jnp.where(is_last, last, best), end.x, end.best_x)
    smallest = jnp.minimum(squared_norm, end.best)
    relative = jnp.sqrt(smallest / jnp.where(b_squared > 0, b_squared, 1.0))  # 0 / 0 is 0
    return LinearSolve(x, end.step, relative)


def _add_multiple(a: PyTree, factor: Scalar, b: PyTree) -> PyTree:
    """a + factor b."""
    return jax.tree.map(lambda u, v: u + factor * v, a, b)
