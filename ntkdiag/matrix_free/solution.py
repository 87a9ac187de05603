"""What an iterative solve arrived at, and how well."""

import dataclasses
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.jaxtools.tracing import Tracer
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.matrix_free.solvers import CG, LSMR
from ntkdiag.pytree_dataclass import pytree


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


def solution_of(
    operator: NTKOperator,
    outputs: Float[Array, "n *o"],
    solved: SolvedStep,
    solver: CG | LSMR,
) -> Solution:
    """The solution where a step from theta_0 leads, given the outputs at theta_0."""
    # theta_0 + step, in the dtypes of the parameters, and the outputs there: the model is linear.
    params = jax.tree.map(lambda p, d: (p + d).astype(p.dtype), operator.params, solved.step)
    outputs = outputs + operator.tangent(solved.step)
    return Solution(
        params=params,
        step=solved.step,
        outputs=outputs,
        weights=solved.weights,
        iterations=solved.iterations,
        residual=solved.residual,
        converged=solved.residual <= solver.tolerance,
        solver=solver,
    )
