"""Least squares and ridge regression of the linearized model, without its kernel.

The step of the parameters that minimizes ||f_0 + J step - y||^2 + ridge ||step||^2 is, with the
residual r = y - f_0,

    in function space     step = J^T w,  (K + ridge) w = r,
    in parameter space    (J^T J + ridge) step = J^T r,

both by conjugate gradients; LSMR solves the least-squares problem [J; sqrt(ridge) I] step ~ [r; 0]
itself, without squaring J.
"""

import dataclasses
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.custom_derivatives import linear_call
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import Tracer
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.conjugate_gradients import dot, norm_ratio, solve_shifted
from ntkdiag.matrix_free.operator import (
    NTKOperator,
    gram_product,
    require_outputs,
    require_plain,
    require_square,
)
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import Number, Scalar, is_concrete, require_at_least_zero


# `lineax.CG` is not used: it returns NaN where the curvature along a direction is below 200 eps n,
# which for 100,000 rows in float32 is 2.4; `jax.scipy.sparse.linalg.cg` reports neither iterations
# nor residual.
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
        _require_end(self.tolerance, self.max_steps)


@dataclasses.dataclass(frozen=True)
class LSMR:
    """LSMR of lineax on [J; sqrt(ridge) I], in parameter space.

    It never squares the condition number, so it resolves small eigenvalues that CG in float32 does
    not; without ridge it finds the solution of least norm.

    Cost: one product with J and one with J^T per iteration.

    Attributes:
        tolerance: Relative tolerances of the residual and of the normal equations.
        max_steps: Most iterations.
    """

    tolerance: float = 1e-5
    max_steps: int = 1000

    @errors.public
    def __post_init__(self) -> None:
        _require_end(self.tolerance, self.max_steps)


def _require_end(tolerance: float, max_steps: int) -> None:
    """Refuse settings with which an iteration would not end."""
    if not 0 < tolerance < 1:
        raise errors.InvalidInputError(
            expected="a tolerance in (0, 1)",
            got=repr(tolerance),
            do="1e-5 is the default.",
        )
    if not isinstance(max_steps, int) or max_steps < 1:
        raise errors.InvalidInputError(
            expected="a positive integer",
            got=repr(max_steps),
            do="1000 is the default.",
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
    solver: CG | LSMR

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
_Ridged: TypeAlias = tuple[NTKOperator, Scalar]  # J, and the root of the ridge


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


def _by_lsmr(operator: NTKOperator, residual: Outputs, ridge: Scalar, solver: LSMR) -> SolvedStep:
    """The step that minimizes ||J step - residual||^2 + ridge ||step||^2, by lineax."""
    # Here: only LSMR needs lineax, which is not loaded with the package.
    import lineax as lx

    # [J; root I] step ~ [r; 0], with root^2 = ridge. Both directions are stated, as JAX would store
    # the activations of all microbatches to transpose one.
    def with_ridge(state: _Ridged, step: PyTree) -> tuple[Outputs, PyTree]:
        operator, root = state
        return operator.tangent(step), jax.tree.map(lambda d: root * d, step)

    def transposed(state: _Ridged, pair: tuple[Outputs, PyTree]) -> PyTree:
        operator, root = state
        v, d = pair
        return jax.tree.map(lambda a, b: a + root * b, operator.cotangent(v), d)

    state = operator, jnp.sqrt(ridge)
    no_step = jax.tree.map(lambda p: jnp.zeros(p.shape, at_least_float32(p.dtype)), operator.params)
    jacobian = lx.FunctionLinearOperator(
        lambda step: linear_call(with_ridge, transposed, state, step),
        jax.eval_shape(lambda: no_step),
    )
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
    normal_residual = transposed(state, left_over)
    normal_right = transposed(state, right)
    norm = norm_ratio(dot(normal_residual, normal_residual), dot(normal_right, normal_right))
    return SolvedStep(solved.value, None, solved.stats["num_steps"], norm)
