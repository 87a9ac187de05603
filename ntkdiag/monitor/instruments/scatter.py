"""Intervals from the scatter of independent samples, for numbers that are positive.

Sums of squares are skewed: of one sample far above the others, mean and standard deviation grow
together, and an interval mean +- t s / sqrt(n) that misses the true mean lies below it most often.
On the logarithm it is as long above as it has to be. With r = t s / (mean sqrt(n)),

    [mean exp(-r), mean exp(r)].
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.monitor.estimate import Estimate, student_t


def positive_mean(samples: Float[Array, "n *s"]) -> Estimate:
    """The mean of independent positive samples on the leading axis, with its interval.

    One sample has no interval: it is NaN.
    """
    mean = samples.mean(axis=0)
    reach = _reach(samples - mean) / mean
    return Estimate(mean, mean * jnp.exp(-reach), mean * jnp.exp(reach))


def positive_ratio(numerators: Float[Array, "n *s"], denominators: Float[Array, " n"]) -> Estimate:
    """The ratio of two sums over independent samples, both positive, with its interval.

    To first order the ratio q moves with the samples as the mean of (a - q b) / mean(b).
    """
    below = denominators.reshape(-1, *[1] * (numerators.ndim - 1))  # [n] -> [n *1]
    ratio = numerators.sum(axis=0) / below.sum(axis=0)
    reach = _reach(numerators - ratio * below) / numerators.mean(axis=0)
    # Of what is 0 in all samples the ratio is 0 and has no scatter.
    reach = jnp.where(ratio == 0, 0.0, reach)
    return Estimate(ratio, ratio * jnp.exp(-reach), ratio * jnp.exp(reach))


def _reach(deviations: Float[Array, "n *s"]) -> Float[Array, "*s"]:
    """t s / sqrt(n) of deviations from a mean; NaN for a single one."""
    n = deviations.shape[0]
    if n < 2:
        return jnp.full(deviations.shape[1:], jnp.nan, deviations.dtype)
    variance = jnp.square(deviations).sum(axis=0) / (n - 1)
    return student_t(n - 1) * jnp.sqrt(variance / n)
