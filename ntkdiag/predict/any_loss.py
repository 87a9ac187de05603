"""Any loss in function space: gradient descent step by step, and gradient flow.

With g the gradient of the loss in the outputs, which depend on the weights w on the training rows
as in `linear_model`, a step and the flow are

    w <- w - eta (g + (ridge / D) w),    dw/dt = -g - (ridge / D) w.

The first is gradient descent in the parameters of the linearized model, exactly. Both are solved
for w alone; outputs, on test examples too, are assembled from it at the times asked for.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.descent import DescentLike, MomentumKind
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.predict.linear_model import LinearModel, Rows, read_model
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import read_rule
from ntkdiag.scalars import Number, Scalar, require_at_least_zero, require_positive

if TYPE_CHECKING:
    from diffrax import AbstractSolver

# Weights w, and their velocity.
_State = tuple[Rows, Rows]


class _Problem(NamedTuple):
    """What is trained."""

    model: LinearModel
    labels: PyTree  # as the loss read them
    penalty: Scalar  # ridge / D


@errors.public
@keeps_float64
def iterate_descent(
    kernel: KernelLike | NTKOperator,
    y: PyTree,
    descent: DescentLike,
    steps: jax.typing.ArrayLike | Sequence[int],
    *,
    loss: LossLike,
    f0: jax.typing.ArrayLike | None = None,
    kernel_test: KernelLike | NTKOperator | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    ridge: Number = 0.0,
) -> Prediction:
    """Outputs of the linearized model after full-batch gradient descent on any loss of the outputs.

    f <- f - eta Theta grad_f L(f), which is parameter-space descent on the linearized model,
    exactly, for the full kernel. What is kept are weights on the training rows, so that nothing is
    inverted.

    Cost: one product Theta v per step: O((NC)^2), or five forward passes for an `NTKOperator`.

    Source: Lee et al. 2019 (arXiv 1902.06720), section 2.2.

    Args:
        kernel: Full training kernel, or a reduced one standing for K kron I_C, or an `NTKOperator`.
        y: Labels, as the loss takes them.
        descent: As for `gradient_descent`.
        steps: Number of steps, an integer or ascending `[T]` integers, known before compilation.
        loss: An object of `ntkdiag.losses`, its name, or `loss(outputs, y)`, one number.
        f0: f_0, outputs before training `[n]` or `[n o]`; an operator computes them if None.
        kernel_test: Test by train.
        f0_test: f_0, outputs on the test examples; None for 0 (for an operator: computed).
        ridge: In units of the kernel's eigenvalues: the coefficient of 1/2 ||theta - theta_0||^2 in
            the loss is ridge / D, with D the denominator of the loss (the number of examples, for a
            function too).

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, steps are no ascending
            integers, or the update rule is none that `gradient_descent` takes.

    Example:
        >>> import jax.numpy as jnp
        >>> K = jnp.eye(2).reshape(2, 1, 2, 1)
        >>> f0 = jnp.zeros((2, 1))
        >>> print(iterate_descent(K, f0 + 1.0, 1.0, 2, loss="mse", f0=f0).train[:, 0])
        [0.75 0.75]
    """
    rule = read_rule(descent)
    counts = np.asarray(steps)
    increments = np.diff(counts.reshape(-1), prepend=0)
    is_ascending = np.all(increments >= 0)
    if not (counts.size and np.issubdtype(counts.dtype, np.integer) and is_ascending):
        raise errors.InvalidInputError(
            expected="ascending non-negative integer `steps`, at least one",
            got=f"{steps}",
            do="Sort and round them.",
        )
    problem, loss_object = _read(
        kernel, y, loss, "descent", ridge, f0=f0, kernel_test=kernel_test, f0_test=f0_test
    )
    dtype = problem.model.start.dtype
    rate = jnp.asarray(rule.require_learning_rate(), dtype)
    momentum = jnp.asarray(rule.momentum, dtype)
    state = (jnp.zeros_like(problem.model.start),) * 2
    # From one number of steps to the next: the program is the same for all of them.
    weights = []
    for further in increments:
        arguments = problem.labels, problem.penalty, state, int(further), rate, momentum
        state = run(_advance, problem.model, *arguments, static=(loss_object, rule.kind))
        weights.append(state[0])
    return problem.model.follow(jnp.stack(weights), counts.shape)


@errors.public
@keeps_float64
def integrate_flow(
    kernel: KernelLike | NTKOperator,
    y: PyTree,
    time: jax.typing.ArrayLike | Sequence[float],
    *,
    loss: LossLike,
    f0: jax.typing.ArrayLike | None = None,
    kernel_test: KernelLike | NTKOperator | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    ridge: Number = 0.0,
    tolerance: float | None = None,
    dt0: float | None = None,
    solver: "AbstractSolver | None" = None,
    max_steps: int = 100_000,
) -> Prediction:
    """Outputs of the linearized model under gradient flow on any loss: df/dt = -Theta grad_f L(f).

    Integrated by diffrax, with steps chosen by the error of the weights on the training rows.

    Cost: six products Theta v for each step of the default solver. An explicit solver is bound to
    steps below about 3 over the largest eigenvalue of Theta Hess L; for stiff problems pass
    ``solver=diffrax.Kvaerno5()``, whose steps cost a solve of the size of the kernel each.

    Args:
        kernel: As for `iterate_descent`.
        y: As for `iterate_descent`.
        time: t, a number or ascending `[T]`, known before compilation.
        loss: As for `iterate_descent`.
        f0: As for `iterate_descent`.
        kernel_test: As for `iterate_descent`.
        f0_test: As for `iterate_descent`.
        ridge: As for `iterate_descent`.
        tolerance: Relative error of each step; None is 1e-8, or 1e-5 in float32.
        dt0: A fixed step of the integrator in units of t, instead of a tolerance.
        solver: A diffrax solver; None is `diffrax.Tsit5()`.
        max_steps: Most steps; the outputs at times not reached are NaN.

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, times are not ascending and
            finite, or a number is out of its range.
    """
    if dt0 is not None:
        require_positive(dt0, "dt0")
    if tolerance is not None:
        require_positive(tolerance, "tolerance")
    require_positive(max_steps, "max_steps")
    times = np.asarray(time, np.float64)
    is_ascending = np.all(np.diff(times.reshape(-1), prepend=0.0) >= 0)
    if not (times.size and np.isfinite(times).all() and is_ascending):
        raise errors.InvalidInputError(
            expected="ascending, finite, non-negative `time`, at least one",
            got=f"{time}",
            do="Sort the times.",
        )
    problem, loss_object = _read(
        kernel, y, loss, "the flow", ridge, f0=f0, kernel_test=kernel_test, f0_test=f0_test
    )
    dtype = problem.model.start.dtype
    if tolerance is None:
        tolerance = 1e-8 if dtype == np.float64 else 1e-5
    if dt0 is not None:
        # As many steps as it takes, and some for the times in between.
        needed = int(np.ceil(times.max() / dt0)) + times.size + 2
        max_steps = max(max_steps, needed)
    # The integrator wants each time once.
    ascending, positions = np.unique(times, return_inverse=True)
    arguments = problem.labels, problem.penalty, jnp.asarray(ascending, dtype)
    static = loss_object, solver, dt0, tolerance, max_steps
    path = run(_integrate, problem.model, *arguments, static=static)
    return problem.model.follow(path[positions.reshape(-1)], times.shape)  # of weights [T ...]


def _read(
    kernel: KernelLike | NTKOperator,
    y: PyTree,
    loss: LossLike,
    what: str,
    ridge: Number,
    **outputs_and_test: Any,
) -> tuple[_Problem, Loss]:
    """The problem from the arguments that both predictions share; `what` depends on the loss."""
    require_at_least_zero(ridge, "ridge")
    loss_object = require_loss(loss, what)
    model = read_model(kernel, **outputs_and_test)
    labels = loss_object.read(y, model.shape)
    # A loss that does not run, or is no number, is refused here and not inside a program.
    outputs = jax.ShapeDtypeStruct(model.shape, model.start.dtype)
    jax.eval_shape(lambda f: loss_object(f, labels), outputs)
    penalty = ridge / loss_object.denominator_for(model.shape)
    return _Problem(model, labels, jnp.asarray(penalty, model.start.dtype)), loss_object


def _gradient(
    model: LinearModel, labels: PyTree, penalty: Scalar, weights: Rows, loss: Loss
) -> Rows:
    """grad_f L(f) + (ridge / D) w, in the layout of w."""
    gradient = jax.grad(loss)(model.train(weights), labels).reshape(weights.shape)
    return gradient + penalty * weights


def _advance(
    model: LinearModel,
    labels: PyTree,
    penalty: Scalar,
    state: _State,
    count: Int[Array, ""] | int,
    rate: Scalar,
    momentum: Scalar,
    loss_and_kind: tuple[Loss, MomentumKind],
) -> _State:
    """The state after some steps more."""
    loss, kind = loss_and_kind

    # heavy-ball: v <- beta v + g, along v. nesterov: the same v, along g + beta v. ema:
    # v <- beta v + (1 - beta) g, along v.
    def step(_: Int[Array, ""], state: _State) -> _State:
        weights, velocity = state
        gradient = _gradient(model, labels, penalty, weights, loss)
        fresh = (1.0 - momentum) * gradient if kind == "ema" else gradient
        velocity = momentum * velocity + fresh
        direction = gradient + momentum * velocity if kind == "nesterov" else velocity
        return weights - rate * direction, velocity

    return jax.lax.fori_loop(0, count, step, state)


def _integrate(
    model: LinearModel,
    labels: PyTree,
    penalty: Scalar,
    times: Float[Array, " T"],
    static: tuple[Loss, "AbstractSolver | None", float | None, float, int],
) -> Float[Array, "T ..."]:
    """The weights w at ascending times, from w = 0 at time 0."""
    loss, solver, dt0, tolerance, max_steps = static

    def velocity(_: Scalar, weights: Rows, args: tuple[LinearModel, PyTree, Scalar]) -> Rows:
        return -_gradient(*args, weights, loss)

    # The weights begin at 0, where a relative error alone asks for steps of no length.
    return solve_ode(
        velocity,
        jnp.zeros_like(model.start),
        times,
        (model, labels, penalty),
        relative=tolerance,
        absolute=1e-3 * tolerance,
        max_steps=max_steps,
        solver=solver,
        dt0=dt0,
    )


def solve_ode(
    velocity: Callable[..., Float[Array, "..."]],  # (t, y, args) -> dy/dt
    start: Float[Array, "..."],
    times: Float[Array, " T"],
    args: PyTree = None,
    *,
    relative: float,
    absolute: float,
    max_steps: int,
    solver: "AbstractSolver | None" = None,
    dt0: float | None = None,
) -> Float[Array, "T ..."]:
    """Solutions of dy/dt = velocity(t, y, args), y(0) = start, at ascending times.

    `relative` and `absolute` are the error of a step, and `dt0` a fixed step instead; after
    `max_steps` the rest is NaN. Cost: six evaluations of `velocity` for each step of the default
    solver `diffrax.Tsit5()`, which is explicit.
    """
    import diffrax  # here, because loading it takes longer than the rest of the package

    step_sizes = diffrax.PIDController(rtol=relative, atol=absolute)
    if dt0 is not None:
        step_sizes = diffrax.ConstantStepSize()
    # An interval of length zero is refused by diffrax: where only 0 is asked for, it goes on to 1.
    end = jnp.where(times[-1] > 0, times[-1], 1.0)
    solved = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5() if solver is None else solver,
        t0=jnp.zeros((), times.dtype),
        t1=end.astype(times.dtype),
        dt0=dt0,
        y0=start,
        args=args,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=step_sizes,
        max_steps=max_steps,
        throw=False,  # what is not reached is NaN, which a caller may warn about
    )
    assert solved.ys is not None  # there are, with `ts`
    # diffrax leaves infinity where it did not arrive.
    return jnp.where(jnp.isfinite(solved.ys), solved.ys, jnp.nan)
