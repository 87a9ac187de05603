"""Ordinary differential equations by the Runge-Kutta pair of Dormand and Prince, with adaptive steps."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, table II.5.2.
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


class _Progress(NamedTuple):
    time: jax.Array
    y: jax.Array
    slope: jax.Array
    step: jax.Array
    count: jax.Array


def integrate(
    slope: Callable[[jax.Array], jax.Array], y: jax.Array, times: jax.Array, tolerance: float, max_steps: int
) -> jax.Array:
    """Solutions of dy/dt = slope(y), y(0) = y, at ascending times.

    Steps end at the times asked for. The error of a step is kept below `tolerance` (1 + |y|), root mean square.
    Cost: six evaluations of `slope` per step; about |largest eigenvalue| t / 3 steps where it is stiff.
    Source: Dormand and Prince 1980.

    Args:
        slope: The right-hand side.
        y: `[k]` initial values.
        times: `[T]`, not negative, ascending.
        tolerance: Relative and absolute.
        max_steps: Between two times; beyond it the result is NaN.

    Returns:
        `[T k]`.
    """

    def advance(progress: _Progress, until: jax.Array) -> tuple[_Progress, jax.Array]:
        going = lambda p: (p.time < until) & (p.count < max_steps)
        progress = lax.while_loop(
            going, lambda p: _step(slope, p, until, tolerance), progress._replace(count=jnp.array(0))
        )
        y = jnp.where(progress.time < until, jnp.nan, progress.y)
        return progress, y

    first = slope(y)
    size = lambda v: jnp.sqrt(jnp.mean(v**2))
    guess = 0.01 * (1.0 + size(y)) / jnp.maximum(size(first), 1e-30)
    start = _Progress(jnp.zeros((), times.dtype), y, first, guess.astype(times.dtype), jnp.array(0))
    return lax.scan(advance, start, times)[1]


def _step(slope: Callable, p: _Progress, until: jax.Array, tolerance: float) -> _Progress:
    """Try one step; if its error is too large only the step size changes."""
    left = until - p.time
    h = jnp.minimum(p.step, left)
    slopes, y = [p.slope], p.y
    for weights in _STAGES:
        y = p.y + h * sum(w * k for w, k in zip(weights, slopes, strict=True))
        slopes.append(slope(y))
    error = h * sum(w * k for w, k in zip(_ERROR, slopes, strict=True))
    scale = tolerance * (1.0 + jnp.maximum(jnp.abs(p.y), jnp.abs(y)))
    ratio = jnp.sqrt(jnp.mean((error / scale) ** 2))
    accept = ratio <= 1.0
    factor = jnp.clip(0.9 * jnp.maximum(ratio, 1e-10) ** -0.2, 0.2, 5.0)
    grown = jnp.where(jnp.isfinite(ratio), h * factor, 0.1 * h)
    kept = lambda new, old: jnp.where(accept, new, old)
    return _Progress(
        time=kept(jnp.where(h >= left, until, p.time + h), p.time),
        y=kept(y, p.y),
        slope=kept(slopes[-1], p.slope),
        step=jnp.where(accept & (h >= left), jnp.maximum(p.step, grown), grown),
        count=p.count + 1,
    )
