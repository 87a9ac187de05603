"""`gradient_descent`: gradient flow, with or without momentum, on any loss."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.kernel.kernel_argument import is_concrete
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.predict.kernel_layout import (
    AnyArray,
    KernelNumbers,
    Layout,
    Numbers,
    array,
    read_training,
)
from ntkdiag.predict.any_loss import solve_ode
from ntkdiag.scalars import Number, require_positive


@errors.public
def gradient_descent(
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    k_train_train: KernelNumbers,
    y_train: Numbers,
    learning_rate: Number = 1.0,
    momentum: Number | None = None,
    trace_axes: AxesLike = (-1,),
    *,
    tolerance: float | None = None,
    max_steps: int = 100_000,
) -> Callable:
    """Outputs of the linearized network under gradient flow on any loss, also with momentum.

    df/ds = -K grad_f loss(f, y) at s = learning_rate t. With momentum m, heavy-ball as a
    differential equation, df/ds = q, dq/ds = (m - 1) / sqrt(learning_rate) q - K grad_f loss at s =
    sqrt(learning_rate) t.
    Cost: one product with the kernel for each evaluation; see `ntkdiag.predict.any_loss`.
    Source: Lee et al. 2019, arXiv:1902.06720, section 2.2. This is a continuous approximation of
    gradient descent; for the steps themselves see `ntkdiag.predict.iterate_descent`.

    Args:
        loss: `loss(f(x_train), y_train)`, one number.
        k_train_train: As for `gradient_descent_mse`.
        y_train: Targets.
        learning_rate: Step size.
        momentum: m in [0, 1), or None.
        trace_axes: As for `gradient_descent_mse`.
        tolerance: Of the integration, relative and absolute; None is 1.4e-8, or 1e-5 in float32.
        max_steps: Most steps; the outputs at times not reached are NaN.

    Returns:
        `predict_fn(t, fx_train_or_state_0=0., fx_test_0=None, k_test_train=None)`: outputs on the
        training set, on the test set if the first is None, or both, with the axes of t first.
        Times are strictly increasing and finite. It can be compiled, also with kernels as
        arguments; t that is traced and not increasing gives NaN. neural-tangents' `ODEState` is not
        supported: training starts at rest.

    Raises:
        InvalidInputError: Kernel, targets and loss do not fit, or a number is out of range; from
            the result: as well.

    Example:
        >>> import numpy as np
        >>> loss = lambda f, y: ((f - y) ** 2).sum() / 2
        >>> predict_fn = gradient_descent(loss, np.eye(2), np.ones((2, 1)))
        >>> round(float(predict_fn(1.0)[0, 0]), 3)
        0.632
    """
    require_positive(learning_rate, "learning_rate")
    if momentum is not None and is_concrete(momentum) and not 0 <= float(momentum) < 1:
        raise errors.InvalidInputError(
            expected="`momentum` in [0, 1), or None", got=f"{momentum}", do="None is gradient flow."
        )
    layout, matrix, y = read_training(k_train_train, y_train, trace_axes)
    _check_loss(loss, y)

    @errors.called("predict_fn(t, fx_train_or_state_0, fx_test_0, k_test_train)")
    def predict_fn(
        t: Numbers | None = None,
        fx_train_or_state_0: Numbers | None = 0.0,
        fx_test_0: Numbers | None = None,
        k_test_train: KernelNumbers | None = None,
    ) -> AnyArray | tuple[AnyArray, AnyArray]:
        if fx_train_or_state_0 is None and fx_test_0 is None:
            raise errors.InvalidInputError(
                expected="outputs at time 0", got="None twice", do="Pass what to predict."
            )
        times = _read_times(t)
        cross, test, shape = layout.read_test(fx_test_0, k_test_train)
        start = [layout.columns(fx_train_or_state_0, "fx_train_0"), test]
        # The differential equation: [... (r l) c], rows of the test set behind the training set's.
        arrays = [matrix, cross], y, start, times, learning_rate, momentum
        solved = keeps_float64(_solve)(loss, layout, tolerance, max_steps, *arrays)
        rows = len(matrix)
        train = layout.outputs(solved[..., :rows, :])
        if test is None:
            return train
        outputs = layout.outputs(solved[..., rows:, :], shape)
        return outputs if fx_train_or_state_0 is None else (train, outputs)

    return predict_fn


def _check_loss(loss: Callable[[jax.Array, jax.Array], jax.Array], y: AnyArray) -> None:
    """The loss of outputs like the targets is one number."""
    dtype = jax.dtypes.canonicalize_dtype(at_least_float32(y.dtype))
    outputs = jax.ShapeDtypeStruct(y.shape, dtype)
    value = jax.eval_shape(loss, outputs, outputs)
    if getattr(value, "shape", None) != ():
        raise errors.InvalidInputError(
            expected="a `loss(f, y)` that returns one number",
            got=f"{value}",
            do="Sum or average in it.",
        )


def _read_times(t: Numbers | None) -> AnyArray:
    """Times as an array, strictly increasing as far as they are known."""
    if t is not None and not is_concrete(t):
        return array(t, "t")
    times = np.zeros(0) if t is None else np.asarray(array(t, "t"), np.float64)
    flat = times.reshape(-1)
    is_increasing = (np.diff(flat, prepend=-np.inf) > 0).all()
    if not (flat.size and np.isfinite(flat).all() and flat[0] >= 0 and is_increasing):
        raise errors.InvalidInputError(
            expected="finite times t >= 0 in strictly increasing order",
            got=f"{t}",
            do="Sort them; convergence at infinity is not certain for a general loss.",
        )
    return times


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _solve(
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    layout: Layout,
    tolerance: float | None,
    max_steps: int,
    kernels: list[AnyArray | None],
    y: AnyArray,
    start: list[AnyArray | None],
    times: AnyArray,
    learning_rate: Number,
    momentum: Number | None,
) -> AnyArray:
    """Outputs at every time: [... (r l) c]."""

    def stacked(parts: list[AnyArray | None]) -> jax.Array:
        """Rows of the training set, and behind them those of the test set if there is one."""
        return jnp.concatenate([jnp.asarray(part, dtype) for part in parts if part is not None])

    dtype = at_least_float32(jax.tree.leaves(kernels)[0].dtype)
    y = jnp.asarray(y, dtype)
    matrix = stacked(kernels)  # [(r l) r]
    rows = matrix.shape[1]
    # Time in the units of the equation: s = learning_rate t, with momentum sqrt(learning_rate) t.
    unit = jnp.asarray(learning_rate if momentum is None else jnp.sqrt(learning_rate), dtype)

    def slope(_: object, state: jax.Array, __: None) -> jax.Array:
        gradient = jax.grad(loss)(layout.outputs(state[0, :rows]), y)
        force = -(matrix @ layout.columns(gradient, "the gradient of the loss"))
        if momentum is None:  # df/ds = -K grad_f loss
            return force[None]
        # df/ds = q, dq/ds = (m - 1) / unit q - K grad_f loss
        return jnp.stack([state[1], force + (momentum - 1.0) / unit * state[1]])

    if tolerance is None:
        tolerance = 1.4e-8 if dtype == jnp.float64 else 1e-5
    flat = jnp.asarray(times, dtype).reshape(-1)
    # Traced times may be anything: the solver gets increasing ones, and the rest becomes NaN.
    outputs = stacked(start)
    at_rest = [outputs] if momentum is None else [outputs, jnp.zeros_like(outputs)]
    solved = solve_ode(
        slope,
        jnp.stack(at_rest),  # [k (r l) c]: outputs, and with momentum their velocities
        jax.lax.cummax(jnp.maximum(flat, 0.0)) * unit,
        relative=tolerance,
        absolute=tolerance,
        max_steps=max_steps,
    )
    are_times = (jnp.diff(flat, prepend=-1.0) > 0).all() & (flat >= 0).all()
    solved = jnp.where(are_times, solved[:, 0], jnp.nan)
    return solved.reshape(*times.shape, *solved.shape[1:])  # [T (r l) c] -> [... (r l) c]
