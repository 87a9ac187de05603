"""Ordinary differential equations, by diffrax.

The way from a velocity and times to a solution at these times, with a choice between steps of
controlled error and fixed ones.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

if TYPE_CHECKING:
    from diffrax import AbstractSolver


def solve_ode(
    velocity: Callable[..., Float[Array, "..."]],  # (t, y, args) -> dy/dt
    start: Float[Array, "..."],
    times: Float[Array, " T"],
    args: PyTree = None,
    *,
    relative: float,
    absolute: float,
    max_steps: int,
    solver: "AbstractSolver | None" = None,
    dt0: float | None = None,
) -> Float[Array, "T ..."]:
    """Solutions of dy/dt = velocity(t, y, args), y(0) = start, at ascending times.

    `relative` and `absolute` are the error of a step, and `dt0` a fixed step instead; after
    `max_steps` the rest is NaN. Cost: six evaluations of `velocity` for each step of the default
    solver `diffrax.Tsit5()`, which is explicit.
    """
    import diffrax  # here, because loading it takes longer than the rest of the package

    step_sizes = diffrax.PIDController(rtol=relative, atol=absolute)
    if dt0 is not None:
        step_sizes = diffrax.ConstantStepSize()
    # An interval of length zero is refused by diffrax: where only 0 is asked for, it goes on to 1.
    end = jnp.where(times[-1] > 0, times[-1], 1.0)
    solved = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5() if solver is None else solver,
        t0=jnp.zeros((), times.dtype),
        t1=end.astype(times.dtype),
        dt0=dt0,
        y0=start,
        args=args,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=step_sizes,
        max_steps=max_steps,
        throw=False,  # what is not reached is NaN, which a caller may warn about
    )
    assert solved.ys is not None  # there are, with `ts`
    # diffrax leaves infinity where it did not arrive.
    return jnp.where(jnp.isfinite(solved.ys), solved.ys, jnp.nan)
