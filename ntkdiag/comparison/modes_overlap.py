"""How much of the leading subspace of one kernel is that of another."""

import math

import numpy as np
from jaxtyping import Float

# Eigenvectors of each kernel that are laid beside each other.
N_MODES = 10


def modes_to_compare(rank_a: int, rank_b: int) -> int:
    """How many leading modes both kernels resolve: one below the noise floor has no direction."""
    return min(N_MODES, rank_a, rank_b)


def overlap_of_modes(
    modes_a: Float[np.ndarray, "k _"], modes_b: Float[np.ndarray, "k _"], m: int
) -> float:
    """||U_a^T U_b||_F^2 / m of the m leading modes, in columns; NaN without modes."""
    if m == 0:
        return math.nan
    return float(np.sum((modes_a[:, :m].T @ modes_b[:, :m]) ** 2)) / m
