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

    The error of the logarithm is the jackknife's, from the ratios without one sample each: where a
    few samples make up the sums, that is larger than the error to first order, and covers better.
    """
    n = numerators.shape[0]
    below = denominators.reshape(n, *[1] * (numerators.ndim - 1))  # [n] -> [n *1]
    above_sum, below_sum = numerators.sum(axis=0), below.sum(axis=0)
    ratio = above_sum / below_sum

    without = (above_sum - numerators) / (below_sum - below)  # [n *s]
    # Of what is 0 in all samples the ratio is 0, and has no scatter.
    tiny = jnp.finfo(ratio.dtype).tiny
    relative = jnp.where(ratio == 0, 1.0, without / jnp.where(ratio == 0, 1.0, ratio))
    logarithms = jnp.log(jnp.maximum(relative, tiny))
    # The scatter without one sample is 1 / (n - 1) of that of single samples.
    reach = _reach((n - 1) * (logarithms - logarithms.mean(axis=0)))
    return Estimate(ratio, ratio * jnp.exp(-reach), ratio * jnp.exp(reach))


def _reach(deviations: Float[Array, "n *s"]) -> Float[Array, "*s"]:
    """t s / sqrt(n) of deviations from a mean; NaN for a single one."""
    n = deviations.shape[0]
    if n < 2:
        return jnp.full(deviations.shape[1:], jnp.nan, deviations.dtype)
    variance = jnp.square(deviations).sum(axis=0) / (n - 1)
    return student_t(n - 1) * jnp.sqrt(variance / n)
