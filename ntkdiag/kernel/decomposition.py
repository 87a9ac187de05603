"""From a kernel to its `Spectrum`: for the user, and for every function that needs eigenvalues.

Whoever passes a `Spectrum` has paid for the decomposition already, and gets it back as it is.
Only where vectors are wanted and it has none, the kernel it keeps is decomposed again.
"""

import math

from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.kernel_argument import KernelArgument, KernelLike, coarsest, noise_floor, unpack
from ntkdiag.kernel.spectrum import Spectrum, decompose
from ntkdiag.scalars import AnyArray, Number, is_concrete


@errors.public
def spectrum(kernel: KernelLike, *, vectors: bool = False) -> Spectrum:
    """Eigenvalues of a kernel, descending, and with them its ranks.

    Concrete kernels are decomposed in float64 on the host by divide and conquer (LAPACK syevd),
    tracers by `jnp.linalg.eigh` in their own precision; both from (K + K^T) / 2. The noise floor is
    set by what the kernel was computed in: float64 arithmetic does not bring back digits that a
    float32 kernel never had.

    A spectrum can be handed to every function of a kernel, which then does not decompose it again.
    Those that work with modes (`analysis.modes`, `analysis.leave_one_out`, `predict`) need
    the vectors; without them they decompose the kernel that the spectrum keeps.

    Cost: about 9 (NC)^3 operations with vectors, a third of that without.

    Args:
        kernel: A `Kernel`, a matrix `[n n]`, a full kernel `[n o n o]`, or their `Spectrum`.
        vectors: Also return the eigenvectors.

    Returns:
        The spectrum. A kernel with NaN or Inf gives ``status="nonfinite"``, not an exception.

    Raises:
        InvalidInputError: When the kernel is not square or not symmetric.

    Example:
        >>> import numpy as np
        >>> import ntkdiag
        >>> found = ntkdiag.spectrum(np.diag([3.0, 1.0]))
        >>> found.rank, round(found.stable_rank, 3)
        (2, 1.333)
    """
    if isinstance(kernel, Spectrum):
        if kernel.vectors is not None or not vectors:
            return kernel
        kernel = kernel.kernel
    array, convention, symmetric = unpack(kernel, "kernel")
    matrix = square_matrix(array, symmetric)
    resolution = noise_floor(array, convention, matrix.shape[0])
    kept = kernel if isinstance(kernel, Kernel) else array
    solved = decompose(matrix, resolution, vectors=vectors, kernel=kept)
    if is_concrete(matrix):
        require_symmetric(solved.asymmetry, coarsest(array, convention))
    return solved


def decomposed(operand: KernelArgument, *, vectors: bool = True) -> Spectrum:
    """The spectrum of a kernel that was read: the one passed, where it has what is wanted."""
    handed_in = operand.spectrum
    if handed_in is not None and (handed_in.vectors is not None or not vectors):
        return handed_in
    return decompose(operand.matrix, operand.noise_floor, vectors=vectors)


def square_matrix(array: AnyArray, symmetric: bool) -> Float[AnyArray, "k k"]:
    """A kernel as a matrix, refused if it is not one of examples with themselves.

    `symmetric` says whether rows and columns are the same examples, as far as the kernel knows.
    """
    shape = tuple(array.shape)
    half = len(shape) // 2
    is_square = len(shape) in (2, 4) and shape[:half] == shape[half:] and 0 not in shape
    if is_square and symmetric:
        k = math.prod(shape[:half])
        return array.reshape(k, k)  # [n o n o] -> [(n o) (n o)]
    got = f"shape {shape}"
    if is_square:
        got += " of a cross kernel"
    raise errors.InvalidInputError(
        expected="a square kernel [n n] or [n o n o] of examples with themselves",
        got=got,
        do="Compute it as `ntk(f, params, x)`, without `x2`; index a diagonal kernel by output.",
    )


def require_symmetric(asymmetry: Number, roundoff: float) -> None:
    """Refuse a matrix further from its transpose than arithmetic of this roundoff leaves it."""
    # Rounding leaves about one roundoff; mixed batch sizes up to 1e-6 in float32.
    tolerance = max(1e-4, 8 * roundoff)
    if asymmetry > tolerance:
        raise errors.InvalidInputError(
            expected=f"a symmetric kernel, ||K - K^T|| <= {tolerance:.0e} ||K||",
            got=f"||K - K^T|| = {asymmetry:.2g} ||K||",
            do="A cross kernel has no eigenvalues; otherwise compute all rows in one call and one "
            "batch size.",
        )
