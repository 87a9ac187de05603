"""How many directions a kernel spreads over, as pure functions for use inside `jax.jit`."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag import _jax, errors
from ntkdiag.kernel import effective_ranks
from ntkdiag.kernel.decomposition import decomposed
from ntkdiag.kernel.operand import KernelLike, is_concrete, noise_floor, read_square
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.scalars import Number, require_positive

Scalar = Float[Array, ""]
Eigenvalues: TypeAlias = jax.typing.ArrayLike | Spectrum


@errors.public
@keeps_float64
def participation_ratio(kernel: KernelLike) -> Scalar:
    """PR = (tr K)^2 / ||K||_F^2 = (sum lambda)^2 / sum lambda^2.

    Needs no eigenvalues. PR / N near 1/N: one mode dominates, often the constant one.
    Cost: O(N^2 C^2).

    Args:
        kernel: A `Kernel` or a symmetric array.

    Returns:
        A number in [1, NC]; NaN for a zero kernel.

    Raises:
        InvalidInputError: When the kernel is not finite or not square.
    """
    matrix = read_square(kernel).symmetric_matrix
    matrix = matrix / jnp.max(jnp.abs(matrix))
    return jnp.trace(matrix) ** 2 / jnp.sum(matrix**2)


@errors.public
@keeps_float64
def entropy_rank(
    kernel: KernelLike | None = None, *, eigenvalues: Eigenvalues | None = None
) -> Scalar:
    """exp(-sum p log p) with p = lambda / sum lambda, over the resolved eigenvalues (0 log 0 = 0).

    Falls during training when the kernel compresses onto few directions.
    Cost: one eigendecomposition without vectors, O((NC)^3). Source: Roy and Vetterli 2007; Baratin et al. 2021
    (arXiv 2008.00938) for kernels.

    Args:
        kernel: A `Kernel` or a symmetric array.
        eigenvalues: `[k]` instead of the kernel, when they are known already; a `Spectrum` knows their noise floor.

    Returns:
        A number in [1, rank]; NaN for a zero kernel, and under `jax.jit` for one with negative eigenvalues.

    Raises:
        InvalidInputError: Without exactly one of the two arguments, for negative eigenvalues, or as `stable_rank`.
    """
    return effective_ranks.entropy_rank(eigenvalues_of(kernel, eigenvalues))


@errors.public
@keeps_float64
def stable_rank(
    kernel: KernelLike | None = None, *, eigenvalues: Eigenvalues | None = None
) -> Scalar:
    """Stable rank tr K / lambda_max, the smallest of the effective ranks (for K = J J^T it is ||J||_F^2 / ||J||^2).

    Cost: one eigendecomposition without vectors, O((NC)^3).

    Args:
        kernel: A `Kernel` or a symmetric array.
        eigenvalues: `[k]` instead of the kernel.

    Returns:
        A number in [1, rank]; NaN for a zero kernel, and under `jax.jit` for one with negative eigenvalues.

    Raises:
        InvalidInputError: Without exactly one of the two arguments, for negative eigenvalues, or when the kernel is
            not finite or not square.
    """
    return effective_ranks.stable_rank(eigenvalues_of(kernel, eigenvalues))


@errors.public
@keeps_float64
def effective_dimension(
    kernel: KernelLike | None = None,
    gamma: Number = 1.0,
    *,
    eigenvalues: Eigenvalues | None = None,
) -> Scalar:
    """d(gamma) = sum lambda / (lambda + gamma): the degrees of freedom a ridge of size gamma leaves.

    Cost: one eigendecomposition without vectors, O((NC)^3).

    Args:
        kernel: A `Kernel` or a symmetric array.
        gamma: Ridge, in the units of the kernel's eigenvalues (not relative to the trace), positive.
        eigenvalues: `[k]` instead of the kernel.

    Returns:
        A number in [0, rank].

    Raises:
        InvalidInputError: When gamma is not positive, or as `stable_rank`.
    """
    require_positive(gamma, "gamma")
    values = eigenvalues_of(kernel, eigenvalues)
    return jnp.sum(values / (values + gamma))


def eigenvalues_of(
    kernel: KernelLike | None, eigenvalues: Eigenvalues | None
) -> Float[Array, " k"]:
    """The eigenvalues of a kernel that should have no negative ones, unresolved ones set to 0.

    Cost: one eigendecomposition without vectors.

    Args:
        kernel: The kernel, or None.
        eigenvalues: The eigenvalues, or None.

    Returns:
        `[k]`, not negative; NaN throughout when some are below minus the noise floor and it is too late to refuse.

    Raises:
        InvalidInputError: Without exactly one of the two, or when eigenvalues are below minus the noise floor.
    """
    if (kernel is None) == (eigenvalues is None):
        got = "neither" if kernel is None else "both"
        raise errors.InvalidInputError(
            expected="a kernel or `eigenvalues=`", got=got, do="Pass exactly one of the two."
        )
    if kernel is not None:
        operand = read_square(kernel)
        found = decomposed(operand, vectors=False).require_semidefinite()
        return jnp.asarray(found.resolved, operand.array.dtype)
    values, floor = _read_eigenvalues(eigenvalues)
    negative = jnp.sum(values < -floor)
    if is_concrete(negative) and negative > 0:
        raise errors.InvalidInputError(
            expected="a kernel J J^T, which has no negative eigenvalues",
            got=f"{int(negative)} eigenvalues below the noise floor {-float(floor):.2g}",
            do="Compute all rows in one call and one batch size; see `health(kernel)`.",
        )
    return jnp.where(negative > 0, jnp.nan, jnp.where(values > floor, values, 0.0))


def _read_eigenvalues(eigenvalues: Eigenvalues | None) -> tuple[jax.Array, Any]:
    floor = None
    if isinstance(eigenvalues, Spectrum):
        eigenvalues, floor = eigenvalues.eigenvalues, eigenvalues.noise_floor
    values = jnp.asarray(eigenvalues)
    values = values.astype(_jax.at_least_float32(values.dtype))
    if values.ndim != 1 or values.shape[0] == 0:
        raise errors.InvalidInputError(
            expected="`eigenvalues` of shape [k]",
            got=f"shape {values.shape}",
            do="Pass one spectrum at a time.",
        )
    if is_concrete(values) and not jnp.isfinite(values).all():
        raise errors.InvalidInputError(
            expected="finite `eigenvalues`", got="NaN or Inf", do="See `spectrum(kernel).status`."
        )
    return values, noise_floor(values, None, values.shape[0]) * jnp.max(
        jnp.abs(values)
    ) if floor is None else floor
