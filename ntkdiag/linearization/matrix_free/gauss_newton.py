"""A damped Gauss-Newton step: the minimum of the linearized model under a quadratic model of any loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.kernels.operands.number import Number, require_at_least_zero
from ntkdiag.kernels.operands.operand import refuse
from ntkdiag.linearization.matrix_free.conjugate_gradients import conjugate_gradients
from ntkdiag.linearization.matrix_free.least_squares import finish, require_outputs, require_square, solve_for_step
from ntkdiag.linearization.matrix_free.methods import CG
from ntkdiag.linearization.matrix_free.operator import NTKOperator
from ntkdiag.linearization.matrix_free.program import run
from ntkdiag.linearization.matrix_free.solution import Solution

_CALL = "gauss_newton_step(operator, loss)"


def gauss_newton_step(
    operator: NTKOperator,
    loss: Callable[[jax.Array], jax.Array],
    *,
    damping: Number,
    outputs: jax.typing.ArrayLike | None = None,
    displacement: Any = None,
    method: CG | None = None,
) -> Solution:
    """Solve (J^T H J + damping) step = -(J^T g + damping displacement), with g and H the derivatives of the loss.

    One Newton step on L(f_lin) + damping / 2 ||theta - theta_0||^2. In function space the step is J^T a with
    (H K + damping) a = -g, by conjugate gradients in the inner product of K, one kernel product per iteration.
    Cost: one sweep over the data per iteration. Source: Martens 2014 (arXiv 1412.1193), section 8.

    Args:
        operator: `NTKOperator(f, params, x)`.
        loss: L(f), a number from all outputs `[n ...]`; it holds the labels and the 1/N. H must be positive
            semidefinite, as it is for losses that are convex in the outputs.
        damping: Coefficient of the squared distance, in units of the Gauss-Newton matrix.
        outputs: Where g and H are taken; None is f(params, x).
        displacement: theta - theta_0 so far, a tree like the parameters (in function space its weights `[n ...]`);
            None for 0.
        method: `CG()` in function space unless given; a preconditioner only in parameter space.

    Returns:
        The step, from `displacement` on, with iterations and residual; its `outputs` are those after the step.

    Raises:
        InvalidInputError: When the operator is a cross kernel, outputs do not fit, the loss returns no number, the
            damping is negative, or a preconditioner is asked for in function space.
    """
    method = CG() if method is None else method
    require_at_least_zero(damping, _CALL, "damping")
    require_square(operator, _CALL)
    if not isinstance(method, CG) or (method.rank and method.space == "function"):
        refuse(
            _CALL,
            expected='CG(space="function"), or CG(space="parameters") with or without a rank',
            got=repr(method),
            do="The matrix is not symmetric in function space, so the preconditioner stands in parameter space.",
        )
    start = operator.outputs() if outputs is None else outputs
    start = require_outputs(operator, start, "outputs", _CALL)
    require_number(loss, start, _CALL)
    damping = jnp.asarray(damping, start.dtype)
    solve = _in_function_space if method.space == "function" else _in_parameter_space
    step, weights, found = run(solve, operator, start, displacement, damping, static=(loss, method))
    return finish(operator, start, step, weights, found, method)


def require_number(loss: Callable[..., Any], outputs: jax.Array | jax.ShapeDtypeStruct, call: str) -> None:
    """Refuse a loss that does not return one number.

    Cost: tracing the loss.

    Args:
        loss: The loss.
        outputs: What it is handed.
        call: The public call, for the message.

    Raises:
        InvalidInputError: When it returns something else.
    """
    found = jax.eval_shape(loss, outputs)
    if getattr(found, "shape", None) != ():
        refuse(call, expected="a `loss` that returns one number", got=f"{found}", do="Sum or average over examples.")


def _in_function_space(
    operator: NTKOperator, start: jax.Array, moved: Any, damping: jax.Array, static: tuple[Any, CG]
) -> Any:
    loss, method = static
    gradient, curve = jax.linearize(jax.grad(loss), start)
    right = -gradient if moved is None else -gradient - damping * moved

    def product(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        v, image = pair  # image = K v, carried along so that one product with K suffices
        curved = curve(image)
        return curved + damping * v, operator.mv(curved) + damping * image

    found = conjugate_gradients(
        product,
        (right, operator.mv(right)),
        precondition=None,
        tolerance=method.tolerance,
        max_steps=method.max_steps,
        inner=lambda a, b: jnp.vdot(a[0], b[1]),
    )
    weights = found.x[0]
    return operator.cotangent(weights), weights, found._replace(x=None)


def _in_parameter_space(
    operator: NTKOperator, start: jax.Array, moved: Any, damping: jax.Array, static: tuple[Any, CG]
) -> Any:
    loss, method = static
    gradient, curve = jax.linearize(jax.grad(loss), start)
    right = jax.tree.map(jnp.negative, operator.cotangent(gradient))
    if moved is not None:
        right = jax.tree.map(lambda r, d: r - damping * d, right, moved)

    def gram(step: Any) -> Any:
        return operator.cotangent(curve(operator.tangent(step)))

    found = solve_for_step(gram, right, damping, method)
    return found.x, None, found._replace(x=None)
