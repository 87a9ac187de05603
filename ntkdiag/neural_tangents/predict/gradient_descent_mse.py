"""`gradient_descent_mse`: gradient flow on squared error in closed form."""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.analysis.stability import critical_learning_rate
from ntkdiag.descent import Descent
from ntkdiag.kernel.kernel_argument import is_concrete
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import MSE
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.predict.kernel_layout import (
    AnyArray,
    KernelNumbers,
    Numbers,
    array,
    read_training,
    unzip,
)
from ntkdiag.predict.closed_form import Eigenmodes, modes_of
from ntkdiag.predict.mse import follow_flow
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import read_problem
from ntkdiag.scalars import Number, require_at_least_zero, require_positive


@errors.public
def gradient_descent_mse(
    k_train_train: KernelNumbers,
    y_train: Numbers,
    learning_rate: Number = 1.0,
    diag_reg: Number = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: AxesLike = (-1,),
) -> Callable:
    """Outputs of the linearized network under gradient flow on ||f - y||^2 / (2 |y|).

    |y| is the number of targets.

    f_t = f_0 + K' (1 - exp(-K t / |y|)) / K (y - f_0) with t in units of `learning_rate`, K the
    regularized training kernel and K' it or the test kernel. Modes whose eigenvalue is not resolved
    follow the limit t / |y| and are left out at infinity; nothing is divided by them. This is
    `ntkdiag.predict.gradient_flow` in another layout, with the loss denominator |y|.
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
        InvalidInputError: Kernel and targets do not fit, or a number is out of range; from the
            result: as well, or the kernel has negative eigenvalues.

    Example:
        >>> import numpy as np
        >>> predict_fn = gradient_descent_mse(np.eye(2), np.ones((2, 1)))
        >>> predict_fn(None).tolist()
        [[1.0], [1.0]]
    """
    require_positive(learning_rate, "learning_rate")
    require_at_least_zero(diag_reg, "diag_reg")
    layout, matrix, y = read_training(k_train_train, y_train, trace_axes)
    matrix = _regularized(matrix, diag_reg, diag_reg_absolute_scale)
    targets = layout.columns(y, "y_train")
    kept: list[Eigenmodes] = []  # the eigendecomposition, from the first call on

    @errors.called("predict_fn(t, fx_train_0, fx_test_0, k_test_train)")
    def predict_fn(
        t: Numbers | None = None,
        fx_train_0: Numbers | None = 0.0,
        fx_test_0: Numbers | None = None,
        k_test_train: KernelNumbers | None = None,
    ) -> AnyArray | tuple[AnyArray, AnyArray]:
        if fx_train_0 is None and fx_test_0 is None:
            raise errors.InvalidInputError(
                expected="`fx_train_0` or `fx_test_0`",
                got="None twice",
                do="Pass what to predict.",
            )
        # neural-tangents' arguments -> matrices
        times = array(np.inf if t is None else t, "t")
        require_at_least_zero(times, "t", many=True)
        cross, test, shape = layout.read_test(fx_test_0, k_test_train)
        start = layout.columns(fx_train_0, "fx_train_0")
        # predict.gradient_flow, with |y| as the denominator of the loss
        modes = kept[0] if kept else None
        time = times * learning_rate
        prediction, modes = _follow(matrix, targets, start, cross, test, time, y.size, modes)
        if all(map(is_concrete, modes)):
            kept[:] = [modes]
        # and back
        train = layout.outputs(prediction.train)
        if prediction.test is None:
            return train
        outputs = layout.outputs(prediction.test, shape)
        return outputs if fx_train_0 is None else (train, outputs)

    return predict_fn


def _regularized(matrix: AnyArray, ridge: Number, is_absolute: bool) -> AnyArray:
    """K + ridge I, the ridge in units of the mean diagonal entry unless it is absolute."""
    unit = 1.0 if is_absolute else matrix.trace() / matrix.shape[0]
    library = np if isinstance(matrix, np.ndarray) else jnp
    return matrix + ridge * unit * library.eye(matrix.shape[0], dtype=matrix.dtype)


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
    ntk_train_train: KernelNumbers,
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
            outputs were traced. Otherwise taken from the kernel, which then has no traced axes.
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
