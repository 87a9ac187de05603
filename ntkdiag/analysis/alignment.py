"""Whether the directions a kernel learns fast are the directions of the labels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.analysis.centring import centre_kernel, centre_labels
from ntkdiag.kernel.decomposition import decomposed
from ntkdiag.kernel.labels import read_labels
from ntkdiag.kernel.operand import KernelLike, Operand, read_square
from ntkdiag.kernel.spectrum import decompose
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.scalars import is_concrete

Scalar = Float[Array, ""]


@errors.public
@keeps_float64
def alignment(kernel: KernelLike, y: jax.typing.ArrayLike, *, centred: bool = True) -> Scalar:
    """Kernel-target alignment <K, T> / (||K||_F ||T||_F) with the target kernel T.

    - Full kernel: T = y y^T of the stacked labels, so the alignment is y^T K y / (||K|| ||y||^2).
    - Reduced kernel: T = Y Y^T with Y `[n o]`. For one column this is the same formula; for several columns the
      two are different numbers, so compare like with like.

    Centring removes the mean over examples, per output, from kernel and labels alike. Without it a network with
    biases shows little more than its constant mode. Rises when features are learned.
    Cost: O(N^2 C^2). Source: Cristianini et al. 2001; Cortes et al. 2012 (centred); Baratin et al. 2021 (arXiv
    2008.00938) for the full kernel.

    Args:
        kernel: A `Kernel`, a matrix `[n n]` or a full kernel `[n o n o]`.
        y: `[n]` or `[n o]`: regression targets, one-hot rows, or class numbers if the kernel states its outputs.
        centred: Whether to centre.

    Returns:
        A number in [-1, 1], not negative for a kernel without negative eigenvalues; NaN for a zero kernel and, centred,
        for one that is constant over examples.

    Raises:
        InvalidInputError: When kernel or labels are not finite or do not fit, or the labels are all zero or, centred,
            the same for all examples.
    """
    operand, labels = _read(kernel, y, centred)
    return _align(_centre(operand) if centred else operand.array, labels)


def _centre(operand: Operand) -> jax.Array:
    """The centred kernel; NaN for one that is constant over examples, of which centring leaves rounding."""
    array = centre_kernel(operand.array)
    constant = jnp.max(jnp.abs(array)) <= 8 * jnp.finfo(array.dtype).eps * jnp.max(
        jnp.abs(operand.array)
    )
    return jnp.where(constant, jnp.nan, array)


@jax.jit
def _align(array: jax.Array, labels: jax.Array) -> jax.Array:
    array = array / jnp.max(jnp.abs(array))  # keeps the squares below in range
    norm = jnp.linalg.norm(array)
    if array.ndim == 4:
        return jnp.einsum("no,nomp,mp->", labels, array, labels) / (norm * jnp.sum(labels**2))
    target = jnp.linalg.norm(
        labels.T @ labels
    )  # ||Y Y^T||_F = ||Y^T Y||_F, and the second is small
    return jnp.einsum("no,nm,mo->", labels, array, labels) / (norm * target)


@errors.public
@keeps_float64
def label_power(
    kernel: KernelLike, y: jax.typing.ArrayLike, *, centred: bool = True
) -> Float[Array, " k"]:
    """Cumulative label power C(k) = sum_{j <= k} ||u_j^T Y||^2 / ||Y||^2 over the eigenvectors, largest first.

    C(k) is the share of the labels that lies in the k fastest modes; with the residual f - y for y it is the
    share of what is still to be learned. Within a group of equal eigenvalues only the value at its end is defined.
    Cost: one eigendecomposition, O((NC)^3). Source: Canatar et al. 2021, "task-model alignment".

    Args:
        kernel: As for `alignment`.
        y: As for `alignment`; a reduced kernel sums the power over the columns.
        centred: Centre kernel and labels over examples first.

    Returns:
        `[k]`, rising to 1; NaN as for `alignment`.

    Raises:
        InvalidInputError: As `alignment`.
    """
    return jnp.cumsum(mode_power(kernel, y, centred=centred))


@keeps_float64
def mode_power(
    kernel: KernelLike, y: jax.typing.ArrayLike, *, centred: bool = True
) -> Float[Array, " k"]:
    """The share of the labels in each mode, ||u_k^T Y||^2 / ||Y||^2, largest eigenvalue first."""
    operand, labels = _read(kernel, y, centred)
    if centred:
        matrix = _centre(operand).reshape(operand.matrix.shape)
        modes = decompose(matrix, operand.noise_floor, vectors=True)
    else:
        modes = decomposed(operand)
    vectors = jnp.asarray(modes.vectors, operand.array.dtype)
    columns = labels.reshape(vectors.shape[0], -1)
    return jnp.sum((vectors.T @ columns) ** 2, axis=1) / jnp.sum(labels**2)


def _read(kernel: KernelLike, y: jax.typing.ArrayLike, centred: bool) -> tuple[Operand, jax.Array]:
    operand, labels = read_labels(y, read_square(kernel))
    size = jnp.max(jnp.abs(labels))
    labels = labels / size
    labels = centre_labels(labels) if centred else labels
    largest = jnp.max(jnp.abs(labels))
    if is_concrete(largest) and not largest > 8 * jnp.finfo(labels.dtype).eps:
        raise errors.InvalidInputError(
            expected="labels that differ between examples"
            if centred
            else "labels that are not all zero",
            got="the same label for every example" if centred else "zero labels",
            do="Use a probe set that holds several classes or targets.",
        )
    return operand, labels
