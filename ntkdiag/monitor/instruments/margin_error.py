"""How far a largest eigenvalue of some examples is from that of all: its error over examples.

lambda = sum_i a_i over examples, a_i = t_i . (H t)_i with t = J E^1/2 v the change of the outputs
along the eigenvector v. An example that is left out takes its a_i with it, to first order: the
standard error is that of N times the mean of the a_i (the infinitesimal jackknife).

The eigenvector is chosen for these examples, and lambda is above that of all by a bias which falls
as 1/N: in each half of the examples it is twice as large.

    bias = (lambda of one half + lambda of the other) / 2 - lambda

That of a half is sought in a few directions only, the best vectors and what the halves do not
agree on, which is less than it is. Errors are relative, as the vector makes lambda and a_i large
together: the interval is that of the logarithm.

Source: Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapters 6 and 8.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.monitor.estimate import student_t
from ntkdiag.monitor.instruments.block_iteration import Iterates, Ritz
from ntkdiag.monitor.situation import Situation

# Of the bias, so much shows in few directions: 0.55 to 1, the less the closer eigenvalues lie.
_SHOWN = 0.87
# The estimate of the bias has an error, too, which widens the interval.
_WIDENED = 1.03


def ends_over_examples(
    situation: Situation, vector: Iterates, ritz: Ritz
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The ends of the 95 % interval of the largest eigenvalue of all examples there are.

    Args:
        situation: The step; its examples are drawn at random from all.
        vector: The eigenvector.
        ritz: On a basis that holds what the halves do not agree on.
    """
    n = situation.n_examples
    value = ritz.values[0]
    if n < 2:
        return jnp.full_like(value, jnp.nan), jnp.full_like(value, jnp.nan)
    [change] = vector.t
    by_example = (change * situation.curve(change)).reshape(n, -1).sum(axis=1)
    standard_error = np.sqrt(n) * by_example.std(ddof=1)
    bias = (ritz.of_halves.mean() - value) / _SHOWN
    centre = jnp.clip(value - bias, 0.0)
    deviations = _WIDENED * student_t(n - 1)
    relative = deviations * standard_error / jnp.where(value > 0.0, value, 1.0)
    return centre * jnp.exp(-relative), centre * jnp.exp(relative)
