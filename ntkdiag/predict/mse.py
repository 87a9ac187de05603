"""Squared error in closed form: gradient flow, gradient descent, momentum, ridge, weight decay."""

from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.operand import KernelLike, is_concrete
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.predict import on_operators
from ntkdiag.predict.closed_form import assemble, modes_of
from ntkdiag.predict.laws import Descent, Flow
from ntkdiag.predict.matrix_function import Modes
from ntkdiag.predict.origin import Origin
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import Problem, read_problem
from ntkdiag.predict.threshold import MomentumKind, stability_threshold, warn_above_critical
from ntkdiag.scalars import Number, require_at_least_zero, require_positive

Times: TypeAlias = jax.typing.ArrayLike | Sequence[float | int]


@errors.public
@keeps_float64
def gradient_flow(
    kernel: KernelLike | NTKOperator,
    y: jax.typing.ArrayLike,
    time: Times = jnp.inf,
    *,
    kernel_test: KernelLike | NTKOperator | None = None,
    f0: jax.typing.ArrayLike | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    ridge: Number = 0.0,
    origin: Origin | None = None,
    loss_denominator: Number | None = None,
) -> Prediction:
    """Outputs of the linearized model under gradient flow on (1/D) sum 1/2 (f - y)^2.

    f_t = y + exp(-Theta t / D) (f_0 - y) on the training set, f_t(x) = f_0(x) - Theta(x, X) psi_t(Theta) (f_0 - y)
    with psi_t(lambda) = (1 - exp(-lambda t / D)) / lambda. A ridge adds (ridge / 2D) ||theta - theta_0||^2 to the
    loss; at t = infinity that is kernel ridge regression. With `origin` the penalty is (ridge / 2D) ||theta||^2,
    ordinary weight decay, which is another predictor.
    Modes with an unresolved eigenvalue go as it says while t / D is below 1 / floor, then stand still; at infinity they
    are left out. No division by small eigenvalues takes place.
    Gradients by the kernel (and so by parameters and inputs), targets, f0, ridge and time are exact, also where
    eigenvalues coincide; second ones by the kernel are NaN there.
    Cost: one eigendecomposition, O((NC)^3), and O((NC)^2) per time. Source: Lee et al. 2019 (arXiv 1902.06720),
    eqs. 9 to 11; neural-tangents divides by |lambda| where this takes the limit.

    Args:
        kernel: Training kernel: full `[n o n o]`, a reduced `Kernel` (then K kron I_C stands for the full one, an
            approximation), or a matrix. An `NTKOperator` is not decomposed: its times are reached step by step (by
            `integrate_flow` and `iterate_descent`), infinity by `least_squares`; a warning says if that stops early.
        y: `[n]` or `[n o]` targets.
        time: t = learning rate x steps, a number or `[T]` in any order, infinity allowed. Steps of gradient
            descent are this only far below the critical learning rate; otherwise use `gradient_descent`.
        kernel_test: Test by train, in the same convention, for predictions on test examples.
        f0: f_0 on the training examples, shaped like y; None for 0 (for an operator: computed).
        f0_test: f_0 on the test examples; None for 0.
        ridge: In units of the kernel's eigenvalues; D times the coefficient of weight decay.
        origin: J theta_0 for decay to zero; None for a ridge to the initial parameters.
        loss_denominator: D; None for the number of examples.

    Returns:
        Outputs on training and test examples, each `[... n o]` with the axes of `time` first.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, the kernel is not symmetric, has negative
            eigenvalues or is a trace, or a number is negative.
    """
    require_at_least_zero(ridge, "ridge")
    require_at_least_zero(jnp.asarray(time, jnp.result_type(float)), "time", many=True)
    if isinstance(kernel, NTKOperator):
        given = on_operators.Given(y, kernel_test, f0, f0_test, ridge, origin, loss_denominator)
        return on_operators.flow(kernel, given, time)
    problem = read_problem(
        kernel,
        y,
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        origin=origin,
        loss_denominator=loss_denominator,
    )
    return follow_flow(problem, modes_of(problem), time, ridge)


def follow_flow(problem: Problem, modes: Modes, time: Times, ridge: Number) -> Prediction:
    """`gradient_flow` of a problem whose kernel was decomposed before.

    Cost: O((NC)^2) per time.

    Args:
        problem: The problem.
        modes: Of its kernel.
        time: As for `gradient_flow`.
        ridge: As for `gradient_flow`.

    Returns:
        As `gradient_flow`.
    """
    times = jnp.asarray(time, problem.kernel.dtype)
    return assemble(
        problem, modes, Flow(times.reshape(-1) / problem.denominator, ridge), times.shape
    )


@errors.public
@keeps_float64
def gradient_descent(
    kernel: KernelLike | NTKOperator,
    y: jax.typing.ArrayLike,
    steps: Times,
    learning_rate: Number,
    *,
    kernel_test: KernelLike | NTKOperator | None = None,
    f0: jax.typing.ArrayLike | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    momentum: Number = 0.0,
    momentum_kind: MomentumKind = "heavy-ball",
    ridge: Number = 0.0,
    origin: Origin | None = None,
    loss_denominator: Number | None = None,
) -> Prediction:
    """Outputs of the linearized model after full-batch gradient descent on (1/D) sum 1/2 (f - y)^2.

    f_t = y + (1 - eta Theta / D)^t (f_0 - y), what iterating gives; with momentum by powers of each mode's
    transition matrix. Everything else as for `gradient_flow`. Above the critical learning rate the outputs grow
    without bound, as they do in training, and a warning names the critical value.
    Cost: as `gradient_flow`. Source: Lee et al. 2019 (arXiv 1902.06720) for the flow; the powers are elementary.

    Args:
        kernel: As for `gradient_flow`.
        y: As for `gradient_flow`.
        steps: Number of steps, an integer or `[T]` integers (to 2^24 exact in float32; with momentum below 2^31);
            infinity allowed.
        learning_rate: eta.
        kernel_test: As for `gradient_flow`.
        f0: As for `gradient_flow`.
        f0_test: As for `gradient_flow`.
        momentum: beta in [0, 1). Within 1 % of the critical learning rate a float32 kernel gives two to three digits
            less than float64.
        momentum_kind: "heavy-ball", "nesterov" or "ema"; see `ntkdiag.analysis.stability_threshold`.
        ridge: As for `gradient_flow`; its gradient passes through the momentum (L2 penalty, not decoupled decay).
        origin: As for `gradient_flow`.
        loss_denominator: As for `gradient_flow`.

    Returns:
        As `gradient_flow`; NaN at infinity when the learning rate is above critical.

    Raises:
        InvalidInputError: As `gradient_flow`, or when steps are no integers.

    Warns:
        RuntimeWarning: When the learning rate is above critical, with the critical value; with an `NTKOperator` where
            steps are infinite, from 30 more products, and a critical value some percent too high.
    """
    _check_descent(steps, learning_rate, momentum, momentum_kind, ridge)
    if isinstance(kernel, NTKOperator):
        given = on_operators.Given(y, kernel_test, f0, f0_test, ridge, origin, loss_denominator)
        return on_operators.descent(kernel, given, steps, learning_rate, momentum, momentum_kind)
    problem = read_problem(
        kernel,
        y,
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        origin=origin,
        loss_denominator=loss_denominator,
    )
    modes = modes_of(problem)
    counts = jnp.asarray(steps, problem.kernel.dtype)
    beta = None if isinstance(momentum, float | int) and momentum == 0 else momentum
    threshold, decay = stability_threshold(momentum, momentum_kind), ridge / problem.denominator
    warn_above_critical(learning_rate, modes.values[-1], problem.denominator, threshold, decay)
    rate = learning_rate / problem.denominator
    law = Descent(counts.reshape(-1), rate, ridge, beta, momentum_kind)
    return assemble(problem, modes, law, counts.shape)


def _check_descent(
    steps: Times, learning_rate: Number, momentum: Number, kind: MomentumKind, ridge: Number
) -> None:
    require_at_least_zero(ridge, "ridge")
    require_positive(learning_rate, "learning_rate")
    if is_concrete(steps):
        counts = np.asarray(steps, np.float64)
        if not np.all((counts >= 0) & ((counts == np.floor(counts)) | np.isinf(counts))):
            raise errors.InvalidInputError(
                expected="non-negative integer `steps`, or infinity",
                got=f"{steps}",
                do="Round them.",
            )
        if np.any((counts >= 2**31) & np.isfinite(counts)) and not (
            is_concrete(momentum) and float(momentum) == 0.0
        ):
            do = "Take infinity, or momentum=0 with the learning rate divided by 1 - momentum."
            raise errors.InvalidInputError(
                expected="fewer than 2^31 `steps` with momentum, or infinity", got=f"{steps}", do=do
            )
    if is_concrete(momentum) and not 0 <= float(momentum) < 1:
        raise errors.InvalidInputError(
            expected="`momentum` in [0, 1)", got=f"{momentum}", do="Pass the optimizer's beta."
        )
    if kind not in ("heavy-ball", "nesterov", "ema"):
        raise errors.InvalidInputError(
            expected='`momentum_kind` "heavy-ball", "nesterov" or "ema"',
            got=repr(kind),
            do="optax.sgd(momentum=...) is heavy-ball, with nesterov=True nesterov.",
        )
