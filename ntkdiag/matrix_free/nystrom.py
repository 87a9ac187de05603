"""A preconditioner from a random low-rank approximation of a positive semidefinite matrix A.

With Omega `[size k]` of orthonormal random columns, A Omega (Omega^T A Omega)^-1 Omega^T A =
U L U^T is the Nyström approximation of A. It holds the largest eigenvalues, which for tangent
kernels are few and far above the rest; the preconditioner deflates them.

Source: Frangella, Tropp and Udell 2023 (arXiv 2110.02820), algorithms 2.1 and 4.1. The shifted core
is inverted by an eigendecomposition instead of Cholesky, which fails for a kernel of lower rank
than asked for.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

VectorFunction: TypeAlias = Callable[[Float[Array, " size"]], Float[Array, " size"]]


def nystrom(
    product: VectorFunction,
    size: int,
    rank: int,
    ridge: Float[Array, ""],
    seed: int,
    dtype: DTypeLike,
) -> VectorFunction:
    """r -> P^-1 r with P = U (L + ridge) U^T / (l_k + ridge) + (1 - U U^T), for A + ridge.

    The condition number falls from l_1 / ridge to about l_k / ridge.

    Cost: `rank` products, a QR and an SVD of `size` x `rank`; 4 size rank per application.
    """
    rank = min(rank, size)
    basis, eigenvalues = _approximation(product, size, rank, seed, dtype)
    shifted = eigenvalues + ridge  # [k]
    smallest = shifted[-1]
    # In the directions of U, P^-1 multiplies by (l_k + ridge) / (l + ridge). It leaves alone what
    # the approximation does not reach, and everything where the matrix is zero.
    is_reached = (shifted > 0) & (smallest > 0)
    weight = jnp.where(is_reached, smallest / jnp.where(shifted > 0, shifted, 1.0), 1.0)

    def precondition(r: Float[Array, " size"]) -> Float[Array, " size"]:
        return r + basis @ ((weight - 1.0) * (basis.T @ r))

    return precondition


def _approximation(
    product: VectorFunction, size: int, rank: int, seed: int, dtype: DTypeLike
) -> tuple[Float[Array, "size k"], Float[Array, " k"]]:
    """U and L of the Nyström approximation, eigenvalues descending."""
    eps = jnp.finfo(dtype).eps
    normal = jax.random.normal(jax.random.key(seed), (size, rank), dtype)
    omega = jnp.linalg.qr(normal)[0]  # [size k]
    image = jax.lax.map(product, omega.T).T  # A Omega, [size k]
    # A is shifted by what rounding leaves of it, so that the core is positive definite.
    shift = eps * jnp.linalg.norm(image)
    image = image + shift * omega
    core = omega.T @ image  # [k k]
    values, vectors = jnp.linalg.eigh(0.5 * (core + core.T))
    floor = eps * rank * jnp.max(jnp.abs(values))
    is_positive = values > floor
    inverse_root = jnp.where(is_positive, 1.0 / jnp.sqrt(jnp.where(is_positive, values, 1.0)), 0.0)
    # image core^-1 image^T = F F^T with F = image core^-1/2; its SVD gives U and the root of L.
    factor = image @ (vectors * inverse_root)
    basis, singular, _ = jnp.linalg.svd(factor, full_matrices=False)
    return basis, jnp.maximum(singular**2 - shift, 0.0)
