"""Kernel ridge regression for many ridges from one eigendecomposition."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ntkdiag.kernels.operands.number import require_at_least_zero
from ntkdiag.kernels.operands.operand import KernelLike, refuse
from ntkdiag.kernels.operands.precision import keeps_float64
from ntkdiag.linearization.predict.closed_form import assemble, modes_of
from ntkdiag.linearization.predict.laws import Flow
from ntkdiag.linearization.predict.origin import Origin
from ntkdiag.linearization.predict.prediction import Prediction
from ntkdiag.linearization.predict.problem import read_problem


@keeps_float64
def ridge_path(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    ridges: jax.typing.ArrayLike | Sequence[float],
    *,
    kernel_test: KernelLike | None = None,
    outputs: jax.typing.ArrayLike | None = None,
    outputs_test: jax.typing.ArrayLike | None = None,
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
        outputs: As for `gradient_flow`.
        outputs_test: As for `gradient_flow`.
        origin: As for `gradient_flow`: weight decay to zero.

    Returns:
        Outputs `[R n o]` on training and test examples.

    Raises:
        InvalidInputError: As `gradient_flow`, or when the ridges are no vector.
    """
    call = "ridge_path(kernel, y, ridges)"
    path = jnp.asarray(ridges)
    require_at_least_zero(path, call, "ridges", many=True)
    if path.ndim != 1:
        refuse(call, expected="a vector of `ridges`", got=f"shape {path.shape}", do="Use np.geomspace(...).")
    problem = read_problem(
        call,
        kernel,
        y,
        kernel_test=kernel_test,
        outputs=outputs,
        outputs_test=outputs_test,
        origin=origin,
        loss_denominator=1.0,  # plays no role at infinity
    )
    modes = modes_of(problem, call)
    path = jnp.asarray(path, problem.kernel.dtype)
    return assemble(problem, modes, Flow(jnp.full_like(path, jnp.inf), path), path.shape)
