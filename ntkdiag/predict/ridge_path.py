"""Kernel ridge regression for many ridges from one eigendecomposition."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.kernel.operand import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.predict.closed_form import assemble, modes_of
from ntkdiag.predict.laws import Flow
from ntkdiag.predict.origin import Origin
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import read_problem
from ntkdiag.scalars import require_at_least_zero


@errors.public
@keeps_float64
def ridge_path(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    ridges: jax.typing.ArrayLike | Sequence[float],
    *,
    kernel_test: KernelLike | None = None,
    f0: jax.typing.ArrayLike | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    origin: Origin | None = None,
) -> Prediction:
    """Where gradient flow with each ridge ends: `gradient_flow` at t = infinity along a path of ridges.

    f(x) = f_0(x) + Theta(x, X) (Theta + ridge)^-1 (y - f_0), by 1 / (lambda + ridge) in every resolved mode. The path
    of early stopping is `gradient_flow` at a vector of times; `best_on_path` finds the best point of either, and
    `ntkdiag.analysis.leave_one_out` an error estimate that needs no test labels.
    Cost: one eigendecomposition, O((NC)^3), and O((NC)^2) per ridge.

    Args:
        kernel: As for `gradient_flow`, an array or `Kernel`.
        y: As for `gradient_flow`.
        ridges: `[R]`, in units of the kernel's eigenvalues, 0 or more, in any order.
        kernel_test: As for `gradient_flow`.
        f0: As for `gradient_flow`.
        f0_test: As for `gradient_flow`.
        origin: As for `gradient_flow`: weight decay to zero.

    Returns:
        Outputs `[R n o]` on training and test examples.

    Raises:
        InvalidInputError: As `gradient_flow`, or when the ridges are no vector.
    """
    path = jnp.asarray(ridges)
    require_at_least_zero(path, "ridges", many=True)
    if path.ndim != 1:
        raise errors.InvalidInputError(
            expected="a vector of `ridges`", got=f"shape {path.shape}", do="Use np.geomspace(...)."
        )
    problem = read_problem(
        kernel,
        y,
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        origin=origin,
        loss_denominator=1.0,
    )
    modes = modes_of(problem)
    path = jnp.asarray(path, problem.kernel.dtype)
    return assemble(problem, modes, Flow(jnp.full_like(path, jnp.inf), path), path.shape)
