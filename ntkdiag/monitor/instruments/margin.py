"""The margin of stability of the optimizer in use, by products.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

E and b are the response and the decay of the optimizer, see `optimizer/response.py`. The curvature
is that of Gauss and Newton: it sees no negative curvature of the network, and no noise of batches.

Its interval is over examples. Without b, lambda = sum_i a_i with a_i = t_i . (H t)_i of example i,
t = J E^1/2 v the change of the outputs along the eigenvector v. An example that is left out takes
its a_i with it, to first order: the standard error is that of N times the mean of the a_i (the
infinitesimal jackknife).

The eigenvector is chosen for these examples, and lambda is above that of all by a bias which falls
as 1/N: in each half of the examples it is twice as large.

    bias = (lambda of one half + lambda of the other) / 2 - lambda

Errors are relative, as the vector makes lambda and a_i large together: the interval is that of the
logarithm. Of n examples out of N, drawn without replacement, the error is sqrt(1 - n / N) times as
large and the bias 1 - n / N times. What the iteration has not resolved, by its residual, is above
its value: an error of its own, independent of the others.

Source: Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapters 6 and 8;
Cochran 1977, Sampling Techniques, chapter 2, for the finite population.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ntkdiag.arrays import AnyArray
from ntkdiag.estimate import Estimate, student_t
from ntkdiag.monitor.context import Context, Estimates, Instrument, Rows
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Job, Products, largest, or_1

# Largest curvatures that are followed: two of them may cross.
_FOLLOWED = 2
# The estimate of the bias has an error, too, which widens the interval.
_WIDENED = 1.03


class Margin(Instrument):
    """The margin, and the relative residual of its eigenvalue: 6 products, 12 in the first one."""

    name: ClassVar[str] = "margin"

    def __init__(self, count: int = 4, count_first: int = 6) -> None:
        self._count, self._count_first = count, count_first

    def lack(self, probe: Probe) -> str | None:
        """No loss, held-out examples, or no optimizer."""
        if probe.loss is None:
            return "the curvature is that of the loss; pass loss="
        if not probe.has_loss:
            return "the loss has no labels; pass train=(x, y)"
        if not probe.is_trained_on:
            return "the curvature of held-out examples reads about twice too high; pass train="
        if probe.optimizer is None:
            return "the optimizer is not known; pass optimizer= and its state"
        return None

    def n_rows(self, probe: Probe) -> int:
        """The changes of the outputs along the best vectors."""
        return _FOLLOWED

    def jobs(self, context: Context, rows: Rows) -> Sequence[Job]:
        """Krylov vectors from the last best ones, with something of the gradient and of chance."""
        if context.response is None:
            return ()
        random = context.random_signs(self.name, context.outputs.shape)
        fresh = _unit(context.residuals) + random / math.sqrt(random.size)
        first = jnp.where(context.is_first, fresh, rows[0])
        second = rows[1] + 0.5 * fresh
        starts = jax.vmap(context.without_constants)(jnp.stack([first, second]))
        return [Job(starts, self._count, self._count_first, is_curved=True)]

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """The margin with its interval, and the vectors for the next measurement."""
        response = context.response
        if response is None:
            return {"margin": Estimate.unknown(), "margin_residual": Estimate.unknown()}, rows
        [found] = products
        shape = context.outputs.shape

        def curve(vectors: Float[Array, "m k"]) -> Float[Array, "m k"]:
            return jax.vmap(lambda v: context.curve(v.reshape(shape)).reshape(-1))(vectors)

        half = np.repeat(first_half(context.n_examples), math.prod(shape[1:]))
        ritz = largest(found, curve, _FOLLOWED, parts=(half, ~half))
        value = ritz.values[0]
        is_known = response.is_known & (value != 0)
        by_output = ritz.products[0] * ritz.curved[0]
        by_example = by_output.reshape(context.n_examples, -1).sum(axis=1)
        # Each half of the examples, in the same directions, has half of their weight.
        bias = 2.0 * ritz.of_parts.mean() - value
        unresolved = jnp.where(jnp.isfinite(ritz.residuals[0]), ritz.residuals[0], 0.0)
        lower, upper = ends_of(value, by_example, bias, context.probe.n_train, unresolved)
        known = jnp.where(is_known, 1.0, jnp.nan)
        decay = 0.5 * response.decay
        estimates = {
            "margin": Estimate.between(*(known * (end + decay) for end in (value, lower, upper))),
            "margin_residual": Estimate.exact(known * ritz.residuals[0] / jnp.abs(value)),
        }
        changes = jax.vmap(context.without_constants)(ritz.products.reshape(-1, *shape))
        return estimates, jax.vmap(_unit)(changes).astype(rows.dtype)


def ends_of(
    value: Float[AnyArray, ""],
    by_example: Float[AnyArray, " n"],
    bias: Float[AnyArray, ""],
    n_train: int | None,
    unresolved: Float[Array, ""] | float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The ends of the 95 % interval from lambda, the a_i, and what lambda is too high by."""
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


def _unit(change: Array) -> Array:
    """A change of the outputs at length 1; zeros stay."""
    return change / or_1(jnp.linalg.norm(change.reshape(-1)))
