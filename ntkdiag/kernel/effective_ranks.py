"""Effective ranks of a spectrum: the Renyi family, stable <= participation <= entropy <= rank.

With the shares p_j = lambda_j / sum lambda, the Renyi rank of order alpha is
(sum p^alpha)^(1 / (1 - alpha)):

    order 2          participation ratio    1 / sum p^2
    order 1          entropy rank           exp(-sum p log p)
    order infinity   stable rank            1 / max p

All three take eigenvalues `[... k]` that are not negative, and are NaN for a zero spectrum. They
compute with the library the eigenvalues came in: in NumPy on the host, so that float64 stays
float64 with x64 off.
"""

import jax
import numpy as np
from jaxtyping import Bool, Float

from ntkdiag.scalars import AnyArray, Number

Eigenvalues = Float[AnyArray, "*batch k"]


def resolved(eigenvalues: Eigenvalues, floor: Number) -> Bool[AnyArray, "*batch k"]:
    """Which eigenvalues stand above the noise floor, one floor `[...]` for each spectrum."""
    if isinstance(floor, jax.Array | np.ndarray) and floor.ndim > 0:
        return eigenvalues > floor[..., None]
    return eigenvalues > floor


def participation_ratio(eigenvalues: Eigenvalues) -> Number:
    """(sum lambda)^2 / sum lambda^2."""
    p = _shares(eigenvalues)
    return 1.0 / (p**2).sum(-1)


def entropy_rank(eigenvalues: Eigenvalues) -> Number:
    """exp(-sum p log p) with 0 log 0 = 0 (Roy and Vetterli 2007, "The effective rank")."""
    p = _shares(eigenvalues)
    xp = p.__array_namespace__()
    # A logarithm of 1 in place of that of 0: its derivative is finite, too.
    log_p = xp.log(xp.where(p == 0, 1.0, p))
    return xp.exp(-(p * log_p).sum(-1))


def stable_rank(eigenvalues: Eigenvalues) -> Number:
    """sum lambda / lambda_max."""
    return 1.0 / _shares(eigenvalues).max(-1)


def _shares(eigenvalues: Eigenvalues) -> Eigenvalues:
    """p = lambda / sum lambda; scaled first, since the sum of float32 numbers can overflow."""
    xp = eigenvalues.__array_namespace__()
    largest = abs(eigenvalues).max(-1, keepdims=True)
    scaled = eigenvalues / xp.where(largest == 0, xp.nan, largest)
    return scaled / scaled.sum(-1, keepdims=True)
