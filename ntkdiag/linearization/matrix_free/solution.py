"""What an iterative solve found, and how well."""

import dataclasses
import functools
from typing import Any

import jax
from jax.core import Tracer


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "step", "outputs", "weights", "iterations", "residual", "converged"],
    meta_fields=["method"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """A minimum of a quadratic problem of the linearized model, found by an iterative solver.

    Attributes:
        params: theta_0 + step: hand them to `linearize(f, theta_0)`, or see what the network does there.
        step: The step from theta_0, a tree like the parameters.
        outputs: f_lin at `params` on the row examples, `[n ...]`.
        weights: `[n ...]` with step = J^T weights, where the solve was in function space; else None. Predictions on
            other examples are `NTKOperator(f, params, x_test, x) @ weights`.
        iterations: How many the solver took.
        residual: Norm of the residual over that of the right-hand side, computed anew from the result.
        converged: Whether the residual met the tolerance.
        method: The solver.
    """

    params: Any
    step: Any
    outputs: Any
    weights: Any
    iterations: Any
    residual: Any
    converged: Any
    method: Any

    def __repr__(self) -> str:
        if isinstance(self.residual, Tracer):
            return f"Solution(traced, {self.method})"
        word = "converged" if bool(self.converged) else "not converged"
        return (
            f"Solution({word} in {int(self.iterations)} iterations, residual {float(self.residual):.2g}, {self.method})"
        )
