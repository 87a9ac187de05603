"""Estimates of the test error of kernel ridge regression from its training data alone."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.kernel.decomposition import decomposed
from ntkdiag.kernel.labels import read_labels
from ntkdiag.kernel.operand import KernelLike, Operand, read_square
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.scalars import Number, require_at_least_zero


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["residuals", "mse", "resolved"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """What kernel ridge regression gets wrong on each example when it is trained on all others.

    Attributes:
        residuals: `[n o]`, y minus the prediction without that example; NaN when not resolved.
        mse: Mean over examples of the squared residual, summed over outputs (no factor 1/2).
        resolved: Whether the smallest eigenvalue of K + ridge I stands above the noise floor.
    """

    residuals: Any
    mse: Any
    resolved: Any


@errors.public
@keeps_float64
def leave_one_out(kernel: KernelLike, y: jax.typing.ArrayLike, ridge: Number = 0.0) -> LeaveOneOut:
    """Exact leave-one-out residuals of kernel ridge regression (PRESS), without refitting.

    With A = K + ridge I and alpha = A^-1 y: e_i = alpha_i / (A^-1)_ii; for a full kernel all outputs of an example
    are left out together, e_i = ((A^-1)_ii)^-1 alpha_i with the C x C block.
    The points must be fresh: on the points the network was trained on, the kernel after training already knows the
    labels and the estimate is 2 to 3 times too small. Subtract the network's output at the kernel's parameters from
    y to predict what training changes.
    Cost: one eigendecomposition, O((NC)^3). Source: Allen 1974 (PRESS); Wei, Hu and Steinhardt 2022 (arXiv
    2203.06176) for the empirical NTK.

    Args:
        kernel: A `Kernel`, a matrix `[n n]` or a full kernel `[n o n o]`.
        y: `[n]` or `[n o]` targets.
        ridge: gamma, in the units of the kernel's eigenvalues (not relative to the trace), 0 or more.

    Returns:
        Residuals, their mean square, and whether they can be trusted.

    Raises:
        InvalidInputError: When kernel or labels are not finite or do not fit, or the ridge is negative.
    """
    operand, labels = _read(kernel, y, ridge)
    return _press(operand.symmetric_matrix, decomposed(operand), labels, ridge)


@errors.public
@keeps_float64
def generalized_cross_validation(
    kernel: KernelLike, y: jax.typing.ArrayLike, ridge: Number = 0.0
) -> Float[Array, ""]:
    """GCV = (1/N) ||A^-1 y||^2 / ((1/NC) tr A^-1)^2, A = K + ridge I: leave-one-out with equal leverages.

    Biased where the leverages differ (inputs of different norms: -24 % measured); trust `leave_one_out` when the
    two disagree by more than 10 %. Also known as KARE.
    Cost: one eigendecomposition, O((NC)^3). Source: Golub, Heath and Wahba 1979; Jacot et al. 2020 (arXiv
    2006.09796).

    Args:
        kernel: As for `leave_one_out`.
        y: As for `leave_one_out`.
        ridge: As for `leave_one_out`; the limit 0 is fine, gamma cancels.

    Returns:
        Mean over examples of the squared error, summed over outputs; NaN when A is not resolved.

    Raises:
        InvalidInputError: As `leave_one_out`.
    """
    operand, labels = _read(kernel, y, ridge)
    inverse, _ = _regularised_inverse(operand.symmetric_matrix, decomposed(operand), ridge)
    solved = inverse @ labels.reshape(len(inverse), -1)
    return jnp.sum(solved**2) / operand.n_examples / jnp.mean(jnp.diagonal(inverse)) ** 2


def _read(
    kernel: KernelLike, y: jax.typing.ArrayLike, ridge: Number
) -> tuple[Operand, Float[Array, "n o"]]:
    require_at_least_zero(ridge, "ridge")
    return read_labels(y, read_square(kernel))


@jax.jit
def _press(matrix: jax.Array, modes: Spectrum, labels: jax.Array, ridge: Number) -> LeaveOneOut:
    inverse, resolved = _regularised_inverse(matrix, modes, ridge)
    n = labels.shape[0]
    c = matrix.shape[0] // n
    blocks = jnp.einsum("nonp->nop", inverse.reshape(n, c, n, c))
    alpha = (inverse @ labels.reshape(n * c, -1)).reshape(n, c, -1)
    residuals = jnp.linalg.solve(blocks, alpha).reshape(labels.shape)
    return LeaveOneOut(residuals, jnp.sum(residuals**2) / n, resolved)


@jax.jit
def _regularised_inverse(
    matrix: jax.Array, modes: Spectrum, ridge: Number
) -> tuple[jax.Array, jax.Array]:
    modes = jax.lax.stop_gradient(modes)
    values = jnp.asarray(modes.eigenvalues, matrix.dtype)
    vectors = jnp.asarray(modes.vectors, matrix.dtype)
    shifted = values + jax.lax.stop_gradient(ridge)
    resolved = shifted[-1] > modes.noise_floor
    kept = jnp.where(resolved, 1.0 / jnp.where(resolved, shifted, 1.0), jnp.nan)
    return _inverse(
        matrix + ridge * jnp.eye(len(matrix), dtype=matrix.dtype), kept, vectors
    ), resolved


@jax.custom_jvp
def _inverse(matrix: jax.Array, values: jax.Array, vectors: jax.Array) -> jax.Array:
    """The inverse from its eigenmodes, with a derivative that needs none of eigenvectors, for they may have none."""
    return (vectors * values) @ vectors.T


@_inverse.defjvp
def _inverse_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    inverse = _inverse(*primals)
    return inverse, -inverse @ tangents[0] @ inverse
