"""The margin of stability of the optimizer in use, by products.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

E and b are the response and the decay of the optimizer, see `optimizer/response.py`. The curvature
is that of Gauss and Newton: it sees no negative curvature of the network, and no noise of batches.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.context import Context
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Rows
from ntkdiag.monitor.instruments.margin_error import ends_of, first_half
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Job, Products, Ritz, largest, or_1

# Largest curvatures that are followed: two of them may cross.
_FOLLOWED = 2


class Margin(Instrument):
    """The margin of stability, and what it rests on.

    - `margin`: lambda_1 + b / 2 on the probe, above 1 where the optimizer is unstable. Of few
      examples it is too high; its interval is that of the margin of the training set that the
      probe is a random sample of, and may lie below it. With `n_train=`, the number of examples
      there are, the interval is that of a part of them: none where the probe is all. What the
      iteration has not resolved is in its upper end. NaN where the optimizer was not recognised:
      `optimizer_status` is why.
    - `margin_residual`: the residual of lambda_1, relative: within it there is an eigenvalue. No
      finding rests on a reading where it is above 0.1.

    Cost: 6 products in the loop, 12 in the first measurement.
    """

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
        fresh = _unit(context.residuals) + _unit(random)
        first = jnp.where(context.is_first, fresh, rows[0])
        second = _unit(rows[1]) + 0.5 * fresh
        given = jax.vmap(context.without_constants)(jnp.stack([_unit(first), _unit(second)]))
        return [Job(given, self._count, self._count_first, is_curved=True)]

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
        lower, upper = _ends(context, ritz)
        known = jnp.where(is_known, 1.0, jnp.nan)
        decay = 0.5 * response.decay
        estimates = {
            "margin": Estimate.between(*(known * (end + decay) for end in (value, lower, upper))),
            "margin_residual": Estimate.exact(known * ritz.residuals[0] / jnp.abs(value)),
        }
        changes = jax.vmap(context.without_constants)(ritz.products.reshape(-1, *shape))
        return estimates, jax.vmap(_unit)(changes).astype(rows.dtype)


def _ends(context: Context, ritz: Ritz) -> tuple[Array, Array]:
    """The ends of the 95 % interval of the largest eigenvalue of all examples there are."""
    value, residual = ritz.values[0], ritz.residuals[0]
    by_output = ritz.products[0] * ritz.curved[0]
    by_example = by_output.reshape(context.n_examples, -1).sum(axis=1)
    # Each half of the examples, in the same directions, has half of their weight.
    bias = 2.0 * ritz.of_parts.mean() - value
    unresolved = jnp.where(jnp.isfinite(residual), residual, 0.0)
    return ends_of(value, by_example, bias, context.probe.n_train, unresolved)


def _unit(change: Array) -> Array:
    """A change of the outputs at length 1; zeros stay."""
    return change / or_1(jnp.linalg.norm(change.reshape(-1)))
