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

Of n examples out of N there are, drawn without replacement, the error is sqrt(1 - n / N) times as
large and the bias 1 - n / N times: where the probe is all there is, there is neither.

What the iteration has not resolved is above its value, where the residual says that there may be
something: an error of its own, independent of the others.

Source: Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapters 6 and 8;
Cochran 1977, Sampling Techniques, chapter 2, for the finite population.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ntkdiag.estimate import student_t
from ntkdiag.scalars import AnyArray

# Of the bias, so much shows in few directions: 0.55 to 1, the less the closer eigenvalues lie.
_SHOWN = 0.87
# The estimate of the bias has an error, too, which widens the interval.
_WIDENED = 1.03


def ends_of(
    value: Float[AnyArray, ""],
    by_example: Float[AnyArray, " n"],
    bias: Float[AnyArray, ""],
    n_train: int | None,
    unresolved: Float[Array, ""] | float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The same from the parts: lambda, the a_i, and what lambda is too high by."""
    n = len(by_example)
    missing = 1.0 if n_train is None else max(0.0, 1.0 - n / n_train)
    if n < 2 and missing:
        return jnp.full_like(value, jnp.nan), jnp.full_like(value, jnp.nan)
    standard_error = np.sqrt(n) * by_example.std(ddof=1) if missing else 0.0
    centre = jnp.clip(value - missing * bias, 0.0)
    # The bias is an estimate, too: it may take all of the lower end, and half of the upper one.
    upper_centre = jnp.maximum(centre, 0.5 * value)
    deviations = _WIDENED * student_t(max(n - 1, 1)) * math.sqrt(missing)
    divisor = jnp.where(value > 0.0, value, 1.0)
    relative = deviations * standard_error / divisor
    above = jnp.hypot(relative, jnp.log1p(unresolved / divisor))
    return centre * jnp.exp(-relative), upper_centre * jnp.exp(above)


def first_half(n: int) -> Bool[np.ndarray, " n"]:
    """A half of n examples at random, the same at every measurement."""
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng(0).permutation(n)[: n // 2]] = True
    return chosen
