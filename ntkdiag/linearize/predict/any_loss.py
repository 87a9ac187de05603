"""Any loss in function space: the recursion of gradient descent, and the ODE of gradient flow."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.kernels.operands.number import Number, require_positive
from ntkdiag.kernels.operands.operand import KernelLike, refuse
from ntkdiag.kernels.operands.precision import keeps_float64
from ntkdiag.linearize.predict.prediction import Prediction
from ntkdiag.linearize.predict.problem import Problem, read_problem

Loss = Callable[[jax.Array], jax.Array]


@keeps_float64
def iterate_descent(
    kernel: KernelLike,
    loss: Loss,
    steps: Any,
    learning_rate: Number,
    *,
    outputs: jax.typing.ArrayLike,
    kernel_test: KernelLike | None = None,
    outputs_test: jax.typing.ArrayLike | None = None,
    momentum: Number = 0.0,
) -> Prediction:
    """Outputs of the linearised model after full-batch gradient descent on any loss of the outputs.

    f <- f - eta Theta grad_f L(f), which is parameter-space descent on the linearised model, exactly, for the full
    kernel. Momentum is heavy-ball.
    Cost: O((NC)^2) per step. Source: Lee et al. 2019 (arXiv 1902.06720), section 2.2.

    Args:
        kernel: Full training kernel, or a reduced one standing for K kron I_C.
        loss: L(f), a number from outputs shaped like `outputs`; it holds the labels and the 1/N.
        steps: Number of steps, an integer or ascending `[T]` integers, known before compilation.
        learning_rate: eta.
        outputs: f_0, `[n]` or `[n o]`.
        kernel_test: Test by train.
        outputs_test: f_0 on the test examples; None for 0.
        momentum: beta.

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, or steps are no ascending integers.
    """
    call = "iterate_descent(kernel, loss, steps, learning_rate)"
    require_positive(learning_rate, call, "learning_rate")
    counts = np.asarray(steps)
    marks = np.concatenate([[0], counts.reshape(-1)])
    if not np.issubdtype(counts.dtype, np.integer) or np.any(np.diff(marks) < 0):
        refuse(call, expected="ascending non-negative integer `steps`", got=f"{steps}", do="Sort and round them.")
    problem = _read(call, kernel, outputs, kernel_test, outputs_test)
    gradient = _gradient(problem, loss, call)

    def step(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        weights, velocity = state
        velocity = momentum * velocity + gradient(weights)
        return weights - learning_rate * velocity, velocity

    advance = jax.jit(lambda state, count: jax.lax.fori_loop(0, count, step, state))
    state, saved = (jnp.zeros_like(problem.start), jnp.zeros_like(problem.start)), []
    for count in np.diff(marks):
        state = advance(state, count)
        saved.append(state[0])
    return _outputs(problem, jnp.stack(saved), counts.shape)


@keeps_float64
def integrate_flow(
    kernel: KernelLike,
    loss: Loss,
    time: Any,
    step: float,
    *,
    outputs: jax.typing.ArrayLike,
    kernel_test: KernelLike | None = None,
    outputs_test: jax.typing.ArrayLike | None = None,
) -> Prediction:
    """Outputs of the linearised model under gradient flow on any loss: df/dt = -Theta grad_f L(f).

    Integrated by the classical Runge-Kutta method of fourth order. Halve `step` to see the error: it falls 16-fold.
    Stable while step x (largest eigenvalue of Theta Hess L) is below 2.7.
    Cost: four products Theta v, O((NC)^2), per step.

    Args:
        kernel: As for `iterate_descent`.
        loss: As for `iterate_descent`.
        time: t, a number or ascending `[T]`, known before compilation.
        step: Largest step of the integrator, in units of t.
        outputs: As for `iterate_descent`.
        kernel_test: As for `iterate_descent`.
        outputs_test: As for `iterate_descent`.

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, or times are not ascending and finite.
    """
    call = "integrate_flow(kernel, loss, time, step)"
    require_positive(step, call, "step")
    times = np.asarray(time, np.float64)
    marks = np.concatenate([[0.0], times.reshape(-1)])
    if not np.isfinite(marks).all() or np.any(np.diff(marks) < 0):
        refuse(call, expected="ascending, finite, non-negative `time`", got=f"{time}", do="Sort the times.")
    problem = _read(call, kernel, outputs, kernel_test, outputs_test)
    gradient = _gradient(problem, loss, call)

    def runge_kutta(h: jax.Array, weights: jax.Array) -> jax.Array:
        k1 = -gradient(weights)
        k2 = -gradient(weights + 0.5 * h * k1)
        k3 = -gradient(weights + 0.5 * h * k2)
        return weights + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 - gradient(weights + h * k3))

    advance = jax.jit(lambda w, n, h: jax.lax.fori_loop(0, n, lambda _, w: runge_kutta(h, w), w))
    weights, saved = jnp.zeros_like(problem.start), []
    for gap in np.diff(marks):
        parts = max(1, int(np.ceil(gap / step)))
        weights = advance(weights, parts, jnp.asarray(gap / parts, weights.dtype))
        saved.append(weights)
    return _outputs(problem, jnp.stack(saved), times.shape)


def _read(
    call: str,
    kernel: KernelLike,
    outputs: jax.typing.ArrayLike,
    kernel_test: KernelLike | None,
    outputs_test: jax.typing.ArrayLike | None,
) -> Problem:
    # The loss holds its own denominator and labels: D = 1 and y = 0 stand in for them.
    zeros = np.zeros(np.shape(outputs), np.float32)
    return read_problem(
        call,
        kernel,
        zeros,
        kernel_test=kernel_test,
        outputs=outputs,
        outputs_test=outputs_test,
        origin=None,
        loss_denominator=1.0,
    )


def _gradient(problem: Problem, loss: Loss, call: str) -> Callable[[jax.Array], jax.Array]:
    shape = problem.start.shape
    found = jax.eval_shape(loss, jax.ShapeDtypeStruct(problem.shape, problem.start.dtype))
    if getattr(found, "shape", None) != ():
        refuse(call, expected="a `loss` that returns one number", got=f"{found}", do="Sum or average over examples.")

    def gradient(weights: jax.Array) -> jax.Array:
        f = (problem.start + problem.kernel @ weights).reshape(problem.shape)
        return jax.grad(loss)(f).reshape(shape)

    return gradient


def _outputs(problem: Problem, weights: jax.Array, shape: tuple[int, ...]) -> Prediction:
    train = (problem.start + problem.kernel @ weights).reshape(*shape, *problem.shape)
    if problem.cross is None or problem.start_test is None:
        return Prediction(train)
    return Prediction(train, (problem.start_test + problem.cross @ weights).reshape(*shape, *problem.shape_test))
