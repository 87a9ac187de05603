"""`gradient_descent`: gradient flow, with or without momentum, on any loss."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ntkdiag import _jax, errors
from ntkdiag.kernel.operand import is_concrete
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.predict.kernel_layout import (
    AnyArray,
    KernelNumbers,
    Layout,
    Numbers,
    array,
    as_precise,
)
from ntkdiag.neural_tangents.predict.ode_state import ODEState
from ntkdiag.predict.ode import solve_ode
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
        t: Numbers | None = None,
        fx_train_or_state_0: Numbers | ODEState | None = 0.0,
        fx_test_0: Numbers | None = None,
        k_test_train: KernelNumbers | None = None,
    ) -> AnyArray | tuple[AnyArray, AnyArray] | ODEState:
        # neural-tangents' arguments -> matrices
        state = _read_state(fx_train_or_state_0, fx_test_0, momentum)
        times = _read_times(t)
        cross, test, shape = layout.read_test(state.fx_test, k_test_train)
        start = _start(layout, state, test, shape, momentum)
        # the differential equation
        arrays = layout.matrix(kernel), cross, y, start, times, learning_rate, momentum
        solved = keeps_float64(_solve)(loss, layout, tolerance, max_steps, *arrays)
        # and back
        result = _laid_out(layout, solved, shape)
        if isinstance(fx_train_or_state_0, ODEState):
            return result
        if result.fx_test is None:
            return result.fx_train
        return result.fx_test if fx_train_or_state_0 is None else (result.fx_train, result.fx_test)

    return predict_fn


def _laid_out(layout: Layout, state: ODEState, shape_test: tuple[int, ...]) -> ODEState:
    """Matrices -> outputs and velocities; what is not there stays None."""

    def outputs(part: AnyArray | None, shape: tuple[int, ...]) -> AnyArray | None:
        return None if part is None else layout.outputs(part, shape)

    return ODEState(
        fx_train=outputs(state.fx_train, layout.shape),
        fx_test=outputs(state.fx_test, shape_test),
        qx_train=outputs(state.qx_train, layout.shape),
        qx_test=outputs(state.qx_test, shape_test),
    )


def _check_loss(loss: Callable[[jax.Array, jax.Array], jax.Array], y: AnyArray) -> None:
    """The loss of outputs like the targets is one number."""
    dtype = jax.dtypes.canonicalize_dtype(_jax.at_least_float32(y.dtype))
    outputs = jax.ShapeDtypeStruct(y.shape, dtype)
    value = jax.eval_shape(loss, outputs, outputs)
    if getattr(value, "shape", None) != ():
        raise errors.InvalidInputError(
            expected="a `loss(f, y)` that returns one number",
            got=f"{value}",
            do="Sum or average in it.",
        )


def _read_state(
    first: Numbers | ODEState | None, fx_test_0: Numbers | None, momentum: Number | None
) -> ODEState:
    """Outputs, or a state, as a state."""
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


def _read_times(t: Numbers | None) -> AnyArray:
    """Times as an array, strictly increasing as far as they are known."""
    if t is not None and not is_concrete(t):
        return array(t)
    flat = np.zeros(0) if t is None else np.asarray(t, np.float64).reshape(-1)
    is_increasing = (np.diff(flat, prepend=-np.inf) > 0).all()
    if not (flat.size and np.isfinite(flat).all() and flat[0] >= 0 and is_increasing):
        raise errors.InvalidInputError(
            expected="finite times t >= 0 in strictly increasing order",
            got=f"{t}",
            do="Sort them; convergence at infinity is not certain for a general loss.",
        )
    return np.asarray(t, np.float64)


def _start(
    layout: Layout,
    state: ODEState,
    test: AnyArray | None,
    shape: tuple[int, ...],
    momentum: Number | None,
) -> ODEState:
    """Initial values as matrices; velocities only where there is momentum."""

    def columns(value: Numbers | None, name: str, shape: tuple[int, ...]) -> AnyArray:
        return layout.columns(0.0 if value is None else value, name, shape)

    train = columns(state.fx_train, "fx_train_0", layout.shape)
    if momentum is None:
        return ODEState(train, test)
    velocity = columns(state.qx_train, "qx_train", layout.shape)
    velocity_test = None if test is None else columns(state.qx_test, "qx_test", shape)
    return ODEState(train, test, velocity, velocity_test)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _solve(
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    layout: Layout,
    tolerance: float | None,
    max_steps: int,
    matrix: AnyArray,
    cross: AnyArray | None,
    y: AnyArray,
    start: ODEState,
    times: AnyArray,
    learning_rate: Number,
    momentum: Number | None,
) -> ODEState:
    """The state at every time, each part [... r c]."""
    dtype = _jax.at_least_float32(matrix.dtype)
    matrix, y = jnp.asarray(matrix, dtype), jnp.asarray(y, dtype)
    cross = None if cross is None else jnp.asarray(cross, dtype)
    # The solver takes one vector: the parts of the state one after the other.
    vector, unravel = ravel_pytree(jax.tree.map(lambda part: jnp.asarray(part, dtype), start))
    # Time in the units of the equation: s = learning_rate t, with momentum sqrt(learning_rate) t.
    unit = jnp.asarray(learning_rate if momentum is None else jnp.sqrt(learning_rate), dtype)

    def slope(_: object, vector: jax.Array, __: None) -> jax.Array:
        state = unravel(vector)
        gradient = jax.grad(loss)(layout.outputs(state.fx_train), y)
        columns = layout.columns(gradient, "the gradient of the loss")
        force = -(matrix @ columns)
        force_test = None if cross is None else -(cross @ columns)
        if momentum is None:  # df/ds = -K grad_f loss
            return ravel_pytree(ODEState(force, force_test))[0]
        # df/ds = q, dq/ds = (m - 1) / unit q - K grad_f loss
        damping = (momentum - 1.0) / unit
        force = force + damping * state.qx_train
        if force_test is not None:
            force_test = force_test + damping * state.qx_test
        return ravel_pytree(ODEState(state.qx_train, state.qx_test, force, force_test))[0]

    if tolerance is None:
        tolerance = 1.4e-8 if dtype == jnp.float64 else 1e-5
    flat = jnp.asarray(times, dtype).reshape(-1)
    # Traced times may be anything: the solver gets increasing ones, and the rest becomes NaN.
    increasing = jax.lax.cummax(jnp.maximum(flat, 0.0)) * unit
    solved = solve_ode(
        slope, vector, increasing, relative=tolerance, absolute=tolerance, max_steps=max_steps
    )
    are_times = (jnp.diff(flat, prepend=-1.0) > 0).all() & (flat >= 0).all()
    parts = jax.vmap(unravel)(jnp.where(are_times, solved, jnp.nan))
    # [T r c] -> [... r c]
    return jax.tree.map(lambda part: part.reshape(*times.shape, *part.shape[1:]), parts)
