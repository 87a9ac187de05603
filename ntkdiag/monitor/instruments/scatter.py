"""Intervals from the scatter of independent samples, for numbers that are positive.

Sums of squares are skewed: without a sample far above the others, mean and standard deviation are
both too small, and an interval mean +- t s / sqrt(n) that misses the true mean lies below it most
often. Student's interval of the reciprocal is longer above. With r = t s / (mean sqrt(n)),

    [mean / (1 + r), mean / (1 - r)],

which ends at infinity where r >= 1.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.estimate import Estimate, student_t


def positive_mean(samples: Float[Array, "n *s"]) -> Estimate:
    """The mean of independent positive samples on the leading axis, with its interval."""
    mean = samples.mean(axis=0)
    reach = _reach(samples - mean) / mean
    # Written so that NaN stays.
    upper = jnp.where(reach >= 1, jnp.inf, mean / (1 - reach))
    return Estimate(mean, mean / (1 + reach), upper)


def positive_ratio(numerators: Float[Array, "n *s"], denominators: Float[Array, " n"]) -> Estimate:
    """The ratio of two sums over independent samples, both positive, with its interval."""
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


def at_most_1(estimate: Estimate) -> Estimate:
    """An estimate of a share: one above 1, or an end of its interval, is 1."""
    return jax.tree.map(lambda numbers: jnp.minimum(numbers, 1.0), estimate)


def _reach(deviations: Float[Array, "n *s"]) -> Float[Array, "*s"]:
    """t s / sqrt(n) of deviations from a mean; NaN for a single one."""
    n = deviations.shape[0]
    if n < 2:
        return jnp.full(deviations.shape[1:], jnp.nan, deviations.dtype)
    variance = jnp.square(deviations).sum(axis=0) / (n - 1)
    return student_t(n - 1) * jnp.sqrt(variance / n)
