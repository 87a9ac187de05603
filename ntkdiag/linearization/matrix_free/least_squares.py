"""Least squares and ridge regression of the linearized model, without its kernel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from ntkdiag import _compat
from ntkdiag.kernels.operands.number import Number, require_at_least_zero
from ntkdiag.kernels.operands.operand import is_concrete, refuse
from ntkdiag.linearization.matrix_free import microbatches
from ntkdiag.linearization.matrix_free.conjugate_gradients import Found, conjugate_gradients, dot
from ntkdiag.linearization.matrix_free.methods import CG, LSMR
from ntkdiag.linearization.matrix_free.nystrom import nystrom
from ntkdiag.linearization.matrix_free.operator import NTKOperator, batches_of
from ntkdiag.linearization.matrix_free.program import run
from ntkdiag.linearization.matrix_free.solution import Solution

_CALL = "least_squares(operator, y)"


def least_squares(
    operator: NTKOperator,
    y: jax.typing.ArrayLike,
    *,
    ridge: Number = 0.0,
    outputs: jax.typing.ArrayLike | None = None,
    method: CG | LSMR | None = None,
) -> Solution:
    """Minimise ||f_lin - y||^2 + ridge ||theta - theta_0||^2 over the parameters of the linearized model.

    theta = theta_0 + J^T (K + ridge)^-1 (y - f_0): where gradient flow with that ridge ends, and kernel ridge
    regression with the empirical NTK, from theta_0 = `operator.params`. Kernel and Jacobian are never formed.
    Without ridge the solver's early steps are the well-determined modes, and its iterations a regularisation.
    Cost: one product with the kernel (about five forward passes over the data) per iteration.
    Source: Lee et al. 2019 (arXiv 1902.06720), eq. 11 at t = infinity.

    Args:
        operator: `NTKOperator(f, params, x)`.
        y: `[n ...]` targets, shaped like the outputs.
        ridge: In units of the kernel's eigenvalues, as in `predict.gradient_flow`.
        outputs: f_0; None computes f(params, x). Zeros are kernel ridge regression on y itself.
        method: None is `CG()` in function space, and `LSMR()` without ridge: there K may be singular and y out of
            its range, where only parameter space has a solution.

    Returns:
        The solution, with iterations and residual.

    Raises:
        InvalidInputError: When the operator is a cross kernel, y or outputs do not fit, or the ridge is negative.
    """
    if method is None:
        method = LSMR() if is_concrete(ridge) and float(ridge) == 0.0 else CG()
    require_at_least_zero(ridge, _CALL, "ridge")
    require_square(operator, _CALL)
    start = operator.outputs() if outputs is None else require_outputs(operator, outputs, "outputs", _CALL)
    residual = require_outputs(operator, y, "y", _CALL) - start.astype(_compat.at_least_float32(operator.dtype))
    ridge = jnp.asarray(ridge, residual.dtype)
    if isinstance(method, LSMR):
        step, weights, found = run(_by_lsmr, operator, residual, ridge, static=method)
    else:
        solve = _in_function_space if method.space == "function" else _in_parameter_space
        step, weights, found = run(solve, operator, residual, ridge, static=method)
    return finish(operator, start, step, weights, found, method)


def finish(operator: NTKOperator, start: jax.Array, step: Any, weights: Any, found: Found, method: Any) -> Solution:
    """Put a solution together.

    Cost: one `jax.jvp` over the data.

    Args:
        operator: The operator.
        start: f_0.
        step: The step of the parameters.
        weights: Of the rows, or None.
        found: Iterations and residual.
        method: The solver.

    Returns:
        The solution.
    """
    params = jax.tree.map(lambda p, d: (p + d).astype(p.dtype), operator.params, step)
    reached, converged = start + operator.tangent(step), found.residual <= method.tolerance
    return Solution(params, step, reached, weights, found.iterations, found.residual, converged, method)


def require_square(operator: NTKOperator, call: str) -> None:
    """Refuse what is no operator of a set of examples with itself.

    Cost: none.

    Args:
        operator: The argument.
        call: The public call, for the message.

    Raises:
        InvalidInputError: When it is something else.
    """
    if not isinstance(operator, NTKOperator) or not operator.symmetric:
        refuse(
            call,
            expected="`operator` as NTKOperator(f, params, x) of the training examples",
            got="one of two sets of examples" if isinstance(operator, NTKOperator) else type(operator).__name__,
            do="Leave x2 out; kernels that are arrays go to ntkdiag.predict.",
        )


def require_outputs(operator: NTKOperator, value: Any, name: str, call: str) -> jax.Array:
    """Read an array shaped like the outputs.

    Cost: one pass.

    Args:
        operator: The operator.
        value: The argument.
        name: Its name, for the message.
        call: The public call, for the message.

    Returns:
        The array, in float32 at least.

    Raises:
        InvalidInputError: When it has another shape, holds integers, or is not finite.
    """
    array, shape = jnp.asarray(value), (operator.n_examples, *operator.output_shape)
    if array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        refuse(
            call,
            expected=f"`{name}` of shape {shape} in floating point, like the outputs of f",
            got=f"{array.dtype}{list(array.shape)}",
            do="Class numbers become targets with `jax.nn.one_hot`.",
        )
    if not isinstance(array, Tracer) and not np.isfinite(np.asarray(array)).all():
        refuse(call, expected=f"finite `{name}`", got="NaN or Inf", do="Look for overflow, or drop these examples.")
    return array.astype(_compat.at_least_float32(operator.dtype))


def _in_function_space(operator: NTKOperator, residual: jax.Array, ridge: jax.Array, method: CG) -> Any:
    flat = lambda v: operator.mv(v.reshape(residual.shape)).reshape(-1)
    precondition = None
    if method.rank:
        flat_precondition = nystrom(flat, residual.size, method.rank, ridge, method.seed, residual.dtype)
        precondition = lambda r: flat_precondition(r.reshape(-1)).reshape(residual.shape)
    found = conjugate_gradients(
        lambda v: operator.mv(v) + ridge * v,
        residual,
        precondition=precondition,
        tolerance=method.tolerance,
        max_steps=method.max_steps,
    )
    return operator.cotangent(found.x), found.x, found._replace(x=None)


def _in_parameter_space(operator: NTKOperator, residual: jax.Array, ridge: jax.Array, method: CG) -> Any:
    batches, right = batches_of(operator), operator.cotangent(residual)
    narrow = lambda step: jax.tree.map(lambda d, p: d.astype(p.dtype), step, operator.params)
    gram = lambda step: microbatches.gram(
        operator.f, operator.params, batches, narrow(step), lambda change, rows: change * rows, jnp.ones_like(residual)
    )
    found = solve_for_step(gram, right, ridge, method)
    return found.x, None, found._replace(x=None)


def solve_for_step(gram: Any, right: Any, damping: jax.Array, method: CG) -> Found:
    """Solve (A + damping) step = right for a tree of parameters.

    Cost: one product per iteration.

    Args:
        gram: step -> A step.
        right: A tree like the parameters.
        damping: Added to the diagonal.
        method: The solver.

    Returns:
        The step with its residual.
    """
    precondition = None
    if method.rank:
        vector, unravel = ravel_pytree(right)
        flat = lambda v: ravel_pytree(gram(unravel(v)))[0]
        applied = nystrom(flat, vector.size, method.rank, damping, method.seed, vector.dtype)
        precondition = lambda r: unravel(applied(ravel_pytree(r)[0]))
    return conjugate_gradients(
        lambda step: jax.tree.map(lambda a, d: a + damping * d, gram(step), step),
        right,
        precondition=precondition,
        tolerance=method.tolerance,
        max_steps=method.max_steps,
    )


def _by_lsmr(operator: NTKOperator, residual: jax.Array, ridge: jax.Array, method: LSMR) -> Any:
    import lineax as lx

    from ntkdiag.linearization.matrix_free.lineax_operators import DampedJacobian

    jacobian = DampedJacobian(operator, jnp.sqrt(ridge))
    right = (residual, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jacobian.in_structure()))
    solver = lx.LSMR(
        rtol=0.1 * method.tolerance, atol=0.1 * method.tolerance, max_steps=method.max_steps, conlim=float("inf")
    )
    solved = lx.linear_solve(jacobian, right, solver, throw=False)
    step = solved.value
    # What vanishes at the minimum is the residual of the normal equations.
    left = jax.tree.map(jnp.subtract, right, jacobian.mv(step))
    normal, scale = jacobian.transpose().mv(left), jacobian.transpose().mv(right)
    size = dot(scale, scale)
    norm = jnp.sqrt(dot(normal, normal) / jnp.where(size > 0, size, 1.0))
    return step, None, Found(None, solved.stats["num_steps"], norm)
