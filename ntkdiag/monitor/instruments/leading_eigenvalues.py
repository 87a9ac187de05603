"""The largest eigenvalues of the tangent kernel by products, where the kernel itself is too dear.

Theta = J J^T has no curvature and no optimizer in it; it changes slowly, and is measured less often
than the margin. Lanczos' iteration begins anew each time (see `residual_lanczos`).
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Tier
from ntkdiag.monitor.instruments.residual_lanczos import (
    Change,
    Matrix,
    Passes,
    iterate,
    normalised,
    places_for,
)
from ntkdiag.monitor.step_context import StepContext

# Passes beyond the number of eigenvalues, for the last of them.
_FURTHER_PASSES = 3
_MOST_FURTHER = 11


@dataclasses.dataclass(frozen=True)
class LeadingEigenvalues(Instrument):
    """The largest eigenvalues of Theta = J J^T on the probe, of the network as it is trained.

    Numbers:

    - `eigenvalues` `[top_k]`: descending, each a lower bound; the upper end is the residual above.
      NaN at measurements that leave them out.
    """

    name: ClassVar[str] = "eigenvalues"
    tier: ClassVar[Tier] = "spectral"

    top_k: int = 5  # how many
    period: int = 4  # measurements from one with eigenvalues to the next
    tolerance: float = 0.05  # the relative residual at which an eigenvalue has converged

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """Iterate, where it is the turn of the eigenvalues."""
        # Derivatives are shared by all instruments, and must be taken outside of the loop.
        pull, push = context.pull, context.push
        like = context.outputs
        most = self.top_k + _MOST_FURTHER
        passes = Passes(
            normalised(context.random_signs(self.name, like)),
            least=min(self.top_k + _FURTHER_PASSES, like.size),
            looks_beside=jnp.asarray(False),
            parts=jnp.asarray(False),
            is_on=jnp.isfinite(like).all() & (context.measurements % self.period == 0),
            top_k=self.top_k,
            most=most,
            tolerance=self.tolerance,
        )

        def through(cotangent: Change, unity: Array, beside: Array) -> Change:
            del unity, beside
            return push(pull(cotangent))

        n_places = places_for(like.size, like.dtype.itemsize, most, 2**24)
        found = iterate(Matrix(_as_it_is, through), passes, n_places)
        known = jnp.where(passes.is_on & found.is_finite, 1.0, jnp.nan)
        values = known * found.values
        ends = Estimate.between(values, values, values + found.residuals)
        return {"eigenvalues": ends}, memory


def _as_it_is(change: Change) -> Change:
    """The curvature of no loss."""
    return change
