"""Any loss in function space: gradient flow as a differential equation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.operand import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.gauss_newton import require_number
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.predict.linear_model import LinearModel, penalty, read_model
from ntkdiag.predict.ode import solve_ode
from ntkdiag.predict.origin import Origin
from ntkdiag.predict.prediction import Prediction
from ntkdiag.scalars import Number, require_positive


@errors.public
@keeps_float64
def integrate_flow(
    kernel: KernelLike | NTKOperator,
    loss: Callable[[jax.Array], jax.Array],
    time: Any,
    dt0: float | None = None,
    *,
    f0: jax.typing.ArrayLike | None = None,
    kernel_test: KernelLike | NTKOperator | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    damping: Number = 0.0,
    weight_decay: Number = 0.0,
    origin: Origin | None = None,
    tolerance: float | None = None,
    solver: Any = None,
    max_steps: int = 100_000,
) -> Prediction:
    """Outputs of the linearized model under gradient flow on any loss: df/dt = -Theta grad_f L(f).

    Integrated by diffrax, with steps chosen by the error of the weights on the training rows.
    Cost: six products Theta v for each step of the default solver. An explicit solver is bound to steps below about 3
    over the largest eigenvalue of Theta Hess L; for stiff problems pass ``solver=diffrax.Kvaerno5()``, whose steps
    cost a solve of the size of the kernel each.

    Args:
        kernel: As for `iterate_descent`.
        loss: As for `iterate_descent`.
        time: t, a number or ascending `[T]`, known before compilation.
        dt0: A fixed step of the integrator in units of t, instead of a tolerance.
        f0: As for `iterate_descent`.
        kernel_test: As for `iterate_descent`.
        f0_test: As for `iterate_descent`.
        damping: As for `iterate_descent`.
        weight_decay: As for `iterate_descent`.
        origin: As for `iterate_descent`.
        tolerance: Relative error of each step; None is 1e-8, or 1e-5 in float32.
        solver: A diffrax solver; None is `diffrax.Tsit5()`.
        max_steps: Most steps; the outputs at times not reached are NaN.

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, times are not ascending and finite, or weight
            decay comes without `origin`.
    """
    if dt0 is not None:
        require_positive(dt0, "dt0")
    if tolerance is not None:
        require_positive(tolerance, "tolerance")
    require_positive(max_steps, "max_steps")
    decay = penalty(damping, weight_decay, origin)
    times = np.asarray(time, np.float64)
    marks = np.concatenate([[0.0], times.reshape(-1)])
    if not times.size or not np.isfinite(marks).all() or np.any(np.diff(marks) < 0):
        raise errors.InvalidInputError(
            expected="ascending, finite, non-negative `time`, at least one",
            got=f"{time}",
            do="Sort the times.",
        )
    model = read_model(kernel, f0, kernel_test, f0_test, origin)
    require_number(loss, jax.ShapeDtypeStruct(model.shape, model.start.dtype))
    tolerance = (
        tolerance if tolerance is not None else (1e-8 if model.start.dtype == np.float64 else 1e-5)
    )
    if dt0 is not None:
        max_steps = max(max_steps, int(np.ceil(marks[-1] / dt0)) + times.size + 2)
    static = (loss, solver, dt0, tolerance, max_steps)
    ends, where = np.unique(marks[1:], return_inverse=True)
    dtype = model.start.dtype
    decay = jnp.asarray(decay, dtype)
    weights = run(_integrate, model, jnp.asarray(ends, dtype), decay, static=static)[where]
    kept = (
        jnp.exp(-decay * jnp.asarray(marks[1:], dtype))
        if origin is not None
        else jnp.ones(times.size, dtype)
    )
    return model.follow(weights, kept, times.shape)


def _integrate(
    model: LinearModel, times: jax.Array, decay: jax.Array, static: tuple[Any, ...]
) -> jax.Array:
    loss, solver, dt0, tolerance, max_steps = static

    def velocity(t: Any, weights: jax.Array, args: tuple[LinearModel, jax.Array]) -> jax.Array:
        model, decay = args
        kept = jnp.exp(-decay * t)
        gradient = jax.grad(loss)(model.train(weights, kept)).reshape(weights.shape)
        return -gradient - decay * weights

    return solve_ode(
        velocity,
        jnp.zeros_like(model.start),
        times,
        (model, decay),
        relative=tolerance,
        absolute=1e-3 * tolerance,
        max_steps=max_steps,
        solver=solver,
        dt0=dt0,
    )
