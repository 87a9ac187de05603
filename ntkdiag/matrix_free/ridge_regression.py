"""Least squares and ridge regression of the linearized model, without its kernel.

The step of the parameters that minimizes ||f_0 + J step - y||^2 + ridge ||step||^2 is, with the
residual r = y - f_0,

    in function space     step = J^T w,  (K + ridge) w = r,
    in parameter space    (J^T J + ridge) step = J^T r,

both by conjugate gradients. Without ridge K may be singular and r out of its range. J^T r is in the
range of J^T J, where conjugate gradients from 0 find the step of least norm.
"""

import dataclasses
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import Number, Scalar, is_concrete, require_at_least_zero
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import Tracer
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.conjugate_gradients import solve_shifted
from ntkdiag.matrix_free.operator import (
    NTKOperator,
    gram_product,
    require_outputs,
    require_plain,
    require_square,
)
from ntkdiag.pytree_dataclass import pytree


# The CG of lineax returns NaN where the curvature along a direction is below 200 eps n, which for
# 100,000 rows in float32 is 2.4; `jax.scipy.sparse.linalg.cg` reports neither iterations nor
# residual.
@dataclasses.dataclass(frozen=True)
class CG:
    """Conjugate gradients.

    In function space the unknowns are one number per example and output and the matrix is
    K + ridge I; in parameter space they are one per parameter, with J^T J + ridge I. Both give the
    same step; take the smaller.

    Cost: one product per iteration.

    Attributes:
        space: "function" or "parameters".
        tolerance: Residual, relative to the right-hand side, at which to stop.
        max_steps: Most iterations.
    """

    space: Literal["function", "parameters"] = "function"
    tolerance: float = 1e-5
    max_steps: int = 1000

    @errors.public
    def __post_init__(self) -> None:
        if self.space not in ("function", "parameters"):
            raise errors.InvalidInputError(
                expected='"function" or "parameters"',
                got=repr(self.space),
                do="Take the one with fewer unknowns.",
            )


@pytree("params", "step", "outputs", "weights", "iterations", "residual", "converged")
@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """A minimum of a quadratic problem of the linearized model, found by an iterative solver.

    Attributes:
        params: theta_0 + step: pass them to `linearize(f, theta_0)`, or see what the network does
            there.
        step: The step from theta_0, a tree like the parameters.
        outputs: f_lin at `params` on the row examples, `[n ...]`.
        weights: `[n ...]` with step = J^T weights, where the solve was in function space; else
            None. Predictions on other examples are f(params, x_test) +
            `NTKOperator(f, params, x_test, x) @ weights`.
        iterations: How many the solver took.
        residual: Norm of the residual over that of the right-hand side, computed again from the
            result.
        converged: Whether the residual met the tolerance.
        solver: The solver.
    """

    params: PyTree
    step: PyTree
    outputs: Float[Array, "n *o"]
    weights: Float[Array, "n *o"] | None
    iterations: Int[Array, ""]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]
    solver: CG

    def __repr__(self) -> str:
        # Inside `jax.jit` there are no numbers to show yet.
        if isinstance(self.residual, Tracer):
            return f"Solution(traced, {self.solver})"
        word = "converged" if bool(self.converged) else "not converged"
        iterations = int(self.iterations)
        residual = float(self.residual)
        return (
            f"Solution({word} in {iterations} iterations, residual {residual:.2g}, {self.solver})"
        )


class SolvedStep(NamedTuple):
    """A step of the parameters as a solver returns it."""

    step: PyTree  # a tree like the parameters
    # `[n ...]` with step = J^T weights, from function space; else None.
    weights: Float[Array, "n *o"] | None
    iterations: Int[Array, ""]  # how many the solver took
    residual: Float[Array, ""]  # relative to the right-hand side


Outputs: TypeAlias = Float[Array, "n *o"]


@errors.public
def least_squares(
    operator: NTKOperator,
    y: jax.typing.ArrayLike,
    *,
    ridge: Number = 0.0,
    f0: jax.typing.ArrayLike | None = None,
    solver: CG | None = None,
) -> Solution:
    """Minimize ||f_lin - y||^2 + ridge ||theta - theta_0||^2 over the parameters of f_lin.

    theta = theta_0 + J^T (K + ridge)^-1 (y - f_0): where gradient flow with that ridge ends, and
    kernel ridge regression with the empirical NTK, from theta_0 = `operator.params`. Kernel and
    Jacobian are never formed. Without ridge the solver's early steps are the well-determined modes,
    and its iterations a regularization.

    Cost: one product with the kernel (about five forward passes over the data) per iteration.

    Source: Lee et al. 2019 (arXiv 1902.06720), eq. 11 at t = infinity.

    Args:
        operator: `NTKOperator(f, params, x)`.
        y: `[n ...]` targets, shaped like the outputs.
        ridge: In units of the kernel's eigenvalues, as in `predict.gradient_flow`.
        f0: f_0; None computes f(params, x). Zeros are kernel ridge regression on y itself.
        solver: None is `CG()` in function space, and `CG("parameters")` without ridge, where K may
            be singular and y out of its range.

    Returns:
        The solution, with iterations and residual.

    Raises:
        InvalidInputError: When the operator is a cross kernel, y or f0 do not fit, or the ridge is
            negative.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntkdiag import NTKOperator
        >>> x = jnp.array([[1.0], [2.0]])
        >>> K = NTKOperator(lambda w, x: x @ w, jnp.zeros((1, 1)), x)
        >>> print(least_squares(K, 3.0 * x, ridge=1.0).step)
        [[2.5]]
    """
    require_at_least_zero(ridge, "ridge")
    require_square(operator)
    require_plain(operator)
    if solver is None:
        has_no_ridge = is_concrete(ridge) and float(ridge) == 0.0
        solver = CG("parameters") if has_no_ridge else CG()
    # What the step has to explain: r = y - f_0.
    start = operator.outputs() if f0 is None else require_outputs(operator, f0, "f0")
    targets = require_outputs(operator, y, "y")
    residual = targets - start.astype(at_least_float32(operator.dtype))
    ridge = jnp.asarray(ridge, residual.dtype)
    solve = _in_function_space if solver.space == "function" else _in_parameter_space
    solved = run(solve, operator, residual, ridge, static=solver)
    # theta_0 + step, in the dtypes of the parameters, and the outputs there: the model is linear.
    params = jax.tree.map(lambda p, d: (p + d).astype(p.dtype), operator.params, solved.step)
    return Solution(
        params=params,
        step=solved.step,
        outputs=start + operator.tangent(solved.step),
        weights=solved.weights,
        iterations=solved.iterations,
        residual=solved.residual,
        converged=solved.residual <= solver.tolerance,
        solver=solver,
    )


def _in_function_space(
    operator: NTKOperator, residual: Outputs, ridge: Scalar, solver: CG
) -> SolvedStep:
    """step = J^T w with (K + ridge) w = residual."""
    weights, iterations, norm = solve_shifted(
        operator.mv, residual, ridge, tolerance=solver.tolerance, max_steps=solver.max_steps
    )
    return SolvedStep(operator.cotangent(weights), weights, iterations, norm)


def _in_parameter_space(
    operator: NTKOperator, residual: Outputs, ridge: Scalar, solver: CG
) -> SolvedStep:
    """The step with (J^T J + ridge) step = J^T residual, in trees like the parameters."""

    def product(step: PyTree) -> PyTree:
        return gram_product(operator, step)

    right = operator.cotangent(residual)
    step, iterations, norm = solve_shifted(
        product, right, ridge, tolerance=solver.tolerance, max_steps=solver.max_steps
    )
    return SolvedStep(step, None, iterations, norm)
