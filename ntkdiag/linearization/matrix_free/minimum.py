"""The minimum of any convex loss of the linearized model, by Newton's method without matrices."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ntkdiag.kernels.operands.number import Number, require_positive
from ntkdiag.kernels.operands.operand import refuse
from ntkdiag.linearization.matrix_free.conjugate_gradients import Found, dot
from ntkdiag.linearization.matrix_free.gauss_newton import gauss_newton_step, require_number
from ntkdiag.linearization.matrix_free.least_squares import finish, require_outputs, require_square
from ntkdiag.linearization.matrix_free.methods import CG
from ntkdiag.linearization.matrix_free.operator import NTKOperator
from ntkdiag.linearization.matrix_free.solution import Solution

_FORCING = 1e-2  # residual of a Newton step: solving it further would not bring the minimum nearer
_CALL = "minimize(operator, loss, damping)"


def minimize(
    operator: NTKOperator,
    loss: Callable[[jax.Array], jax.Array],
    damping: Number,
    *,
    outputs: jax.typing.ArrayLike | None = None,
    method: CG | None = None,
    max_newton_steps: int = 30,
) -> Solution:
    """Minimise L(f_lin) + damping / 2 ||theta - theta_0||^2, for a loss that is convex in the outputs.

    Newton's method in function space, each step by `gauss_newton_step` and halved until the objective falls.
    Cost: a few to a few dozen Newton steps, each up to the iterations of the method.

    Args:
        operator: `NTKOperator(f, params, x)`.
        loss: As for `gauss_newton_step`.
        damping: Positive: without it a separable cross-entropy has no minimum.
        outputs: f_0; None computes it.
        method: `CG(space="function", ...)`; its tolerance holds for the gradient of the objective too.
        max_newton_steps: Most Newton steps.

    Returns:
        The minimum: `iterations` counts all products, `residual` is the norm of the gradient over that at theta_0.

    Raises:
        InvalidInputError: As `gauss_newton_step`, or when the damping is not positive or the method another.
    """
    method = CG() if method is None else method
    if not isinstance(method, CG) or method.space != "function":
        expected = '`method` to be CG(space="function", ...)'
        refuse(_CALL, expected=expected, got=repr(method), do="Leave it out for the default.")
    require_positive(damping, _CALL, "damping")
    require_square(operator, _CALL)
    start = operator.outputs() if outputs is None else outputs
    start = require_outputs(operator, start, "outputs", _CALL)
    require_number(loss, start, _CALL)
    inner = dataclasses.replace(method, tolerance=max(method.tolerance, _FORCING))
    weights, image, count = jnp.zeros_like(start), jnp.zeros_like(start), 0
    first = size = _gradient_norm(operator, loss, start, weights, damping)
    for _ in range(max_newton_steps):
        if size <= method.tolerance * first:
            break
        found = gauss_newton_step(
            operator, loss, damping=damping, outputs=start + image, displacement=weights, method=inner
        )
        count += int(found.iterations)
        moved = found.outputs - (start + image)
        reached = _gradient_norm(operator, loss, start + image + moved, weights + found.weights, damping)
        scale = 1.0
        if reached > 0.5 * size:  # close to the minimum the objective no longer changes at its precision
            scale = _line_search(loss, start + image, moved, weights, image, found.weights, damping)
            reached = _gradient_norm(
                operator, loss, start + image + scale * moved, weights + scale * found.weights, damping
            )
        if scale == 0.0:
            break
        weights, image, size = weights + scale * found.weights, image + scale * moved, reached
    residual = size / jnp.where(first > 0, first, 1.0)
    return finish(
        operator, start, operator.cotangent(weights), weights, Found(None, jnp.asarray(count), residual), method
    )


def _gradient_norm(
    operator: NTKOperator, loss: Callable, outputs: jax.Array, weights: jax.Array, damping: Number
) -> jax.Array:
    """||J^T (g + damping weights)||, the gradient of the objective."""
    pulled = operator.cotangent(jax.grad(loss)(outputs) + damping * weights)
    return jnp.sqrt(dot(pulled, pulled))


def _line_search(
    loss: Callable,
    outputs: jax.Array,
    moved: jax.Array,
    weights: jax.Array,
    image: jax.Array,
    step: jax.Array,
    damping: Number,
) -> float:
    """The largest of 1, 1/2, 1/4, ... at which the objective falls; 0 if none does."""

    def objective(scale: float) -> float:
        inside = jnp.vdot(weights + scale * step, image + scale * moved)  # ||theta - theta_0||^2 = w^T K w
        return float(loss(outputs + scale * moved) + 0.5 * damping * inside)

    now = objective(0.0)
    return next((scale for scale in (0.5**k for k in range(20)) if objective(scale) < now), 0.0)
