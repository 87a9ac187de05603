"""The interval of a share of successes that is right for few trials, and at 0 and 1, too."""

import math

_NORMAL_QUANTILE = 1.959964  # of 97.5 %


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a probability, of which a share came true in n trials."""
    z = _NORMAL_QUANTILE
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    lower, upper = ((centre + sign * half) / (1 + z**2 / n) for sign in (-1, 1))
    return max(0.0, lower), min(1.0, upper)
