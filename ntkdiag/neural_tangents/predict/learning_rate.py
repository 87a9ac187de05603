"""`max_learning_rate`: where training with squared error starts to diverge."""

import math

from ntkdiag import errors
from ntkdiag.analysis.stability import critical_learning_rate
from ntkdiag.descent import Descent
from ntkdiag.losses import MSE
from ntkdiag.neural_tangents.predict.kernel_layout import KernelNumbers, array, unzip
from ntkdiag.scalars import Number


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
