"""Any loss in function space: gradient descent, step by step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.operand import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.gauss_newton import require_number
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.predict.linear_model import LinearModel, penalty, read_model
from ntkdiag.predict.origin import Origin
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.threshold import MomentumKind, stability_threshold
from ntkdiag.scalars import Number, require_positive

Loss = Callable[[jax.Array], jax.Array]
State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # w, its velocity, a, its velocity


@errors.public
@keeps_float64
def iterate_descent(
    kernel: KernelLike | NTKOperator,
    loss: Loss,
    steps: Any,
    learning_rate: Number,
    *,
    f0: jax.typing.ArrayLike | None = None,
    kernel_test: KernelLike | NTKOperator | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    momentum: Number = 0.0,
    momentum_kind: MomentumKind = "heavy-ball",
    damping: Number = 0.0,
    weight_decay: Number = 0.0,
    origin: Origin | None = None,
) -> Prediction:
    """Outputs of the linearized model after full-batch gradient descent on any loss of the outputs.

    f <- f - eta Theta grad_f L(f), which is parameter-space descent on the linearized model, exactly, for the full
    kernel. What is kept are weights on the training rows, so that nothing is inverted.
    Cost: one product Theta v per step: O((NC)^2), or five forward passes for an `NTKOperator`.
    Source: Lee et al. 2019 (arXiv 1902.06720), section 2.2.

    Args:
        kernel: Full training kernel, or a reduced one standing for K kron I_C, or an `NTKOperator`.
        loss: L(f), a number from outputs shaped like `f0`; it holds the labels and the 1/N.
        steps: Number of steps, an integer or ascending `[T]` integers, known before compilation.
        learning_rate: eta.
        f0: f_0, `[n]` or `[n o]`; an operator computes it if None.
        kernel_test: Test by train.
        f0_test: f_0 on the test examples; None for 0 (for an operator: computed).
        momentum: beta.
        momentum_kind: "heavy-ball", "nesterov" or "ema".
        damping: Coefficient of 1/2 ||theta - theta_0||^2 in the loss.
        weight_decay: Coefficient of 1/2 ||theta||^2 in the loss, as of `optax.add_decayed_weights` before SGD; it needs
            `origin`.
        origin: J theta_0, for weight decay; see `origin`.

    Returns:
        Outputs `[... n o]` on training and test examples.

    Raises:
        InvalidInputError: When arrays do not fit or are not finite, steps are no ascending integers, or weight
            decay comes without `origin`.
    """
    require_positive(learning_rate, "learning_rate")
    decay = penalty(damping, weight_decay, origin)
    stability_threshold(momentum, momentum_kind)
    counts = np.asarray(steps)
    marks = np.concatenate([[0], counts.reshape(-1)])
    if not counts.size or not np.issubdtype(counts.dtype, np.integer) or np.any(np.diff(marks) < 0):
        raise errors.InvalidInputError(
            expected="ascending non-negative integer `steps`, at least one",
            got=f"{steps}",
            do="Sort and round them.",
        )
    model = read_model(kernel, f0, kernel_test, f0_test, origin)
    require_number(loss, jax.ShapeDtypeStruct(model.shape, model.start.dtype))
    one, zero = jnp.ones((), model.start.dtype), jnp.zeros_like(model.start)
    state: State = (zero, zero, one, jnp.zeros_like(one))
    numbers = tuple(jnp.asarray(number, one.dtype) for number in (learning_rate, momentum, decay))
    saved = []
    for count in np.diff(marks):
        state = run(_advance, model, state, int(count), numbers, static=(loss, momentum_kind))
        saved.append((state[0], state[2]))
    weights, kept = (jnp.stack(part) for part in zip(*saved, strict=True))
    return model.follow(weights, kept, counts.shape)


def _advance(
    model: LinearModel,
    state: State,
    count: Any,
    numbers: tuple[jax.Array, ...],
    static: tuple[Loss, MomentumKind],
) -> State:
    (rate, momentum, decay), (loss, kind) = numbers, static

    def move(gradient: jax.Array, velocity: jax.Array) -> tuple[jax.Array, jax.Array]:
        fresh = (1.0 - momentum) * gradient if kind == "ema" else gradient
        velocity = momentum * velocity + fresh
        return gradient + momentum * velocity if kind == "nesterov" else velocity, velocity

    def step(_: Any, state: State) -> State:
        weights, velocity, kept, slowing = state
        gradient = (
            jax.grad(loss)(model.train(weights, kept)).reshape(weights.shape) + decay * weights
        )
        change, velocity = move(gradient, velocity)
        shrink, slowing = move(
            decay * kept if model.pull is not None else jnp.zeros_like(kept), slowing
        )
        return weights - rate * change, velocity, kept - rate * shrink, slowing

    return jax.lax.fori_loop(0, count, step, state)
