"""How much of the leading subspace of one kernel is that of another.

Kernels are centred over examples: the largest modes of a kernel as it comes are the constants of
the outputs, which any two networks share.
"""

import math

import jax
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.analysis.centring import centre_kernel

# Eigenvectors of each kernel that are laid beside each other.
N_MODES = 10

Modes = Float[np.ndarray, "rows k"]


def leading_modes(kernel: Float[Array | np.ndarray, "..."], noise_floor: float) -> Modes:
    """The leading eigenvectors of a centred kernel, in columns; zeros for what is not resolved."""
    import scipy.linalg  # here, because it is slow to import

    with jax.enable_x64(True):
        centred = np.asarray(centre_kernel(np.asarray(kernel, np.float64)))
    rows = math.prod(centred.shape[: centred.ndim // 2])
    matrix = centred.reshape(rows, rows)
    if not np.isfinite(matrix).all():
        return np.zeros((rows, min(rows, N_MODES)))
    first = max(0, rows - N_MODES)
    values, vectors = scipy.linalg.eigh(matrix, subset_by_index=(first, rows - 1))
    return np.where(values > noise_floor, vectors, 0.0)[:, ::-1]


def overlap_of_modes(modes_a: Modes, modes_b: Modes) -> float:
    """||U_a^T U_b||_F^2 / m of the m leading modes that both resolve; NaN without modes."""
    # A mode below the noise floor has no direction.
    m = min(int(modes.any(axis=0).sum()) for modes in (modes_a, modes_b))
    if m == 0:
        return math.nan
    return float(np.sum((modes_a[:, :m].T @ modes_b[:, :m]) ** 2)) / m
