"""Squared error in closed form: gradient flow, gradient descent, ridge.

In the eigenbasis of the training kernel every mode is learned by itself. With c the weights on the
training rows of J,

    theta_t = theta_0 + J^T c,    c = -psi(Theta) (f_0 - y),

where psi is the response of a law: how far a mode has answered the residual. The outputs are
f_0 + Theta c. So a prediction is

1. `read_problem`: kernels, targets and initial outputs as matrices;
2. `modes_of`: the eigendecomposition, once for all times;
3. a law: how far a mode of each eigenvalue is learned at each time;
4. `assemble`: from modes back to outputs.
"""

import functools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.arrays import Number, is_concrete, require_at_least_zero
from ntkdiag.descent import DescentLike, plain_learning_rate
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.spectrum import Spectrum, decompose
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import MSE
from ntkdiag.losses.loss_argument import as_loss
from ntkdiag.predict.matrix_function import Eigenmodes, Profile, apply
from ntkdiag.predict.problem import Prediction, Problem, read_problem, warn_above_critical
from ntkdiag.predict.response import DescentLaw, FlowLaw, Law

Times: TypeAlias = jax.typing.ArrayLike | Sequence[float | int]
SquaredError: TypeAlias = MSE | Literal["mse"]


@errors.public
@keeps_float64
def gradient_flow(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    time: Times = jnp.inf,
    *,
    kernel_test: KernelLike | None = None,
    f0: jax.typing.ArrayLike | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    ridge: Times = 0.0,
    loss: SquaredError = "mse",
) -> Prediction:
    """Outputs of the linearized model under gradient flow on (1/D) sum 1/2 (f - y)^2.

    On the training set f_t = y + exp(-Theta t / D) (f_0 - y), elsewhere
    f_t(x) = f_0(x) - Theta(x, X) psi_t(Theta) (f_0 - y) with
    psi_t(lambda) = (1 - exp(-lambda t / D)) / lambda. A ridge adds
    (ridge / 2D) ||theta - theta_0||^2 to the loss; at t = infinity that is kernel ridge regression.

    Modes with an unresolved eigenvalue follow it while t / D is below 1 / floor, then stop; at
    infinity they are left out. No division by small eigenvalues takes place.

    Gradients by the kernel (and so by parameters and inputs), targets, f0, ridge and time are
    exact, also where eigenvalues coincide; second ones by the kernel are NaN there.

    Cost: one eigendecomposition, O((NC)^3), and O((NC)^2) per time.

    Source: Lee et al. 2019 (arXiv 1902.06720), eqs. 9 to 11; neural-tangents divides by |lambda|
    where this takes the limit.

    Args:
        kernel: Training kernel: full `[n o n o]`, a reduced `Kernel` (then K kron I_C stands for
            the full one, an approximation), a matrix, or the `Spectrum` of one of them, which is
            not decomposed again. For an `NTKOperator` there are `integrate_flow`,
            `iterate_descent` and, at infinity, `matrix_free.least_squares`.
        y: `[n]` or `[n o]` targets, or class numbers.
        time: t = learning rate x steps, a number or `[T]` in any order, infinity allowed. Steps of
            gradient descent are this only far below the critical learning rate; otherwise use
            `gradient_descent`.
        kernel_test: Test by train, in the same convention, for predictions on test examples.
        f0: f_0, outputs on the training examples, shaped like y; None for 0.
        f0_test: f_0, outputs on the test examples; None for 0.
        ridge: In units of the kernel's eigenvalues; D times the coefficient of the penalty. A
            vector `[R]` of them is a path: it broadcasts against `time`, so that with one time the
            outputs are `[R n o]`.
        loss: "mse", or `losses.MSE(denominator=D)` where D is not the number of examples.

    Returns:
        Outputs on training and test examples, each `[... n o]` with the axes of `time` first.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, the kernel is not symmetric,
            has negative eigenvalues or is a trace, a number is negative, or the loss another.

    Example:
        >>> import jax.numpy as jnp
        >>> K = jnp.eye(2).reshape(2, 1, 2, 1)
        >>> print(gradient_flow(K, jnp.ones((2, 1)), ridge=jnp.array([0.0, 1.0])).train[:, 0, 0])
        [1.  0.5]
    """
    require_at_least_zero(jnp.asarray(ridge, jnp.result_type(float)), "ridge", many=True)
    require_at_least_zero(jnp.asarray(time, jnp.result_type(float)), "time", many=True)
    squared_error = read_squared_error(loss)
    problem = read_problem(
        kernel,
        y,
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        loss=squared_error,
    )
    return follow_flow(problem, modes_of(problem, kernel), time, ridge)


def follow_flow(problem: Problem, modes: Eigenmodes, time: Times, ridge: Times) -> Prediction:
    """`gradient_flow` of a problem whose kernel was decomposed before, in O((NC)^2) per time."""
    times = jnp.asarray(time, problem.kernel.dtype)
    ridges = jnp.asarray(ridge, problem.kernel.dtype)
    try:
        axes = jnp.broadcast_shapes(times.shape, ridges.shape)
    except ValueError:
        raise errors.InvalidInputError(
            expected="`time` and `ridge` whose shapes broadcast",
            got=f"shapes {times.shape} and {ridges.shape}",
            do="Pass one time with a vector of ridges, or as many of both.",
        ) from None
    # As vectors [T] of one time and one ridge each; `axes` gives the outputs their shape again.
    times = jnp.broadcast_to(times, axes).reshape(-1)
    ridges = jnp.broadcast_to(ridges, axes).reshape(-1)
    return assemble(problem, modes, FlowLaw(times / problem.denominator, ridges), axes)


@errors.public
@keeps_float64
def gradient_descent(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    descent: DescentLike,
    steps: Times,
    *,
    kernel_test: KernelLike | None = None,
    f0: jax.typing.ArrayLike | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    ridge: Number = 0.0,
    loss: SquaredError = "mse",
) -> Prediction:
    """Outputs of the linearized model after full-batch gradient descent on (1/D) sum 1/2 (f - y)^2.

    f_t = y + (1 - eta Theta / D)^t (f_0 - y), what iterating gives. Everything else as for
    `gradient_flow`. Above the critical learning rate the outputs grow without bound, as they do in
    training, and a warning names the critical value.

    Cost: as `gradient_flow`.

    Source: Lee et al. 2019 (arXiv 1902.06720) for the flow; the powers are elementary.

    Args:
        kernel: As for `gradient_flow`.
        y: As for `gradient_flow`.
        descent: The learning rate eta, or a plain `Descent`; `iterate_descent` takes momentum.
        steps: Number of steps, an integer or `[T]` integers (to 2^24 exact in float32); infinity
            allowed.
        kernel_test: As for `gradient_flow`.
        f0: As for `gradient_flow`.
        f0_test: As for `gradient_flow`.
        ridge: One number, in units of the kernel's eigenvalues.
        loss: As for `gradient_flow`.

    Returns:
        As `gradient_flow`; NaN at infinity when the learning rate is above critical.

    Raises:
        InvalidInputError: As `gradient_flow`, or when steps are no integers, or the update rule is
            not plain gradient descent at one rate.

    Warns:
        RuntimeWarning: When the learning rate is above critical, with the critical value.

    Example:
        >>> import jax.numpy as jnp
        >>> K = jnp.eye(2).reshape(2, 1, 2, 1)
        >>> print(gradient_descent(K, jnp.ones((2, 1)), 1.0, [0, 1, 2]).train[:, 0, 0])
        [0.   0.5  0.75]
    """
    require_at_least_zero(ridge, "ridge")
    rate = plain_learning_rate(descent)
    _require_steps(steps)
    squared_error = read_squared_error(loss)
    problem = read_problem(
        kernel,
        y,
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        loss=squared_error,
    )
    modes = modes_of(problem, kernel)
    # The largest curvature of the loss with its penalty.
    warn_above_critical(rate, (modes.values[0] + ridge) / problem.denominator)
    counts = jnp.asarray(steps, problem.kernel.dtype)
    law = DescentLaw(counts.reshape(-1), rate / problem.denominator, ridge)
    return assemble(problem, modes, law, counts.shape)


def modes_of(problem: Problem, kernel: KernelLike | None = None) -> Eigenmodes:
    """The modes of the training kernel; NaN throughout where a traced one cannot be refused."""
    if isinstance(kernel, Spectrum) and kernel.is_complete and kernel.vectors is not None:
        modes = kernel
    else:
        modes = decompose(problem.kernel, problem.noise_floor, vectors=True)
    modes = modes.require_semidefinite()
    dtype = problem.kernel.dtype
    values = jnp.asarray(modes.eigenvalues, dtype)
    # Negative by rounding only: counted as 0, but moving with the kernel as before.
    below_zero = jax.lax.stop_gradient(jnp.minimum(values, 0.0))
    floor = jax.lax.stop_gradient(jnp.asarray(modes.noise_floor, dtype))
    return Eigenmodes(values - below_zero, jnp.asarray(modes.vectors, dtype), floor)


@functools.partial(jax.jit, static_argnames="axes")
def assemble(problem: Problem, modes: Eigenmodes, law: Law, axes: tuple[int, ...]) -> Prediction:
    """Put the outputs together, at times of the shape `axes`; O((NC)^2) per time."""

    def of_kernel(
        profile: Profile, columns: Float[Array, "k c"]
    ) -> tuple[Float[Array, "T k c"], Float[Array, "T k c"]]:
        """Theta h(Theta) b and h(Theta) b for the response h of a profile."""
        both = apply(profile, problem.kernel, modes, law, columns)  # [2T k c]
        moved, weights = jnp.split(both, 2)
        return moved, weights

    # The answer to the residual: Theta c and c.
    learned, weights = of_kernel(_of_source, -problem.residual)
    train = problem.start + learned
    test = None
    if problem.cross is not None and problem.start_test is not None:
        test = problem.start_test + problem.cross @ weights  # [T l c]
        test = test.reshape(*axes, *problem.shape_test)

    # What no time will learn: the residual in modes that the kernel does not resolve.
    vectors = jax.lax.stop_gradient(modes.vectors)
    is_unresolved = modes.values <= modes.floor
    left = jnp.where(is_unresolved[:, None], vectors.T @ problem.residual, 0.0)  # [k c]
    return Prediction(
        train=train.reshape(*axes, *problem.shape),
        test=test,
        unlearned=jnp.sqrt(jnp.sum(left**2) / left.size),
        unresolved=jnp.sum(is_unresolved),
    )


def _of_source(
    law: Law, values: Float[Array, " k"], floor: Float[Array, ""]
) -> Float[Array, "h k"]:
    """lambda psi for the outputs, and psi for the weights."""
    psi = law.response(values, floor)
    return jnp.concatenate([values * psi, psi])  # [T k] each -> [2T k]


def read_squared_error(loss: SquaredError) -> MSE:
    """The loss, refused where its training has no closed form."""
    squared_error = as_loss(loss)
    if isinstance(squared_error, MSE):
        return squared_error
    raise errors.InvalidInputError(
        expected='squared error: `loss` "mse" or losses.MSE(denominator=D)',
        got=f"loss={loss!r}",
        do="Other losses have no closed form: see predict.iterate_descent and integrate_flow.",
    )


def _require_steps(steps: Times) -> None:
    """Refuse steps that are no non-negative integers."""
    if not is_concrete(steps):  # traced: what they are is not known
        return
    counts = np.asarray(steps, np.float64)
    is_integer = (counts == np.floor(counts)) | np.isinf(counts)
    if not np.all((counts >= 0) & is_integer):
        raise errors.InvalidInputError(
            expected="non-negative integer `steps`, or infinity",
            got=f"{steps}",
            do="Round them.",
        )
