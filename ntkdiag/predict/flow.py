"""Any loss in function space: gradient flow as a differential equation.

The weights w on the training rows follow dw/dt = -grad_f L(f) - (ridge / D) w, where f depends on w
as in `linear_model`.

The equation is solved for w on the training rows alone; outputs, on test examples too, are put
together from them at the times that were asked for.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.predict.linear_model import LinearModel, Rows, read_model
from ntkdiag.predict.ode import solve_ode
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.scalar_loss import require_scalar_loss
from ntkdiag.scalars import Number, Scalar, require_at_least_zero, require_positive

if TYPE_CHECKING:
    from diffrax import AbstractSolver


class _Integrator(NamedTuple):
    """How the equation is solved."""

    solver: "AbstractSolver | None"
    dt0: float | None
    tolerance: float
    max_steps: int


@errors.public
@keeps_float64
def integrate_flow(
    kernel: KernelLike | NTKOperator,
    y: PyTree,
    time: jax.typing.ArrayLike | Sequence[float],
    *,
    loss: LossLike,
    f0: jax.typing.ArrayLike | None = None,
    kernel_test: KernelLike | NTKOperator | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    ridge: Number = 0.0,
    tolerance: float | None = None,
    dt0: float | None = None,
    solver: "AbstractSolver | None" = None,
    max_steps: int = 100_000,
) -> Prediction:
    """Outputs of the linearized model under gradient flow on any loss: df/dt = -Theta grad_f L(f).

    Integrated by diffrax, with steps chosen by the error of the weights on the training rows.

    Cost: six products Theta v for each step of the default solver. An explicit solver is bound to
    steps below about 3 over the largest eigenvalue of Theta Hess L; for stiff problems pass
    ``solver=diffrax.Kvaerno5()``, whose steps cost a solve of the size of the kernel each.

    Args:
        kernel: As for `iterate_descent`.
        y: As for `iterate_descent`.
        time: t, a number or ascending `[T]`, known before compilation.
        loss: As for `iterate_descent`.
        f0: As for `iterate_descent`.
        kernel_test: As for `iterate_descent`.
        f0_test: As for `iterate_descent`.
        ridge: As for `iterate_descent`.
        tolerance: Relative error of each step; None is 1e-8, or 1e-5 in float32.
        dt0: A fixed step of the integrator in units of t, instead of a tolerance.
        solver: A diffrax solver; None is `diffrax.Tsit5()`.
        max_steps: Most steps; the outputs at times not reached are NaN.

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, times are not ascending and
            finite, or a number is out of its range.
    """
    if dt0 is not None:
        require_positive(dt0, "dt0")
    if tolerance is not None:
        require_positive(tolerance, "tolerance")
    require_positive(max_steps, "max_steps")
    require_at_least_zero(ridge, "ridge")
    times = _read_times(time)
    loss_object = require_loss(loss, "the flow")
    model = read_model(kernel, f0, kernel_test, f0_test)
    labels = loss_object.read(y, model.shape)
    dtype = model.start.dtype
    outputs = jax.ShapeDtypeStruct(model.shape, dtype)
    require_scalar_loss(lambda f: loss_object(f, labels), outputs)

    if tolerance is None:
        tolerance = 1e-8 if dtype == np.float64 else 1e-5
    if dt0 is not None:
        # As many steps as it takes, and some for the times in between.
        needed = int(np.ceil(times.max() / dt0)) + times.size + 2
        max_steps = max(max_steps, needed)
    integrator = _Integrator(solver, dt0, tolerance, max_steps)
    penalty = jnp.asarray(ridge / loss_object.denominator_for(model.shape), dtype)  # ridge / D

    # The integrator wants each time once.
    ascending, positions = np.unique(times, return_inverse=True)
    ends = jnp.asarray(ascending, dtype)
    path = run(_integrate, model, labels, ends, penalty, static=(loss_object, integrator))
    weights = path[positions.reshape(-1)]  # [T ...]
    return model.follow(weights, times.shape)


def _read_times(time: jax.typing.ArrayLike | Sequence[float]) -> np.ndarray:
    """The times, refused where they are not ascending and finite."""
    times = np.asarray(time, np.float64)
    steps = np.diff(times.reshape(-1), prepend=0.0)
    if times.size and np.isfinite(times).all() and np.all(steps >= 0):
        return times
    raise errors.InvalidInputError(
        expected="ascending, finite, non-negative `time`, at least one",
        got=f"{time}",
        do="Sort the times.",
    )


def _integrate(
    model: LinearModel,
    labels: PyTree,
    times: Float[Array, " T"],
    penalty: Scalar,
    loss_and_integrator: tuple[Loss, _Integrator],
) -> Float[Array, "T ..."]:
    """The weights w at ascending times, from w = 0 at time 0."""
    loss, integrator = loss_and_integrator

    def velocity(_: Scalar, weights: Rows, args: tuple[LinearModel, PyTree, Scalar]) -> Rows:
        """dw/dt = -grad_f L(f) - (ridge / D) w."""
        model, labels, penalty = args
        outputs = model.train(weights)
        gradient = jax.grad(loss)(outputs, labels).reshape(weights.shape)
        return -gradient - penalty * weights

    # The weights begin at 0, where a relative error alone asks for steps of no length.
    return solve_ode(
        velocity,
        jnp.zeros_like(model.start),
        times,
        (model, labels, penalty),
        relative=integrator.tolerance,
        absolute=1e-3 * integrator.tolerance,
        max_steps=integrator.max_steps,
        solver=integrator.solver,
        dt0=integrator.dt0,
    )
