"""A preconditioner from a random low-rank approximation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def nystrom(
    product: Callable[[jax.Array], jax.Array], size: int, rank: int, ridge: jax.Array, seed: int, dtype: jnp.dtype
) -> Callable[[jax.Array], jax.Array]:
    """P^-1 of P = U (L + ridge) U^T / (l_k + ridge) + (1 - U U^T), with U L U^T the Nyström approximation of A.

    Deflates the `rank` largest eigenvalues, which for tangent kernels are few and far above the rest: the condition
    number falls from l_1 / ridge to about l_k / ridge.
    Cost: `rank` products, a QR and an SVD of `size` x `rank`; 4 size rank per application.
    Source: Frangella, Tropp and Udell 2023 (arXiv 2110.02820), algorithms 2.1 and 4.1. The shifted core is inverted
    by an eigendecomposition instead of Cholesky, which fails for a kernel of lower rank than asked for.

    Args:
        product: v -> A v for vectors, without the ridge.
        size: Length of the vectors.
        rank: k.
        ridge: Added to A in the system to be solved.
        seed: Of the random vectors.
        dtype: Of the vectors.

    Returns:
        r -> P^-1 r.
    """
    rank = min(rank, size)
    omega = jnp.linalg.qr(jax.random.normal(jax.random.key(seed), (size, rank), dtype))[0]
    image = jax.lax.map(product, omega.T).T
    shift = jnp.finfo(dtype).eps * jnp.linalg.norm(image)
    image = image + shift * omega
    core = omega.T @ image
    values, vectors = jnp.linalg.eigh(0.5 * (core + core.T))
    floor = jnp.finfo(dtype).eps * rank * jnp.max(jnp.abs(values))
    root = jnp.where(values > floor, 1.0 / jnp.sqrt(jnp.where(values > floor, values, 1.0)), 0.0)
    basis, singular, _ = jnp.linalg.svd(image @ (vectors * root), full_matrices=False)
    found = jnp.maximum(singular**2 - shift, 0.0)
    smallest = found[-1] + ridge
    # Directions the approximation does not reach are left as they are, and so are all for a zero matrix.
    weight = jnp.where(found + ridge > 0, smallest / jnp.where(found + ridge > 0, found + ridge, 1.0), 1.0)
    weight = jnp.where(smallest > 0, weight, 1.0)

    def precondition(r: jax.Array) -> jax.Array:
        inside = basis.T @ r
        return r + basis @ ((weight - 1.0) * inside)

    return precondition
