"""How fast each eigenmode of the kernel is learned, and what part of the labels lies in it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.analysis.alignment import mode_power
from ntkdiag.kernels.operands.denominator import denominator_of
from ntkdiag.kernels.operands.labels import read_labels
from ntkdiag.kernels.operands.number import Number, require_positive
from ntkdiag.kernels.operands.operand import KernelLike, read_square, refuse_trace
from ntkdiag.kernels.operands.precision import keeps_float64


@keeps_float64
def time_constants(
    kernel: KernelLike, learning_rate: Number, *, loss_denominator: Number | None = None
) -> Float[Array, " k"]:
    """t_k = D / (eta lambda_k): steps of gradient descent in which mode k of the residual falls by a factor e.

    Holds for eta far below critical; `steps_to_residual` is exact. With a reduced kernel the modes are those of
    K kron I_C, an approximation.
    Cost: one eigendecomposition without vectors, O((NC)^3).

    Args:
        kernel: A `Kernel`, a matrix `[n n]` (with `loss_denominator`), or a full kernel `[n o n o]`; not a trace,
            which is C times too large.
        learning_rate: eta; divide by 1 - beta for momentum.
        loss_denominator: D in loss = (1/D) sum 1/2 (f - y)^2 over examples and outputs; None for N.

    Returns:
        `[k]` steps, fastest mode first; infinite for unresolved eigenvalues.

    Raises:
        InvalidInputError: When the kernel is not finite, not square or a trace, or a number is out of range.
    """
    rates = _rates(kernel, learning_rate, loss_denominator, "time_constants(kernel, learning_rate)")
    return 1.0 / rates


@keeps_float64
def steps_to_residual(
    kernel: KernelLike, learning_rate: Number, fraction: Number, *, loss_denominator: Number | None = None
) -> Float[Array, " k"]:
    """Steps of gradient descent until mode k keeps `fraction` of its residual.

    log(fraction) / log|1 - eta lambda_k / D|, exact for constant kernels.
    Cost: as `time_constants`.

    Args:
        kernel: As for `time_constants`.
        learning_rate: As for `time_constants`, without momentum.
        fraction: epsilon, in (0, 1).
        loss_denominator: As for `time_constants`.

    Returns:
        `[k]` steps, largest eigenvalue first, not rounded; infinite for modes that diverge or are unresolved.

    Raises:
        InvalidInputError: As `time_constants`, or when the fraction is not in (0, 1).
    """
    call = "steps_to_residual(kernel, learning_rate, fraction)"
    require_positive(fraction, call, "fraction")
    require_positive(1.0 - fraction, call, "1 - fraction")
    rates = _rates(kernel, learning_rate, loss_denominator, call)
    decay = -jnp.log1p(-jnp.where(rates < 1.0, rates, 2.0 - rates))  # |1 - r| = 1 - (2 - r) beyond 1
    return jnp.where(decay > 0.0, -jnp.log(fraction) / decay, jnp.inf)


@keeps_float64
def reachable_power(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    learning_rate: Number,
    steps: Number,
    *,
    loss_denominator: Number | None = None,
) -> Float[Array, ""]:
    """The share of the labels in modes with a time constant below `steps`: sum of c_k over t_k < steps.

    With the residual f - y for y: what part of the remaining error this budget of steps can remove.
    Cost: two eigendecompositions, O((NC)^3).

    Args:
        kernel: As for `time_constants`.
        y: `[n]` or `[n o]` targets or residuals.
        learning_rate: As for `time_constants`.
        steps: The budget.
        loss_denominator: As for `time_constants`.

    Returns:
        A number in [0, 1].

    Raises:
        InvalidInputError: As `time_constants` and `alignment`.
    """
    call = "reachable_power(kernel, y, learning_rate, steps)"
    require_positive(steps, call, "steps")
    rates = _rates(kernel, learning_rate, loss_denominator, call)
    return jnp.sum(jnp.where(rates * steps > 1.0, mode_power(kernel, y, centred=False), 0.0))


@keeps_float64
def spectral_position(kernel: KernelLike, residual: jax.typing.ArrayLike) -> Float[Array, ""]:
    """rho = r^T Theta r / r^T r: the eigenvalue that drives learning now; compare with lambda_max.

    For squared error it is D^2 ||grad L||^2 / ||r||^2, so one backward pass gives it too. Falling rho means that
    learning has moved into the tail of the spectrum. Source: arXiv 2605.31244, whose normalisation may differ.
    Cost: O(N^2 C^2).

    Args:
        kernel: The full kernel, or a reduced one.
        residual: `[n]` or `[n o]`, f - y.

    Returns:
        rho, in the units of the kernel's eigenvalues; NaN for a zero residual.

    Raises:
        InvalidInputError: When kernel or residual are not finite or do not fit.
    """
    call = "spectral_position(kernel, residual)"
    operand, columns = read_labels(residual, read_square(kernel, call), call, "residual")
    columns = columns.reshape(operand.matrix.shape[0], -1)
    columns = columns / jnp.max(jnp.abs(columns))
    return jnp.sum(columns * (operand.symmetric_matrix @ columns)) / jnp.sum(columns**2)


def _rates(kernel: KernelLike, learning_rate: Number, loss_denominator: Number | None, call: str) -> jax.Array:
    require_positive(learning_rate, call, "learning_rate")
    operand = read_square(kernel, call)
    refuse_trace(operand, call)
    denominator = denominator_of(operand, loss_denominator, call)
    values = jnp.linalg.eigvalsh(operand.symmetric_matrix)[::-1]
    floor = operand.noise_floor * jnp.max(jnp.abs(values))
    return learning_rate * jnp.where(values > floor, values, 0.0) / denominator
