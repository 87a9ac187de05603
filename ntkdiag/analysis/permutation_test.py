"""The alignment when labels are permuted over the examples.

The inner product of a centred kernel K with the centred target kernel T of permuted labels is a
random number, whose mean and variance over all N! permutations P are known in closed form.

**Mean.** Every P T P^T has the trace of T and rows that sum to zero, and so has their mean, which
looks the same from every example: tr(T) / (N - 1) H with H = I - 11^T / N. For a reduced kernel

    mean <K, P T P^T> = tr(K) tr(T) / (N - 1),

and for a full kernel, pair by pair of outputs, sum_op tr(K_op) (Y^T Y)_op / (N - 1).

**Variance.** Without the part of K along H the mean is zero, and the variance is the mean square

    mean <K, P T P^T>^2 = <K (x) K, E[P (x) P (x) P (x) P] T (x) T>.

The expectation projects onto the tensors of four indices i, j, k, l that no permutation changes.
Of those whose rows sum to zero there are four: i = j and k = l; i = k and j = l; i = l and j = k;
all equal. With G the inner products of these four, a_s those with K (x) K, b_t those with T (x) T,

    variance = sum_st a_s (G^-1)_st b_t.

Kazi-Aoual et al. 1995 ("Refined approximations to permutation tests for multivariate inference")
have the same two moments for reduced kernels, where the alignment is the RV coefficient.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_ROWS_AT_A_TIME = 16  # examples whose labels are multiplied with the kernel together


def reduced_moments(
    array: Float[Array, "n n"], labels: Float[Array, "n o"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and variance of <K, T> over permutations, both centred, T = Y Y^T. Cost: O(N^2 o)."""
    n = array.shape[0]
    target = labels @ labels.T
    mean = jnp.trace(array) * jnp.trace(target) / (n - 1)

    # a_s and b_t: the first is tr(K)^2, and zero without the part along H.
    in_kernel = _invariants(_without_mean(array))
    in_target = _invariants(_without_mean(target))
    variance = in_kernel @ jnp.asarray(_inverse_gram(n), array.dtype) @ in_target
    return mean, jnp.maximum(variance, 0.0)  # rounding of a variance of zero may be negative


def _without_mean(array: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A centred matrix without its part along H, so that its trace is zero."""
    n = array.shape[0]
    return array - jnp.trace(array) / (n - 1) * (jnp.eye(n, dtype=array.dtype) - 1 / n)


def _invariants(array: Float[Array, "n n"]) -> Float[Array, "4"]:
    """tr(K)^2 = 0, ||K||^2 twice for a symmetric matrix, and sum_i K_ii^2."""
    square = jnp.sum(array**2)
    of_diagonal = jnp.sum(jnp.diagonal(array) ** 2)
    return jnp.stack([jnp.zeros_like(square), square, square, of_diagonal])


def full_moments(
    array: Float[Array, "n o n o"], labels: Float[Array, "n o"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and variance of y^T K y over permutations of examples, both centred per output."""
    n = array.shape[0]
    products = labels.T @ labels  # S = Y^T Y, [o o]
    traces = jnp.einsum("nonp->op", array)
    mean = jnp.sum(traces * products) / (n - 1)

    # K without its part along H, so that all its traces over examples are zero.
    centring = jnp.eye(n, dtype=array.dtype) - 1 / n
    array = array - jnp.einsum("op,nm->nomp", traces / (n - 1), centring)

    # The sums a_s b_t run over two pairs of outputs (o p), (q r). Beside them, K_nm is [o p]:
    #   i = j, k = l:  S_op S_qr;   i = k, j = l:  S_oq S_pr;   i = l, j = k:  S_or S_pq;
    #   all equal:     sum_a y_ao y_ap y_aq y_ar.
    along_products = jnp.einsum("nomp,op->nm", array, products)
    turned = jnp.einsum("nomp,oq,pr->nqmr", array, products, products)  # S K_nm S
    at_labels, at_labels_diagonal = _squares_at_labels(array, labels)
    paired = jnp.sum(array * turned)
    crossed = jnp.sum(array * turned.transpose(0, 3, 2, 1))  # [n q m r] -> [n r m q]
    of_pairs = jnp.sum(along_products**2)

    # The same with n = m. There K_nn is symmetric, and the two middle sums are equal.
    diagonal = jnp.einsum("nonp->nop", array)
    turned_diagonal = jnp.einsum("nqnr->nqr", turned)
    paired_diagonal = jnp.sum(diagonal * turned_diagonal)
    of_pairs_diagonal = jnp.sum(jnp.diagonal(along_products) ** 2)

    zero = jnp.zeros_like(paired)
    table = jnp.stack(
        [
            jnp.stack([zero, zero, zero, zero]),  # the traces are zero
            jnp.stack([of_pairs, paired, crossed, at_labels]),
            jnp.stack([of_pairs, crossed, paired, at_labels]),
            jnp.stack([of_pairs_diagonal, paired_diagonal, paired_diagonal, at_labels_diagonal]),
        ]
    )
    variance = jnp.sum(table * jnp.asarray(_inverse_gram(n), array.dtype))
    return mean, jnp.maximum(variance, 0.0)  # rounding of a variance of zero may be negative


def _squares_at_labels(
    array: Float[Array, "n o n o"], labels: Float[Array, "n o"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """sum_a sum_nm (y_a^T K_nm y_a)^2, and the part of it with n = m."""

    def at_one(label: Float[Array, " o"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        values = jnp.einsum("o,nomp,p->nm", label, array, label)
        return jnp.sum(values**2), jnp.sum(jnp.diagonal(values) ** 2)

    # A few labels at a time: all of them would take N^3 numbers.
    everywhere, on_diagonal = jax.lax.map(at_one, labels, batch_size=_ROWS_AT_A_TIME)
    return jnp.sum(everywhere), jnp.sum(on_diagonal)


def _inverse_gram(n: int) -> Float[np.ndarray, "4 4"]:
    """G^-1 (a pseudo-inverse: of two or three examples the four tensors are dependent)."""
    square = (n - 1) / n  # h_a^T h_a; h_a^T h_b = -1/n
    of_two_pairings = (n - 1) ** 2.0
    gram = np.full((4, 4), n - 1.0)  # two different pairings share one loop of indices
    np.fill_diagonal(gram, of_two_pairings)
    gram[3, :] = gram[:, 3] = n * square**2
    gram[3, 3] = n * square**4 + n * (n - 1) / n**4
    return np.linalg.pinv(gram, rcond=1e-12, hermitian=True)
