"""Effective ranks of a spectrum: the Renyi family, stable <= participation <= entropy <= rank.

The functions take numpy and JAX arrays and compute with the library the eigenvalues came in.
"""

from typing import Any


def resolved(eigenvalues: Any, floor: Any) -> Any:
    """Which eigenvalues stand above the noise floor.

    Cost: one pass.

    Args:
        eigenvalues: `[... k]`.
        floor: `[...]`, absolute.

    Returns:
        Booleans `[... k]`.
    """
    return eigenvalues > (floor[..., None] if getattr(floor, "ndim", 0) else floor)


def participation_ratio(eigenvalues: Any) -> Any:
    """Participation ratio (sum lambda)^2 / sum lambda^2, the Renyi rank of order 2.

    Cost: one pass.

    Args:
        eigenvalues: `[... k]`, not negative.

    Returns:
        `[...]`; NaN for a zero spectrum.
    """
    p = _shares(eigenvalues)
    return 1.0 / (p**2).sum(-1)


def entropy_rank(eigenvalues: Any) -> Any:
    """Entropy rank exp(-sum p log p) with 0 log 0 = 0, the Renyi rank of order 1.

    Cost: one pass. Source: Roy and Vetterli 2007, "The effective rank".

    Args:
        eigenvalues: `[... k]`, not negative.

    Returns:
        `[...]`; NaN for a zero spectrum.
    """
    p = _shares(eigenvalues)
    xp = p.__array_namespace__()
    return xp.exp(-(p * xp.log(xp.where(p == 0, 1.0, p))).sum(-1))


def stable_rank(eigenvalues: Any) -> Any:
    """Stable rank sum lambda / lambda_max, the Renyi rank of order infinity.

    Cost: one pass.

    Args:
        eigenvalues: `[... k]`, not negative.

    Returns:
        `[...]`; NaN for a zero spectrum.
    """
    return 1.0 / _shares(eigenvalues).max(-1)


def _shares(eigenvalues: Any) -> Any:
    xp = (
        eigenvalues.__array_namespace__()
    )  # numpy on the host, so that float64 stays float64 with x64 off
    largest = abs(eigenvalues).max(-1, keepdims=True)
    scaled = eigenvalues / xp.where(largest == 0, xp.nan, largest)
    return scaled / scaled.sum(-1, keepdims=True)
