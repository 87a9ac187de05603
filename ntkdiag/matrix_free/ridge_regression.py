"""Least squares and ridge regression of the linearized model, without its kernel.

The step of the parameters that minimizes ||f_0 + J step - y||^2 + ridge ||step||^2 is, with the
residual r = y - f_0,

    in function space     step = J^T w,  (K + ridge) w = r,
    in parameter space    (J^T J + ridge) step = J^T r,

both by conjugate gradients; LSMR solves the least-squares problem [J; sqrt(ridge) I] step ~ [r; 0]
itself, without squaring J.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.conjugate_gradients import dot, norm_ratio, solve_shifted
from ntkdiag.matrix_free.operator import (
    NTKOperator,
    gram_product,
    require_outputs,
    require_plain,
    require_square,
)
from ntkdiag.matrix_free.solution import Solution, SolvedStep, solution_of
from ntkdiag.matrix_free.solvers import CG, LSMR
from ntkdiag.scalars import Number, Scalar, is_concrete, require_at_least_zero

Outputs: TypeAlias = Float[Array, "n *o"]


@errors.public
def least_squares(
    operator: NTKOperator,
    y: jax.typing.ArrayLike,
    *,
    ridge: Number = 0.0,
    f0: jax.typing.ArrayLike | None = None,
    solver: CG | LSMR | None = None,
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
        solver: None is `CG()` in function space, and `LSMR()` without ridge: there K may be
            singular and y out of its range, where only parameter space has a solution.

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
    # Without ridge K may be singular: LSMR finds the step of least norm then.
    if solver is None:
        has_no_ridge = is_concrete(ridge) and float(ridge) == 0.0
        solver = LSMR() if has_no_ridge else CG()
    # What the step has to explain: r = y - f_0.
    start = operator.outputs() if f0 is None else require_outputs(operator, f0, "f0")
    targets = require_outputs(operator, y, "y")
    residual = targets - start.astype(at_least_float32(operator.dtype))
    ridge = jnp.asarray(ridge, residual.dtype)
    if isinstance(solver, LSMR):
        solve = _by_lsmr
    elif solver.space == "function":
        solve = _in_function_space
    else:
        solve = _in_parameter_space
    solved = run(solve, operator, residual, ridge, static=solver)
    return solution_of(operator, start, solved, solver)


def _in_function_space(
    operator: NTKOperator, residual: Outputs, ridge: Scalar, solver: CG
) -> SolvedStep:
    """step = J^T w with (K + ridge) w = residual."""
    weights, iterations, norm = solve_shifted(operator.mv, residual, ridge, solver)
    return SolvedStep(operator.cotangent(weights), weights, iterations, norm)


def _in_parameter_space(
    operator: NTKOperator, residual: Outputs, ridge: Scalar, solver: CG
) -> SolvedStep:
    """The step with (J^T J + ridge) step = J^T residual, in trees like the parameters."""

    def product(step: PyTree) -> PyTree:
        return gram_product(operator, step)

    right = operator.cotangent(residual)
    step, iterations, norm = solve_shifted(product, right, ridge, solver)
    return SolvedStep(step, None, iterations, norm)


def _by_lsmr(operator: NTKOperator, residual: Outputs, ridge: Scalar, solver: LSMR) -> SolvedStep:
    """The step that minimizes ||J step - residual||^2 + ridge ||step||^2, by lineax."""
    # Here: only LSMR needs lineax, which is not loaded with the package.
    import lineax as lx

    from ntkdiag.matrix_free.lineax_operators import DampedJacobian

    # [J; sqrt(ridge) I] step ~ [r; 0]
    jacobian = DampedJacobian(operator, jnp.sqrt(ridge))
    no_step = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jacobian.in_structure())
    right = (residual, no_step)
    # Its tolerances are on estimates of the norms: a tenth, so that the norms themselves meet ours.
    lsmr = lx.LSMR(
        rtol=0.1 * solver.tolerance,
        atol=0.1 * solver.tolerance,
        max_steps=solver.max_steps,
        conlim=float("inf"),
    )
    solved = lx.linear_solve(jacobian, right, lsmr, throw=False)
    # What vanishes at the minimum is the residual of the normal equations.
    left_over = jax.tree.map(jnp.subtract, right, jacobian.mv(solved.value))
    transpose = jacobian.transpose()
    normal_residual = transpose.mv(left_over)
    normal_right = transpose.mv(right)
    norm = norm_ratio(dot(normal_residual, normal_residual), dot(normal_right, normal_right))
    return SolvedStep(solved.value, None, solved.stats["num_steps"], norm)
