"""Any loss in function space: gradient descent step by step, and gradient flow.

At parameters theta = theta_0 + J^T w the outputs of the linearized model are f = f_0 + K w on the
training examples, and likewise with the rows of the test examples. Every gradient of a loss of the
outputs is J^T times something, so that training moves w alone. With g the gradient of the loss with
respect to the outputs, a step and the flow are

    w <- w - eta g,    dw/dt = -g.

The first is gradient descent in the parameters of the linearized model, exactly. All that is asked
of K is a product: it may be a matrix or an `NTKOperator`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import Scalar, as_array, is_concrete, require_positive
from ntkdiag.descent import Descent, DescentLike, MomentumKind, as_descent
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import MSE, Loss
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.operator import NTKOperator, require_outputs, require_square
from ntkdiag.predict.problem import Prediction, read_problem
from ntkdiag.pytree_dataclass import pytree

if TYPE_CHECKING:
    from diffrax import AbstractSolver

MOST_STEPS = 100_000  # of the integrator
Rows: TypeAlias = Float[Array, "..."]  # [k c] beside a matrix, [n ...] beside an operator
Product: TypeAlias = Float[Array, "k k"] | NTKOperator
Cross: TypeAlias = Float[Array, "l k"] | NTKOperator
# Weights w, and their velocity.
_State: TypeAlias = tuple[Rows, Rows]


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
) -> Prediction:
    """Outputs of the linearized model after full-batch gradient descent on any loss of the outputs.

    f <- f - eta Theta grad_f L(f), which is parameter-space descent on the linearized model,
    exactly, for the full kernel. Only weights on the training rows are kept; nothing is inverted.

    Cost: one product Theta v per step: O((NC)^2), or five forward passes for an `NTKOperator`.

    Source: Lee et al. 2019 (arXiv 1902.06720), section 2.2.

    Args:
        kernel: Full training kernel, or a reduced one standing for K kron I_C, or an `NTKOperator`.
        y: Labels, as the loss takes them.
        descent: The learning rate eta, or a `Descent` with momentum.
        steps: Number of steps, an integer or ascending `[T]` integers, known before compilation.
        loss: An object of `ntkdiag.losses`, its name, or `loss(outputs, y)`, one number.
        f0: f_0, outputs before training `[n]` or `[n o]`; an operator computes them if None.
        kernel_test: Test by train.
        f0_test: f_0, outputs on the test examples; None for 0 (for an operator: computed).

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, steps are not ascending
            integers, or the update rule has a preconditioner, weight decay or no rate.

    Example:
        >>> import jax.numpy as jnp
        >>> K = jnp.eye(2).reshape(2, 1, 2, 1)
        >>> f0 = jnp.zeros((2, 1))
        >>> print(iterate_descent(K, f0 + 1.0, 1.0, 2, loss="mse", f0=f0).train[:, 0])
        [0.75 0.75]
    """
    rule = _read_rule(descent)
    counts = np.asarray(steps)
    increments = np.diff(counts.reshape(-1), prepend=0)
    is_ascending = np.all(increments >= 0)
    if not (counts.size and np.issubdtype(counts.dtype, np.integer) and is_ascending):
        raise errors.InvalidInputError(
            expected="ascending non-negative integer `steps`, at least one",
            got=f"{steps}",
            do="Sort and round them.",
        )
    model, labels, loss_object = _read(kernel, y, loss, f0, kernel_test, f0_test)
    dtype = model.start.dtype
    rate = jnp.asarray(rule.require_learning_rate(), dtype)
    momentum = jnp.asarray(rule.momentum, dtype)
    state = (jnp.zeros_like(model.start),) * 2
    # From one number of steps to the next: the program is the same for all of them.
    weights = []
    for further in increments:
        arguments = labels, state, int(further), rate, momentum
        state = run(_advance, model, *arguments, static=(loss_object, rule.kind))
        weights.append(state[0])
    return model.follow(jnp.stack(weights), counts.shape)


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
    solver: "AbstractSolver | None" = None,
) -> Prediction:
    """Outputs of the linearized model under gradient flow on any loss: df/dt = -Theta grad_f L(f).

    Integrated by diffrax, with steps chosen by the error of the weights on the training rows: 1e-8
    of each, or 1e-5 in float32. After 100,000 steps the rest is NaN.

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
        solver: A diffrax solver; None is `diffrax.Tsit5()`.

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, or times are not ascending and
            finite.
    """
    times = np.asarray(time, np.float64)
    is_ascending = np.all(np.diff(times.reshape(-1), prepend=0.0) >= 0)
    if not (times.size and np.isfinite(times).all() and is_ascending):
        raise errors.InvalidInputError(
            expected="ascending, finite, non-negative `time`, at least one",
            got=f"{time}",
            do="Sort the times.",
        )
    model, labels, loss_object = _read(kernel, y, loss, f0, kernel_test, f0_test)
    # The integrator wants each time once, in the dtype in which it computes.
    ascending, positions = np.unique(times.astype(model.start.dtype), return_inverse=True)
    # Weights w [T ...].
    path = run(_integrate, model, labels, ascending, static=(loss_object, solver))
    return model.follow(path[positions.reshape(-1)], times.shape)


@pytree("kernel", "start", "cross", "start_test")
@dataclasses.dataclass(frozen=True)
class LinearModel:
    """f = f_0 + K w."""

    kernel: Product  # K, a matrix or an `NTKOperator`
    start: Rows  # f_0, in the layout of w
    cross: Cross | None  # K of test by training examples, or None
    start_test: Rows | None  # f_0 on the test examples, or None
    shape: tuple[int, ...]  # of the training outputs
    shape_test: tuple[int, ...]  # of the test outputs

    @property
    def reduces(self) -> bool:
        """Whether the network contains reductions; see `NTKOperator`."""
        kernels = self.kernel, self.cross
        return any(isinstance(kernel, NTKOperator) and kernel.reduces for kernel in kernels)

    def outputs(self, weights: Rows) -> Rows:
        """Outputs on the training examples at weights w."""
        return (self.start + self.kernel @ weights).reshape(self.shape)

    def follow(self, weights: Rows, axes: tuple[int, ...]) -> Prediction:
        """Outputs along a path of weights `[T ...]`, with the axes of the time in front."""
        train = jnp.stack([self.outputs(w) for w in weights])
        train = train.reshape(*axes, *self.shape)  # [T n o] -> [... n o]
        if self.cross is None or self.start_test is None:
            return Prediction(train)
        test = jnp.stack([self.start_test + self.cross @ w for w in weights])
        return Prediction(train, test.reshape(*axes, *self.shape_test))


def read_model(
    kernel: KernelLike | NTKOperator,
    f0: jax.typing.ArrayLike | None,
    kernel_test: KernelLike | NTKOperator | None,
    f0_test: jax.typing.ArrayLike | None,
) -> LinearModel:
    """The model from the arguments of a prediction for any loss."""
    if isinstance(kernel, NTKOperator):
        return _read_operators(kernel, f0, kernel_test, f0_test)
    if f0 is None:
        raise errors.InvalidInputError(
            expected="`f0` beside a kernel that is an array",
            got="None",
            do="Pass `f0=f(params, x)`; with NTKOperator(f, params, x) they are computed.",
        )
    f0 = as_array(f0, "f0")
    # The loss knows its labels and denominator: y = 0 and D = 1 stand in for them here.
    problem = read_problem(
        kernel,
        np.zeros(f0.shape, np.float32),
        kernel_test=kernel_test,  # an operator is refused  # pyright: ignore[reportArgumentType]
        f0=f0,
        f0_test=f0_test,
        loss=MSE(denominator=1.0),
    )
    return LinearModel(
        kernel=problem.kernel,
        start=problem.start,
        cross=problem.cross,
        start_test=problem.start_test,
        shape=problem.shape,
        shape_test=problem.shape_test,
    )


def _read_operators(
    kernel: NTKOperator,
    f0: jax.typing.ArrayLike | None,
    kernel_test: KernelLike | NTKOperator | None,
    f0_test: jax.typing.ArrayLike | None,
) -> LinearModel:
    """The model of operators, which compute the outputs that are not passed."""
    # The training set.
    require_square(kernel)
    cross = _read_cross_operator(kernel, kernel_test)
    start = require_outputs(kernel, kernel.outputs() if f0 is None else f0, "f0")
    shape = (kernel.n_examples, *kernel.output_shape)
    if cross is None:
        return LinearModel(kernel, start, None, None, shape, ())

    # The test set.
    start_test = require_outputs(cross, cross.outputs() if f0_test is None else f0_test, "f0_test")
    shape_test = (cross.n_examples, *cross.output_shape)
    return LinearModel(kernel, start, cross, start_test, shape, shape_test)


def _read_cross_operator(
    kernel: NTKOperator, kernel_test: KernelLike | NTKOperator | None
) -> NTKOperator | None:
    """The operator of test by training examples, refused where it does not fit."""
    if kernel_test is None:
        return None
    is_operator = isinstance(kernel_test, NTKOperator)
    if is_operator and kernel_test.shape[1] == kernel.shape[0]:
        return kernel_test
    raise errors.InvalidInputError(
        expected="`kernel_test` as NTKOperator(f, params, x_test, x)",
        got=f"shape {kernel_test.shape}" if is_operator else type(kernel_test).__name__,
        do="Rows are test examples, columns the training examples.",
    )


def _read_rule(descent: DescentLike) -> Descent:
    """The update rule as a `Descent` of one positive learning rate."""
    rule = as_descent(descent)
    require_positive(rule.require_learning_rate(), "learning_rate")
    has_decay = not is_concrete(rule.weight_decay) or float(rule.weight_decay) != 0.0
    if rule.preconditioner is not None or has_decay:
        raise errors.InvalidInputError(
            expected="`descent` with a learning rate and momentum alone",
            got=f"{rule!r}",
            do="A preconditioner belongs to the kernel: ntk(f, params, x, preconditioner=P). Decay "
            "pulls to zero: train ntkdiag.linearized_model.",
        )
    return rule


def _read(
    kernel: KernelLike | NTKOperator,
    y: PyTree,
    loss: LossLike,
    f0: jax.typing.ArrayLike | None,
    kernel_test: KernelLike | NTKOperator | None,
    f0_test: jax.typing.ArrayLike | None,
) -> tuple[LinearModel, PyTree, Loss]:
    """The model, the labels and the loss from the arguments that both predictions share."""
    loss_object = require_loss(loss, "what is learned")
    model = read_model(kernel, f0, kernel_test, f0_test)
    labels = loss_object.read(y, model.shape)
    # A loss that does not run, or does not return a number, is refused here and not inside a
    # program.
    outputs = jax.ShapeDtypeStruct(model.shape, model.start.dtype)
    jax.eval_shape(lambda f: loss_object(f, labels), outputs)
    return model, labels, loss_object


def _gradient(model: LinearModel, labels: PyTree, weights: Rows, loss: Loss) -> Rows:
    """grad_f L(f), in the layout of w."""
    return jax.grad(loss)(model.outputs(weights), labels).reshape(weights.shape)


def _advance(
    model: LinearModel,
    labels: PyTree,
    state: _State,
    count: Int[Array, ""] | int,
    rate: Scalar,
    momentum: Scalar,
    loss_and_kind: tuple[Loss, MomentumKind],
) -> _State:
    """The state after `count` more steps."""
    loss, kind = loss_and_kind

    # heavy-ball: v <- beta v + g, along v. nesterov: the same v, along g + beta v. ema:
    # v <- beta v + (1 - beta) g, along v.
    def step(_: Int[Array, ""], state: _State) -> _State:
        weights, velocity = state
        gradient = _gradient(model, labels, weights, loss)
        fresh = (1.0 - momentum) * gradient if kind == "ema" else gradient
        velocity = momentum * velocity + fresh
        direction = gradient + momentum * velocity if kind == "nesterov" else velocity
        return weights - rate * direction, velocity

    return jax.lax.fori_loop(0, count, step, state)


def _integrate(
    model: LinearModel,
    labels: PyTree,
    times: Float[Array, " T"],
    loss_and_solver: tuple[Loss, "AbstractSolver | None"],
) -> Float[Array, "T ..."]:
    """The weights w at ascending times, from w = 0 at time 0."""
    loss, solver = loss_and_solver

    def velocity(_: Scalar, weights: Rows, args: tuple[LinearModel, PyTree]) -> Rows:
        return -_gradient(*args, weights, loss)

    start = jnp.zeros_like(model.start)
    return solve_ode(velocity, start, times, (model, labels), solver)


def solve_ode(
    velocity: Callable[..., Float[Array, "..."]],  # (t, y, args) -> dy/dt
    start: Float[Array, "..."],
    times: Float[Array, " T"],
    args: PyTree = None,
    solver: "AbstractSolver | None" = None,
    *,
    least_size: float = 1e-3,  # of y, below which errors are absolute
) -> Float[Array, "T ..."]:
    """Solutions of dy/dt = velocity(t, y, args), y(0) = start, at ascending times."""
    import diffrax  # here, because loading it takes longer than the rest of the package

    relative = 1e-8 if start.dtype == np.float64 else 1e-5
    # An interval of length zero is refused by diffrax: if only 0 is requested, it continues to 1.
    end = jnp.where(times[-1] > 0, times[-1], 1.0)
    solved = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5() if solver is None else solver,
        t0=jnp.zeros((), times.dtype),
        t1=end.astype(times.dtype),
        dt0=None,
        y0=start,
        args=args,
        saveat=diffrax.SaveAt(ts=times),
        # Weights begin at 0, where a relative error alone asks for steps of no length.
        stepsize_controller=diffrax.PIDController(rtol=relative, atol=least_size * relative),
        max_steps=MOST_STEPS,
        throw=False,  # what is not reached is NaN, which a caller may warn about
    )
    assert solved.ys is not None  # set, because `ts` is
    # diffrax leaves infinity where it did not arrive.
    return jnp.where(jnp.isfinite(solved.ys), solved.ys, jnp.nan)
