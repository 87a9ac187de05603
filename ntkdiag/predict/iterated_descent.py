"""Any loss in function space: gradient descent, step by step.

With g the gradient of the loss in the outputs, a step of the weights w on the training rows is

    w <- w - eta (g + (ridge / D) w),

which is gradient descent in the parameters of the linearized model, exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

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
from ntkdiag.predict.scalar_loss import require_scalar_loss
from ntkdiag.predict.update_rule import read_rule
from ntkdiag.scalars import Number, Scalar, require_at_least_zero


class _DescentState(NamedTuple):
    """Where descent stands."""

    weights: Rows  # w
    velocity: Rows  # of w


class _UpdateNumbers(NamedTuple):
    """The numbers of the update, which may be traced; its kind is fixed in the program."""

    rate: Scalar  # eta
    momentum: Scalar  # beta
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
    require_at_least_zero(ridge, "ridge")
    counts = _read_counts(steps)
    loss_object = require_loss(loss, "descent")
    model = read_model(kernel, f0, kernel_test, f0_test)
    labels = loss_object.read(y, model.shape)
    dtype = model.start.dtype
    outputs = jax.ShapeDtypeStruct(model.shape, dtype)
    require_scalar_loss(lambda f: loss_object(f, labels), outputs)

    penalty = ridge / loss_object.denominator_for(model.shape)
    numbers = _UpdateNumbers(
        rate=jnp.asarray(rule.require_learning_rate(), dtype),
        momentum=jnp.asarray(rule.momentum, dtype),
        penalty=jnp.asarray(penalty, dtype),
    )

    no_weights = jnp.zeros_like(model.start)
    state = _DescentState(weights=no_weights, velocity=no_weights)
    # From one number of steps to the next: the program is the same for all of them.
    weights = []
    for further in np.diff(counts.reshape(-1), prepend=0):
        state = run(
            _advance, model, labels, state, int(further), numbers, static=(loss_object, rule.kind)
        )
        weights.append(state.weights)
    return model.follow(jnp.stack(weights), counts.shape)


def _read_counts(steps: jax.typing.ArrayLike | Sequence[int]) -> np.ndarray:
    """The numbers of steps, refused where they are not ascending integers."""
    counts = np.asarray(steps)
    is_integer = np.issubdtype(counts.dtype, np.integer)
    if counts.size and is_integer and np.all(np.diff(counts.reshape(-1), prepend=0) >= 0):
        return counts
    raise errors.InvalidInputError(
        expected="ascending non-negative integer `steps`, at least one",
        got=f"{steps}",
        do="Sort and round them.",
    )


def _advance(
    model: LinearModel,
    labels: PyTree,
    state: _DescentState,
    count: Int[Array, ""] | int,
    numbers: _UpdateNumbers,
    loss_and_kind: tuple[Loss, MomentumKind],
) -> _DescentState:
    """The state after some steps more."""
    loss, kind = loss_and_kind

    def move(gradient: Rows, velocity: Rows) -> tuple[Rows, Rows]:
        """The direction of a step, and the velocity v after it, from the gradient g.

        heavy-ball: v <- beta v + g, along v. nesterov: the same v, along g + beta v. ema:
        v <- beta v + (1 - beta) g, along v.
        """
        fresh = (1.0 - numbers.momentum) * gradient if kind == "ema" else gradient
        velocity = numbers.momentum * velocity + fresh
        if kind == "nesterov":
            return gradient + numbers.momentum * velocity, velocity
        return velocity, velocity

    def step(_: Int[Array, ""], state: _DescentState) -> _DescentState:
        outputs = model.train(state.weights)
        gradient = jax.grad(loss)(outputs, labels).reshape(state.weights.shape)
        with_penalty = gradient + numbers.penalty * state.weights
        direction, velocity = move(with_penalty, state.velocity)
        return _DescentState(
            weights=state.weights - numbers.rate * direction,
            velocity=velocity,
        )

    return jax.lax.fori_loop(0, count, step, state)
