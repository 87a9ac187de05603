"""A Gauss-Newton step: the minimum of the linearized model under a quadratic model of any loss.

With g and H the gradient and Hessian of the loss in the outputs, one Newton step on

    L(f_lin) + damping / 2 ||theta - theta_0||^2,    damping = ridge / D,

is, with u = theta - theta_0 before the step,

    in parameter space    (J^T H J + damping) step = -(J^T g + damping u),
    in function space     step = J^T a,  (H K + damping) a = -(g + damping w),  where u = J^T w.

H K is not symmetric, but it is in the inner product <a, b> = a^T K b, in which conjugate gradients
run there: the vector and its image K a are carried along together, so that one product with K per
iteration suffices. With A = H K + damping it is, on these pairs,

    (a, K a)  ->  (A a, K A a) = (h + damping a,  K h + damping K a),    h = H (K a).
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.conjugate_gradients import (
    LinearSolve,
    conjugate_gradients,
    solve_shifted,
)
from ntkdiag.matrix_free.operator import (
    NTKOperator,
    require_outputs,
    require_plain,
    require_square,
)
from ntkdiag.matrix_free.solution import Solution, SolvedStep, solution_after
from ntkdiag.matrix_free.solvers import CG
from ntkdiag.scalars import Number, Scalar, require_at_least_zero

Outputs: TypeAlias = Float[Array, "n *o"]
WithImage: TypeAlias = tuple[jax.Array, jax.Array]  # a, K a


@errors.public
def gauss_newton_step(
    operator: NTKOperator,
    y: PyTree,
    *,
    loss: LossLike,
    ridge: Number,
    f0: jax.typing.ArrayLike | None = None,
    after: Solution | None = None,
    solver: CG | None = None,
) -> Solution:
    """One Newton step on L(f_lin) + ridge / (2 D) ||theta - theta_0||^2.

    It is exact for squared error, where it is `least_squares` with the same ridge. For other losses
    that are convex in the outputs a few steps, each `after` the one before, lead to the minimum:

        solution = None
        for _ in range(8):
            solution = gauss_newton_step(K, labels, loss="cross_entropy", ridge=1.0, after=solution)

    There is no line search: with a small ridge, from far away, steps may overshoot. Any optimizer
    of convex functions, on the loss of `linearize(f, params)`, has one.

    Cost: one sweep over the data (about five forward passes) per iteration of the solver.

    Source: Martens 2014 (arXiv 1412.1193), section 8.

    Args:
        operator: `NTKOperator(f, params, x)`.
        y: Labels, as the loss takes them.
        loss: An object of `ntkdiag.losses`, its name, or `loss(outputs, y)`, one number; convex in
            the outputs.
        ridge: In units of the kernel's eigenvalues, as in `least_squares`: the coefficient of
            1/2 ||theta - theta_0||^2 is ridge / D, with D the denominator of the loss (the number
            of examples, for a function too).
        f0: f_0; None computes f(params, x). Not used with `after`.
        after: The solution to go on from; None for theta_0.
        solver: `CG()` in function space unless given; a preconditioner only in parameter space.

    Returns:
        Where the step leads: its `step` and `weights` count from theta_0, `iterations` and
        `residual` are those of this step.

    Raises:
        InvalidInputError: When the operator is a cross kernel, labels or outputs do not fit, the
            loss returns no number, the ridge is negative, a preconditioner is asked for in function
            space, or `after` comes from the other space.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntkdiag import NTKOperator
        >>> x = jnp.array([[1.0], [2.0]])
        >>> K = NTKOperator(lambda w, x: x @ w, jnp.zeros((1, 1)), x)
        >>> print(gauss_newton_step(K, 3.0 * x, loss="mse", ridge=1.0).step)
        [[2.5]]
    """
    if solver is None:
        solver = CG()
    _require_solver(solver)
    require_at_least_zero(ridge, "ridge")
    require_square(operator)
    require_plain(operator)
    # Where the linearized model stands now: at theta_0, or where an earlier step led.
    if after is not None:
        f0 = after.outputs
    start = operator.outputs() if f0 is None else f0
    start = require_outputs(operator, start, "f0")
    loss_object = require_loss(loss, "a Gauss-Newton step")
    labels = loss_object.read(y, start.shape)
    require_scalar_loss(lambda outputs: loss_object(outputs, labels), start)
    # The loss is divided by D, and so is the ridge, which stays in the units of K's eigenvalues.
    damping = jnp.asarray(ridge / loss_object.denominator_for(start.shape), start.dtype)
    # The pull to theta_0 acts on the whole displacement so far, in the coordinates of the solver.
    if solver.space == "function":
        solve = _in_function_space
        displacement = None if after is None else _require_weights(after)
    else:
        solve = _in_parameter_space
        displacement = None if after is None else after.step
    solved = run(
        solve, operator, start, labels, displacement, damping, static=(loss_object, solver)
    )
    return solution_after(operator, start, solved, solver, before=after)


def require_scalar_loss(
    loss: Callable[[Outputs], PyTree], outputs: jax.Array | jax.ShapeDtypeStruct
) -> None:
    """Refuse a loss of outputs that does not return one number."""
    value = jax.eval_shape(loss, outputs)  # traced only: nothing is computed
    if getattr(value, "shape", None) != ():
        raise errors.InvalidInputError(
            expected="a `loss` that returns one number",
            got=f"{value}",
            do="Sum or average over examples.",
        )


def _require_solver(solver: CG) -> None:
    """Refuse solvers that cannot solve this system."""
    is_cg = isinstance(solver, CG)
    is_preconditioned = is_cg and solver.rank > 0 and solver.space == "function"
    if not is_cg or is_preconditioned:
        raise errors.InvalidInputError(
            expected='CG(space="function"), or CG(space="parameters") with or without a rank',
            got=repr(solver),
            do="The matrix is not symmetric in function space, so the preconditioner stands in "
            "parameter space.",
        )


def _require_weights(after: Solution) -> Outputs:
    """The weights of a solution in function space."""
    if after.weights is None:
        raise errors.InvalidInputError(
            expected="`after` as a solution in function space, like this step",
            got=repr(after),
            do='Pass solver=CG("parameters") to go on in parameter space.',
        )
    return after.weights


def _derivatives(
    loss: Loss, labels: PyTree, outputs: Outputs
) -> tuple[Outputs, Callable[[Outputs], Outputs]]:
    """The gradient of the loss in the outputs, and products v -> H v with its Hessian there."""

    def loss_of_outputs(outputs: Outputs) -> Scalar:
        return loss(outputs, labels)

    # H is the Jacobian of the gradient: one linearization gives both.
    return jax.linearize(jax.grad(loss_of_outputs), outputs)


def _in_function_space(
    operator: NTKOperator,
    start: Outputs,
    labels: PyTree,
    weights: Outputs | None,
    damping: Scalar,
    loss_and_solver: tuple[Loss, CG],
) -> SolvedStep:
    """step = J^T a with (H K + damping) a = -(g + damping w)."""
    loss, solver = loss_and_solver
    gradient, hessian_product = _derivatives(loss, labels, start)
    # The right-hand side -(g + damping w).
    right = -gradient
    if weights is not None:
        right = right - damping * weights

    solved = solve_newton(operator, hessian_product, (right, operator.mv(right)), damping, solver)
    change, _ = solved.x
    return SolvedStep(operator.cotangent(change), change, solved.iterations, solved.residual)


def solve_newton(
    operator: NTKOperator,
    hessian_product: Callable[[Outputs], Outputs],
    right: WithImage,
    damping: Scalar,
    solver: CG,
) -> LinearSolve:
    """Solve (H K + damping) a = b, given (b, K b); the solution is the pair (a, K a).

    Iterations end, and the residual is measured, in the norm of K.
    """

    def product(pair: WithImage) -> WithImage:
        """(a, K a) -> (A a, K A a) with A = H K + damping, by one product with K."""
        a, image = pair
        hessian_part = hessian_product(image)  # H K a
        moved = hessian_part + damping * a
        image_of_moved = operator.mv(hessian_part) + damping * image
        return moved, image_of_moved

    def inner(a: WithImage, b: WithImage) -> Scalar:
        """<a, b> = a^T K b."""
        left, _ = a
        _, image_of_right = b
        return jnp.vdot(left, image_of_right)

    return conjugate_gradients(
        product,
        right,
        tolerance=solver.tolerance,
        max_steps=solver.max_steps,
        inner=inner,
    )


def _in_parameter_space(
    operator: NTKOperator,
    start: Outputs,
    labels: PyTree,
    displacement: PyTree | None,
    damping: Scalar,
    loss_and_solver: tuple[Loss, CG],
) -> SolvedStep:
    """The step with (J^T H J + damping) step = -(J^T g + damping u)."""
    loss, solver = loss_and_solver
    gradient, hessian_product = _derivatives(loss, labels, start)
    # The right-hand side -(J^T g + damping u), a tree like the parameters.
    right = jax.tree.map(jnp.negative, operator.cotangent(gradient))
    if displacement is not None:
        right = jax.tree.map(lambda r, u: r - damping * u, right, displacement)

    def product(step: PyTree) -> PyTree:
        change = operator.tangent(step)  # J step
        return operator.cotangent(hessian_product(change))  # J^T H J step

    step, iterations, residual = solve_shifted(product, right, damping, solver)
    return SolvedStep(step, None, iterations, residual)
