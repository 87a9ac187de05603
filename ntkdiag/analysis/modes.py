"""How fast each eigenmode of the kernel is learned, and what part of the labels lies in it.

Gradient descent on the linearized model under squared error multiplies the residual in mode k by
1 - r_k at every step, with the rate

    r_k = eta lambda_k / D.

Everything here follows from the rates: a time constant is 1 / r_k, and |1 - r_k|^t = epsilon is
solved for t. What is not resolved has rate 0: it is never learned.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.analysis.alignment import mode_power
from ntkdiag.analysis.stability import denominator_of, shape_of_outputs
from ntkdiag.descent import DescentLike, as_descent
from ntkdiag.kernel.decomposition import decomposed
from ntkdiag.kernel.kernel_argument import KernelLike, read_square, refuse_trace
from ntkdiag.kernel.labels import read_labels
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.scalars import AnyArray, AnyScalar, Number, is_concrete, require_positive


@errors.public
@keeps_float64
def time_constants(
    kernel: KernelLike, descent: DescentLike, *, loss: LossLike = "mse"
) -> Float[AnyArray, " k"]:
    """t_k = D / (eta lambda_k): the steps in which mode k of the residual falls by a factor e.

    Holds for eta far below critical; `steps_to_residual` is exact. With a reduced kernel the modes
    are those of K kron I_C, an approximation.

    Cost: one eigendecomposition without vectors, O((NC)^3); none for a `Spectrum`.

    Args:
        kernel: A `Kernel`, its `Spectrum`, a matrix `[n n]` (with a loss that states its
            denominator), or a full kernel `[n o n o]`; not a trace, which is C times too large.
        descent: Plain gradient descent: its learning rate, or a `Descent` without momentum and
            decay. For momentum divide the learning rate by 1 - beta.
        loss: Squared error, which these modes are of; `MSE(denominator=...)` where D is not the
            number of examples.

    Returns:
        `[k]` steps, fastest mode first; infinite for unresolved eigenvalues.

    Raises:
        InvalidInputError: When the kernel is not finite, not square or a trace, the loss is not
            squared error, the update rule is not plain, or a number is out of range.

    Example:
        >>> import numpy as np
        >>> kernel = np.diag([4.0, 2.0]).reshape(2, 1, 2, 1)  # two examples, one output
        >>> time_constants(kernel, 0.1).tolist()
        [5.0, 10.0]
    """
    return 1.0 / _rates(kernel, descent, loss)


@errors.public
@keeps_float64
def steps_to_residual(
    kernel: KernelLike, descent: DescentLike, fraction: Number, *, loss: LossLike = "mse"
) -> Float[AnyArray, " k"]:
    """Steps of gradient descent until mode k keeps `fraction` of its residual.

    log(fraction) / log|1 - eta lambda_k / D|, exact for constant kernels.

    Cost: as `time_constants`.

    Args:
        kernel: As for `time_constants`.
        descent: As for `time_constants`.
        fraction: epsilon, in (0, 1).
        loss: As for `time_constants`.

    Returns:
        `[k]` steps, largest eigenvalue first, not rounded; infinite for modes that diverge or are
        unresolved.

    Raises:
        InvalidInputError: As `time_constants`, or when the fraction is not in (0, 1).

    Example:
        >>> import numpy as np
        >>> kernel = np.diag([2.0, 1.0]).reshape(2, 1, 2, 1)
        >>> steps_to_residual(kernel, 0.5, 0.25).round(3).tolist()  # rates 1/2 and 1/4
        [2.0, 4.819]
    """
    require_positive(fraction, "fraction")
    require_positive(1.0 - fraction, "1 - fraction")
    rates = _rates(kernel, descent, loss)
    # The share |1 - r| that a step leaves is 1 - s with s = r; beyond a rate of 1, where the
    # residual changes its sign, with s = 2 - r. Small s keep their digits in log(1 - s).
    share_removed = jnp.where(rates < 1.0, rates, 2.0 - rates)
    decay = -jnp.log1p(-share_removed)  # of log|residual| in one step
    # No decay: the rate is 0, not resolved, or 2 and more, and the mode diverges.
    return jnp.where(decay > 0.0, -jnp.log(fraction) / decay, jnp.inf)


@errors.public
@keeps_float64
def reachable_power(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    descent: DescentLike,
    steps: Number,
    *,
    loss: LossLike = "mse",
) -> AnyScalar:
    """The share of the labels in modes with a time constant below `steps`.

    It is the sum of the label power c_k over the modes with t_k < steps.

    With the residual f - y for y: what part of the remaining error this budget of steps can remove.

    Cost: two eigendecompositions, O((NC)^3); none for a `Spectrum` with vectors.

    Args:
        kernel: As for `time_constants`.
        y: `[n]` or `[n o]` targets or residuals.
        descent: As for `time_constants`.
        steps: The budget.
        loss: As for `time_constants`.

    Returns:
        A number in [0, 1].

    Raises:
        InvalidInputError: As `time_constants` and `alignment`.

    Example:
        >>> import numpy as np
        >>> kernel = np.diag([4.0, 2.0]).reshape(2, 1, 2, 1)
        >>> y = np.array([[3.0], [1.0]])
        >>> round(float(reachable_power(kernel, y, 0.1, steps=7)), 6)  # the first mode, of 5 steps
        0.9
    """
    require_positive(steps, "steps")
    rates = _rates(kernel, descent, loss)
    power = mode_power(kernel, y, centred=False)
    is_reached = rates * steps > 1.0  # t_k < steps
    return jnp.sum(jnp.where(is_reached, power, 0.0))


@errors.public
@keeps_float64
def spectral_position(kernel: KernelLike, residual: jax.typing.ArrayLike) -> AnyScalar:
    """rho = r^T Theta r / r^T r: the eigenvalue that drives learning now; compare with lambda_max.

    For squared error it is D^2 ||grad L||^2 / ||r||^2, so one backward pass gives it too. Falling
    rho means that learning has moved into the tail of the spectrum.

    Cost: O(N^2 C^2). Source: arXiv 2605.31244, whose normalisation may differ.

    Args:
        kernel: The full kernel, or a reduced one.
        residual: `[n]` or `[n o]`, f - y.

    Returns:
        rho, in the units of the kernel's eigenvalues; NaN for a zero residual.

    Raises:
        InvalidInputError: When kernel or residual are not finite or do not fit.

    Example:
        >>> import numpy as np
        >>> float(spectral_position(np.diag([4.0, 2.0]), np.array([1.0, 1.0])))
        3.0
    """
    operand, residuals = read_labels(residual, read_square(kernel), "residual")
    columns = residuals.reshape(operand.matrix.shape[0], -1)
    columns = columns / jnp.max(jnp.abs(columns))  # keeps the squares below in range
    driven = operand.symmetric_matrix @ columns
    return jnp.sum(columns * driven) / jnp.sum(columns**2)


def _rates(kernel: KernelLike, descent: DescentLike, loss: LossLike) -> Float[Array, " k"]:
    """r_k = eta lambda_k / D, largest first; 0 for what is not resolved."""
    learning_rate = _plain_learning_rate(descent)
    squared_error = require_loss(loss, "the time constant of a mode")
    if not squared_error.is_quadratic:
        raise errors.InvalidInputError(
            expected="squared error: under another loss the modes do not decay one by one",
            got=f'loss="{squared_error.name}"',
            do="Pass loss=ntkdiag.losses.MSE(), or leave it out.",
        )
    operand = read_square(kernel)
    refuse_trace(operand)
    denominator = denominator_of(squared_error, shape_of_outputs(operand, None))
    eigenvalues = jnp.asarray(decomposed(operand, vectors=False).resolved, operand.array.dtype)
    return learning_rate * eigenvalues / denominator


def _plain_learning_rate(descent: DescentLike) -> Number:
    """The learning rate of plain gradient descent; NaN where momentum or decay come too late."""
    rule = as_descent(descent)
    learning_rate = rule.require_learning_rate()
    require_positive(learning_rate, "learning_rate")
    beyond_plain = rule.momentum + rule.weight_decay  # both are 0 or more
    is_plain = beyond_plain == 0
    is_known = is_concrete(is_plain)
    if rule.preconditioner is not None or (is_known and not is_plain):
        raise errors.InvalidInputError(
            expected="plain gradient descent",
            got=f"{rule!r}",
            do="With momentum far below critical, pass learning_rate / (1 - momentum).",
        )
    if is_known:
        return learning_rate
    return jnp.where(is_plain, learning_rate, jnp.nan)
