"""Ordinary differential equations, by diffrax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def solve_ode(
    velocity: Callable[[Any, jax.Array, Any], jax.Array],
    start: jax.Array,
    times: jax.Array,
    args: Any = None,
    *,
    relative: float,
    absolute: float,
    max_steps: int,
    solver: Any = None,
    dt0: float | None = None,
) -> jax.Array:
    """Solutions of dy/dt = velocity(t, y, args), y(0) = start, at ascending times.

    Cost: six evaluations of `velocity` for each step of the default solver, which is explicit.

    Args:
        velocity: The right-hand side.
        start: Initial values.
        times: `[T]`, ascending and not negative.
        args: Handed to `velocity`.
        relative: Error of a step, relative to y.
        absolute: The same where y is zero.
        max_steps: In all; the solutions at times not reached are NaN.
        solver: A diffrax solver; None is `diffrax.Tsit5()`.
        dt0: A fixed step instead of one chosen by the error.

    Returns:
        `[T ...]`.
    """
    import diffrax

    steps = (
        diffrax.ConstantStepSize()
        if dt0 is not None
        else diffrax.PIDController(rtol=relative, atol=absolute)
    )
    solved = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        solver or diffrax.Tsit5(),
        t0=jnp.zeros((), times.dtype),
        t1=jnp.where(times[-1] > 0, times[-1], 1.0).astype(times.dtype),
        dt0=dt0,
        y0=start,
        args=args,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=steps,
        max_steps=max_steps,
        throw=False,
    )
    assert solved.ys is not None
    return jnp.where(jnp.isfinite(solved.ys), solved.ys, jnp.nan)
