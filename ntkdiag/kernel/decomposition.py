"""From a kernel to its `Spectrum`: for the user, and for every function that needs eigenvalues.

Whoever passes a `Spectrum` has paid for the decomposition already, and gets it back as it is.
Only where vectors are wanted and it has none, the kernel it keeps is decomposed again.
"""

from ntkdiag import errors
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.kernel_argument import (
    KernelArgument,
    KernelLike,
    coarsest,
    noise_floor,
    require_symmetric,
    square_matrix,
    unpack,
)
from ntkdiag.kernel.spectrum import Spectrum, decompose
from ntkdiag.scalars import is_concrete


@errors.public
def spectrum(kernel: KernelLike, *, vectors: bool = False) -> Spectrum:
    """Eigenvalues of a kernel, descending, and with them its ranks.

    Concrete kernels are decomposed in float64 on the host by divide and conquer (LAPACK syevd),
    tracers by `jnp.linalg.eigh` in their own precision; both from (K + K^T) / 2. The noise floor is
    set by what the kernel was computed in: float64 arithmetic does not bring back digits that a
    float32 kernel never had.

    A spectrum can be passed to every function of a kernel, which then does not decompose it again.
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
