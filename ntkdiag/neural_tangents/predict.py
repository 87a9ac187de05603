"""neural-tangents' predictions: kernels to matrices, and predictions back to outputs.

Kernels are laid out as `zip(y.shape, y.shape)` without traced axes.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.analysis.stability import critical_learning_rate
from ntkdiag.arrays import (
    AnyArray,
    Number,
    as_array,
    is_concrete,
    require_at_least_zero,
    require_positive,
)
from ntkdiag.descent import Descent
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import MSE
from ntkdiag.neural_tangents.axes import AxesLike, read_axes
from ntkdiag.predict.any_loss import solve_ode
from ntkdiag.predict.matrix_function import Eigenmodes
from ntkdiag.predict.mse import follow_flow, modes_of
from ntkdiag.predict.problem import Prediction, read_problem

# Numbers as a user writes them.
Numbers: TypeAlias = jax.typing.ArrayLike | Sequence


@dataclasses.dataclass(frozen=True)
class Layout:
    """How outputs `[n ...]` become `[r c]`: r runs over kernel axes, c over traced ones."""

    shape: tuple[int, ...]  # shape of the training outputs
    traced: tuple[int, ...]  # axes the kernel lacks: it stands for K kron I along them

    @property
    def kept(self) -> tuple[int, ...]:
        """Axes of the kernel."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.traced)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Their lengths."""
        return tuple(self.shape[axis] for axis in self.kept)

    def columns(
        self, outputs: Numbers | None, name: str, shape: tuple[int, ...] | None = None
    ) -> AnyArray:
        """Outputs, or what is broadcast to them (None is 0), as `[r c]`."""
        wanted = self.shape if shape is None else shape
        outputs = 0.0 if outputs is None else outputs
        if isinstance(outputs, int | float):
            outputs = np.asarray(outputs, jnp.result_type(float))
        outputs = array(outputs, name)
        lengths = zip(outputs.shape, wanted, strict=False)
        fits = outputs.ndim == len(wanted) and all(n in (1, m) for n, m in lengths)
        if outputs.ndim and not fits:
            raise errors.InvalidInputError(
                expected=f"`{name}` of shape {wanted}, or one number",
                got=f"shape {tuple(outputs.shape)}",
                do="Outputs have the shape of the targets.",
            )
        library = jnp if isinstance(outputs, jax.Array) else np
        spread = library.broadcast_to(outputs, wanted)
        # [n ...] -> [kept ... traced ...] -> [r c]
        rows = math.prod(wanted[axis] for axis in self.kept)
        return spread.transpose((*self.kept, *self.traced)).reshape(rows, -1)

    def read_start(
        self,
        fx_train_0: Numbers | None,
        fx_test_0: Numbers | None,
        k_test_train: Numbers | None,
    ) -> tuple[AnyArray, AnyArray | None, AnyArray | None, tuple[int, ...]]:
        """Initial outputs, test kernel as a matrix, initial test outputs and their shape."""
        if fx_train_0 is None and fx_test_0 is None:
            raise errors.InvalidInputError(
                expected="outputs at time 0", got="None twice", do="Pass what to predict."
            )
        start = self.columns(fx_train_0, "fx_train_0")
        if fx_test_0 is None:
            return start, None, None, ()
        if k_test_train is None:
            raise errors.InvalidInputError(
                expected="`k_test_train` beside `fx_test_0`",
                got="None",
                do="Pass ntk_fn(x_test, x_train, params).",
            )
        kernel, kept = array(k_test_train, "k_test_train"), self.kept_shape
        if kernel.ndim != 2 * len(kept) or tuple(kernel.shape[1::2]) != kept or 0 in kernel.shape:
            expected = str(_zipped(("m", *kept[1:]), kept)).replace("'", "")
            raise errors.InvalidInputError(
                expected=f"`k_test_train` of shape {expected}",
                got=f"shape {tuple(kernel.shape)}",
                do="It is zip(y_test.shape, y_train.shape) without the trace_axes.",
            )
        shape = list(self.shape)
        for axis, length in zip(self.kept, kernel.shape[::2], strict=True):
            shape[axis] = length
        cross = unzip(kernel).reshape(-1, math.prod(kept))  # [l r]
        return start, cross, self.columns(fx_test_0, "fx_test_0", tuple(shape)), tuple(shape)

    def predicted(
        self, train: AnyArray, test: AnyArray | None, shape: tuple[int, ...], wants_train: bool
    ) -> AnyArray | tuple[AnyArray, AnyArray]:
        """What a prediction returns: outputs on the training set, on the test set, or both."""
        if test is None:
            return self.outputs(train)
        outputs = self.outputs(test, shape)
        return (self.outputs(train), outputs) if wants_train else outputs

    def outputs(self, matrix: AnyArray, shape: tuple[int, ...] | None = None) -> AnyArray:
        """`[... r c]` back to `[... n ...]`: the inverse of `columns`."""
        wanted = self.shape if shape is None else shape
        lead, order = matrix.ndim - 2, (*self.kept, *self.traced)
        split = matrix.reshape(*matrix.shape[:lead], *(wanted[axis] for axis in order))
        back = sorted(range(len(order)), key=order.__getitem__)
        return split.transpose((*range(lead), *(lead + k for k in back)))


def array(value: Numbers, name: str) -> AnyArray:
    """Numbers as a numpy or JAX array."""
    if isinstance(value, Kernel):  # its axes may differ, with the same lengths
        raise errors.InvalidInputError(
            expected=f"`{name}` as an array with the axes of neural-tangents",
            got="a Kernel",
            do="Compute it by nt.empirical_ntk_fn.",
        )
    return as_array(value, name)


def read_training(
    k_train_train: Numbers, y_train: Numbers, trace_axes: AxesLike
) -> tuple[Layout, AnyArray, AnyArray]:
    """The layout, the training kernel as a matrix [r r], and the targets."""
    kernel = array(k_train_train, "k_train_train")
    y = array(y_train, "y_train")
    # In 32-bit mode float64 targets (rows of `np.eye`) take the kernel's dtype.
    is_wide = isinstance(y, np.ndarray) and y.dtype == np.float64 and kernel.dtype != np.float64
    if is_wide and not jax.config.read("jax_enable_x64"):
        y = y.astype(kernel.dtype)
    shape = tuple(y.shape)
    axes = read_axes(trace_axes, (), shape, shape, "")
    layout = Layout(shape, tuple(row for row, _ in axes.traced))
    expected = _zipped(layout.kept_shape, layout.kept_shape)
    if tuple(kernel.shape) != expected:
        raise errors.InvalidInputError(
            expected=f"`k_train_train` of shape {expected}, which is "
            f"zip(y_train.shape, y_train.shape) without trace_axes={trace_axes}",
            got=f"shape {tuple(kernel.shape)}",
            do="Pass the trace_axes that the kernel was computed with.",
        )
    return layout, unzip(kernel).reshape(-1, math.prod(layout.kept_shape)), y


def unzip(kernel: AnyArray) -> AnyArray:
    """[n m o p ...] -> [n o ... m p ...]."""
    return kernel.transpose((*range(0, kernel.ndim, 2), *range(1, kernel.ndim, 2)))


def _zipped(first: tuple, second: tuple) -> tuple:
    return tuple(length for pair in zip(first, second, strict=True) for length in pair)


@errors.public
def gradient_descent_mse(
    k_train_train: Numbers,
    y_train: Numbers,
    learning_rate: Number = 1.0,
    diag_reg: Number = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: AxesLike = (-1,),
) -> Callable:
    """Outputs of the linearized network under gradient flow on ||f - y||^2 / (2 |y|).

    |y| is the number of targets.

    f_t = f_0 + K' (1 - exp(-K t / |y|)) / K (y - f_0) with t in units of `learning_rate`, K the
    regularized training kernel and K' either K or the test kernel. Modes whose eigenvalue is not
    resolved follow the limit t / |y| and are left out at infinity; nothing is divided by them. It
    is `ntkdiag.predict.gradient_flow` in another layout, with the loss denominator |y|.
    Cost: one eigendecomposition, on the first call of the result; O((NC)^2) per time.
    Source: Lee et al. 2019, arXiv:1902.06720.

    Args:
        k_train_train: Training kernel of shape `zip(y_train.shape, y_train.shape)` without
            `trace_axes`.
        y_train: Targets.
        learning_rate: Unit of time.
        diag_reg: Added to the diagonal of the training kernel.
        diag_reg_absolute_scale: Whether `diag_reg` is absolute; otherwise it counts in mean
            diagonal entries.
        trace_axes: Axes of the targets that the kernel lacks: it stands for K kron I along them.

    Returns:
        `predict_fn(t=None, fx_train_0=0., fx_test_0=None, k_test_train=None)`: outputs on the
        training set, on the test set if `fx_train_0` is None, or both, with the axes of t first.
        t=None is infinity. It can be compiled, with kernels as arguments too.

    Raises:
        InvalidInputError: Kernel and targets do not fit, or a number is out of range; calling the
            result raises it too, also for a kernel with negative eigenvalues.

    Example:
        >>> import numpy as np
        >>> predict_fn = gradient_descent_mse(np.eye(2), np.ones((2, 1)))
        >>> predict_fn(None).tolist()
        [[1.0], [1.0]]
    """
    require_positive(learning_rate, "learning_rate")
    require_at_least_zero(diag_reg, "diag_reg")
    layout, matrix, y = read_training(k_train_train, y_train, trace_axes)
    unit = 1.0 if diag_reg_absolute_scale else matrix.trace() / matrix.shape[0]
    library = np if isinstance(matrix, np.ndarray) else jnp
    matrix = matrix + diag_reg * unit * library.eye(matrix.shape[0], dtype=matrix.dtype)
    targets = layout.columns(y, "y_train")
    cached: list[Eigenmodes] = []  # the eigendecomposition, from the first call on

    @errors.called("predict_fn(t, fx_train_0, fx_test_0, k_test_train)")
    def predict_fn(
        t: Numbers | None = None,
        fx_train_0: Numbers | None = 0.0,
        fx_test_0: Numbers | None = None,
        k_test_train: Numbers | None = None,
    ) -> AnyArray | tuple[AnyArray, AnyArray]:
        # neural-tangents' arguments -> matrices
        start, cross, test, shape = layout.read_start(fx_train_0, fx_test_0, k_test_train)
        times = array(np.inf if t is None else t, "t")
        require_at_least_zero(times, "t", many=True)
        # predict.gradient_flow, with |y| as the denominator of the loss
        modes = cached[0] if cached else None
        time = times * learning_rate
        prediction, modes = _follow(matrix, targets, start, cross, test, time, y.size, modes)
        if all(map(is_concrete, modes)):
            cached[:] = [modes]
        # and back
        return layout.predicted(prediction.train, prediction.test, shape, fx_train_0 is not None)

    return predict_fn


@keeps_float64
def _follow(
    matrix: AnyArray,
    y: AnyArray,
    start: AnyArray,
    cross: AnyArray | None,
    test: AnyArray | None,
    time: Number | np.ndarray,
    size: int,
    modes: Eigenmodes | None,
) -> tuple[Prediction, Eigenmodes]:
    """The prediction, and the modes of the kernel, worked out where they are not known yet."""
    problem = read_problem(
        matrix,
        y,
        kernel_test=cross,
        f0=start,
        f0_test=test,
        loss=MSE(denominator=size),
    )
    modes = modes_of(problem) if modes is None else modes
    return follow_flow(problem, modes, time, 0.0), modes


@errors.public
def max_learning_rate(
    ntk_train_train: Numbers,
    y_train_size: int | None = None,
    momentum: Number = 0.0,
    eps: float = 1e-12,
) -> Number:
    """2 (1 + momentum) |y| / lambda_max: above it training on ||f - y||^2 / (2 |y|) diverges.

    It is `ntkdiag.critical_learning_rate` under `MSE(denominator=|y|)`.
    Cost: the eigenvalues of the kernel.
    Source: Goh 2017, "Why Momentum Really Works", Distill. neural-tangents' documentation says
    product for quotient.

    Args:
        ntk_train_train: Training kernel of shape `zip(y_train.shape, y_train.shape)` without traced
            axes.
        y_train_size: |y|, `y_train.size`. Needed for a kernel [N N], which does not say how many
            outputs were traced. Otherwise taken from the kernel, assuming no traced axes.
        momentum: beta of heavy-ball momentum.
        eps: Added to lambda_max.

    Returns:
        A number; it can be compiled.

    Raises:
        InvalidInputError: The kernel is not of a set with itself, or |y| is needed.

    Example:
        >>> import numpy as np
        >>> round(float(max_learning_rate(np.diag([1.0, 4.0]), y_train_size=2)), 6)
        1.0
    """
    kernel = array(ntk_train_train, "ntk_train_train")
    rows = math.prod(kernel.shape[::2])
    if kernel.ndim % 2 or tuple(kernel.shape[::2]) != tuple(kernel.shape[1::2]):
        raise errors.InvalidInputError(
            expected="a kernel of shape zip(y_train.shape, y_train.shape)",
            got=f"shape {tuple(kernel.shape)}",
            do="Compute it without diagonal_axes, as ntk_fn(x_train, None, params).",
        )
    if y_train_size is None and kernel.ndim == 2:
        raise errors.InvalidInputError(
            expected="`y_train_size` beside a kernel [N N]",
            got="None",
            do="Pass y_train.size: N times the number of outputs that were traced, or N for a "
            "single output.",
        )
    size = rows if y_train_size is None else y_train_size
    matrix = unzip(kernel).reshape(rows, rows)
    critical = critical_learning_rate(
        matrix, Descent(momentum=momentum), loss=MSE(denominator=size)
    )
    return 1.0 / (1.0 / critical + eps / (2.0 * (1.0 + momentum) * size))


@errors.public
def gradient_descent(
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    k_train_train: Numbers,
    y_train: Numbers,
    learning_rate: Number = 1.0,
    momentum: Number | None = None,
    trace_axes: AxesLike = (-1,),
) -> Callable:
    """Outputs of the linearized network under gradient flow on any loss, also with momentum.

    df/ds = -K grad_f loss(f, y) at s = learning_rate t. With momentum m, the heavy-ball equation:
    df/ds = q, dq/ds = (m - 1) / sqrt(learning_rate) q - K grad_f loss at s = sqrt(learning_rate) t.
    Cost: one product with the kernel for each evaluation; see `ntkdiag.predict.integrate_flow`.
    Source: Lee et al. 2019, arXiv:1902.06720, section 2.2. This is a continuous approximation of
    gradient descent; for the steps themselves see `ntkdiag.predict.iterate_descent`.

    Args:
        loss: `loss(f(x_train), y_train)`, one number.
        k_train_train: As for `gradient_descent_mse`.
        y_train: Targets.
        learning_rate: Step size.
        momentum: m in [0, 1), or None.
        trace_axes: As for `gradient_descent_mse`.

    Returns:
        `predict_fn(t, fx_train_or_state_0=0., fx_test_0=None, k_test_train=None)`: outputs on the
        training set, on the test set if `fx_train_or_state_0` is None, or both, with the axes of t
        first. Times are strictly increasing and finite. It can be compiled, also with kernels as
        arguments; t that is traced and not increasing gives NaN. neural-tangents' `ODEState` is not
        supported: training starts at rest.

    Raises:
        InvalidInputError: Kernel, targets and loss do not fit, or a number is out of range; calling
            the result raises it too.

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
    dtype = jax.dtypes.canonicalize_dtype(at_least_float32(y.dtype))
    outputs = jax.ShapeDtypeStruct(y.shape, dtype)
    value = jax.eval_shape(loss, outputs, outputs)
    if getattr(value, "shape", None) != ():
        raise errors.InvalidInputError(
            expected="a `loss(f, y)` that returns one number",
            got=f"{value}",
            do="Sum or average in it.",
        )

    @errors.called("predict_fn(t, fx_train_or_state_0, fx_test_0, k_test_train)")
    def predict_fn(
        t: Numbers | None = None,
        fx_train_or_state_0: Numbers | None = 0.0,
        fx_test_0: Numbers | None = None,
        k_test_train: Numbers | None = None,
    ) -> AnyArray | tuple[AnyArray, AnyArray]:
        start, cross, test, shape = layout.read_start(fx_train_or_state_0, fx_test_0, k_test_train)
        times = _read_times(t)
        # The differential equation: [... (r l) c], rows of the test set behind the training set's.
        kernels, starts = [matrix, cross], [start, test]
        solved = _solve(loss, layout, kernels, y, starts, times, learning_rate, momentum)
        rows = len(matrix)
        of_test = None if test is None else solved[..., rows:, :]
        wants_train = fx_train_or_state_0 is not None
        return layout.predicted(solved[..., :rows, :], of_test, shape, wants_train)

    return predict_fn


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


@keeps_float64
@functools.partial(jax.jit, static_argnums=(0, 1))
def _solve(
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    layout: Layout,
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

    outputs = stacked(start)
    at_rest = [outputs] if momentum is None else [outputs, jnp.zeros_like(outputs)]
    # Traced times may be anything: the solver gets increasing ones, and the rest becomes NaN.
    flat = jnp.asarray(times, dtype).reshape(-1)
    solved = solve_ode(
        slope,
        jnp.stack(at_rest),  # [k (r l) c]: outputs, and with momentum their velocities
        jax.lax.cummax(jnp.maximum(flat, 0.0)) * unit,
        least_size=1.0,
    )
    are_times = (jnp.diff(flat, prepend=-1.0) > 0).all() & (flat >= 0).all()
    solved = jnp.where(are_times, solved[:, 0], jnp.nan)
    return solved.reshape(*times.shape, *solved.shape[1:])  # [T (r l) c] -> [... (r l) c]
