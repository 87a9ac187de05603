"""`gradient_descent`: gradient flow, with or without momentum, on any loss."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ntkdiag import _jax, errors
from ntkdiag.kernel.operand import is_concrete
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.predict.gradient_descent_mse import read_test
from ntkdiag.neural_tangents.predict.kernel_layout import Layout, array, as_precise
from ntkdiag.neural_tangents.predict.ode_state import ODEState
from ntkdiag.predict.ode import solve_ode
from ntkdiag.scalars import Number, require_positive

_FIELDS = ("fx_train", "fx_test", "qx_train", "qx_test")


@errors.public
def gradient_descent(
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    k_train_train: Any,
    y_train: Any,
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
    Cost: one product with the kernel for each evaluation; see `ntkdiag.predict.ode`.
    Source: Lee et al. 2019, arXiv:1902.06720, section 2.2. This is a continuous approximation of
    gradient descent; for the steps themselves see `ntkdiag.predict.iterate_descent`.

    Args:
        loss: `loss(f(x_train), y_train)`, one number.
        k_train_train: Training kernel of shape `zip(y_train.shape, y_train.shape)` without
            `trace_axes`.
        y_train: Targets.
        learning_rate: Step size.
        momentum: m in [0, 1), or None.
        trace_axes: Axes of the targets that the kernel lacks: it stands for K kron I along them.
        tolerance: Of the integration, relative and absolute; None is 1.4e-8, or 1e-5 in float32.
        max_steps: Most steps; the outputs at times not reached are NaN.

    Returns:
        `predict_fn(t, fx_train_or_state_0=0., fx_test_0=None, k_test_train=None)`: outputs on the
        training set, on the test set if the first is None, or both, with the axes of t first; an
        `ODEState` for an `ODEState`, which can be handed in again to go on. Times are strictly
        increasing and finite. It can be compiled, also with kernels as arguments; t that is traced
        and not increasing gives NaN.

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
    kernel = array(k_train_train)
    y = as_precise(array(y_train), kernel)
    layout = Layout.of(kernel, y, trace_axes)
    _check_loss(loss, y)

    @errors.called("predict_fn(t, fx_train_or_state_0, fx_test_0, k_test_train)")
    def predict_fn(
        t: Any = None,
        fx_train_or_state_0: Any = 0.0,
        fx_test_0: Any = None,
        k_test_train: Any = None,
    ) -> Any:
        state = _read_state(fx_train_or_state_0, fx_test_0, momentum)
        times = _read_times(t)
        cross, test, shape = read_test(layout, state.fx_test, k_test_train)
        start = _start(layout, state, test, shape, momentum)
        arrays = layout.matrix(kernel), cross, y, start, times, learning_rate, momentum
        found = keeps_float64(_solve)(loss, layout, tolerance, max_steps, *arrays)
        shapes = ODEState(layout.shape, shape, layout.shape, shape)
        result = ODEState(
            *(_outputs(layout, getattr(found, name), getattr(shapes, name)) for name in _FIELDS)
        )
        if isinstance(fx_train_or_state_0, ODEState):
            return result
        if result.fx_test is None:
            return result.fx_train
        return result.fx_test if fx_train_or_state_0 is None else (result.fx_train, result.fx_test)

    return predict_fn


def _outputs(layout: Layout, part: Any, shape: tuple[int, ...]) -> Any:
    return None if part is None else layout.outputs(part, shape)


def _check_loss(loss: Callable, y: Any) -> None:
    dtype = jax.dtypes.canonicalize_dtype(_jax.at_least_float32(y.dtype))
    shape = jax.ShapeDtypeStruct(y.shape, dtype)
    found = jax.eval_shape(loss, shape, shape)
    if getattr(found, "shape", None) != ():
        raise errors.InvalidInputError(
            expected="a `loss(f, y)` that returns one number",
            got=f"{found}",
            do="Sum or average in it.",
        )


def _read_state(first: Any, fx_test_0: Any, momentum: Number | None) -> ODEState:
    if not isinstance(first, ODEState):
        if first is None and fx_test_0 is None:
            raise errors.InvalidInputError(
                expected="outputs at time 0", got="None twice", do="Pass what to predict."
            )
        return ODEState(first, fx_test_0)
    if fx_test_0 is not None:
        raise errors.InvalidInputError(
            expected="test outputs inside the `ODEState`",
            got="`fx_test_0` beside it",
            do="ODEState(f, g).",
        )
    if momentum is None and (first.qx_train is not None or first.qx_test is not None):
        raise errors.InvalidInputError(
            expected="a state without velocities",
            got="velocities",
            do="Pass `momentum`, or leave them out.",
        )
    return first


def _read_times(t: Any) -> Any:
    """Times as an array, strictly increasing as far as they are known."""
    concrete = t is not None and is_concrete(t)
    flat = np.asarray(t, np.float64).reshape(-1) if concrete else np.zeros(1)
    if t is None or not (
        np.isfinite(flat).all() and (flat >= 0).all() and (np.diff(flat) > 0).all() and flat.size
    ):
        raise errors.InvalidInputError(
            expected="finite times t >= 0 in strictly increasing order",
            got=f"{t}",
            do="Sort them; convergence at infinity is not certain for a general loss.",
        )
    return t if not concrete else np.asarray(t, np.float64)


def _start(
    layout: Layout, state: ODEState, test: Any, shape: tuple[int, ...], momentum: Number | None
) -> ODEState:
    """Initial values as matrices."""
    zero = lambda value: (
        0.0 if value is None else value if isinstance(value, int | float) else array(value)
    )
    train = layout.columns(zero(state.fx_train), "fx_train_0")
    if momentum is None:
        return ODEState(train, test)
    velocity = layout.columns(zero(state.qx_train), "qx_train")
    return ODEState(
        train,
        test,
        velocity,
        test if test is None else layout.columns(zero(state.qx_test), "qx_test", shape),
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _solve(
    loss: Callable,
    layout: Layout,
    tolerance: float | None,
    max_steps: int,
    matrix: jax.Array,
    cross: jax.Array | None,
    y: jax.Array,
    start: ODEState,
    times: jax.Array,
    learning_rate: Number,
    momentum: Number | None,
) -> ODEState:
    """The state at every time, each part [... r c]."""
    dtype = _jax.at_least_float32(matrix.dtype)
    matrix, y = jnp.asarray(matrix, dtype), jnp.asarray(y, dtype)
    cross = None if cross is None else jnp.asarray(cross, dtype)
    vector, unravel = ravel_pytree(jax.tree.map(lambda part: jnp.asarray(part, dtype), start))
    unit = jnp.asarray(learning_rate if momentum is None else jnp.sqrt(learning_rate), dtype)

    def slope(_: Any, vector: jax.Array, __: None) -> jax.Array:
        state = unravel(vector)
        gradient = layout.columns(
            jax.grad(loss)(layout.outputs(state.fx_train), y), "the gradient of the loss"
        )
        force = -(matrix @ gradient), None if cross is None else -(cross @ gradient)
        if momentum is None:
            return ravel_pytree(ODEState(*force))[0]
        damped = [
            f if f is None else f + (momentum - 1.0) / unit * q
            for f, q in zip(force, (state.qx_train, state.qx_test), strict=True)
        ]
        return ravel_pytree(ODEState(state.qx_train, state.qx_test, *damped))[0]

    flat = jnp.asarray(times, dtype).reshape(-1)
    tolerance = tolerance or (1.4e-8 if dtype == jnp.float64 else 1e-5)
    ascending = (
        jax.lax.cummax(jnp.maximum(flat, 0.0)) * unit
    )  # what else is traced becomes NaN below
    found = solve_ode(
        slope, vector, ascending, relative=tolerance, absolute=tolerance, max_steps=max_steps
    )
    ordered = (jnp.diff(flat, prepend=-1.0) > 0).all() & (flat >= 0).all()
    found = jnp.where(ordered, found, jnp.nan)
    return jax.tree.map(
        lambda part: part.reshape(*times.shape, *part.shape[1:]), jax.vmap(unravel)(found)
    )
