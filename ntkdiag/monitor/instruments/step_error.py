"""How far the last step was from linear.

The update u changes the outputs on the probe by f(theta + u) - f(theta); to first order by J u.
What the first order misses is a share of the change:

    e1 = ||f(theta + u) - f(theta) - J u|| / ||f(theta + u) - f(theta)||
"""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.estimate import Estimate
from ntkdiag.jaxtools.precision import unit_roundoff
from ntkdiag.monitor.context import Context
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Rows
from ntkdiag.monitor.instruments.scatter import positive_ratio
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Products


class StepError(Instrument):
    """e1 of the next step on the probe: 0 for a linear model, about 1 for chaos.

    The step is the one that the optimizer would make with the gradient at hand. The interval is the
    jackknife's for a ratio of sums over examples, on the logarithm, and holds e1 on all examples
    like those of the probe. It is widened by the rounding floor,

        eps ||f|| / ||f(theta + u) - f(theta)||,

    eps of the coarsest dtype that the model computes in. An e1 below the floor is unresolved: NaN,
    with the interval from 0 to the floor. Where nothing changed the floor is infinite.

    Gives `step_error`. Cost: a forward pass and a forward derivative, 3 F n.
    """

    name: ClassVar[str] = "step_error"

    def lack(self, probe: Probe) -> str | None:
        """No optimizer, or no gradient for it."""
        return "the optimizer is not known" if probe.optimizer is None else None

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """e1 of the update."""
        if context.update is None:
            return {"step_error": Estimate.unknown()}, rows
        outputs = context.outputs
        change = context.evaluate(context.moved(), context.x) - outputs
        missed = change - context.push(context.update)
        squared_changes = _of_examples(change)
        changed = jnp.sqrt(squared_changes.sum())
        scale = jnp.sqrt(_of_examples(outputs).sum())
        roundoff = unit_roundoff(context.program)
        floor = jnp.where(changed > 0, roundoff * scale / changed, jnp.inf)
        squared = positive_ratio(_of_examples(missed), squared_changes)
        error = jnp.sqrt(squared.value)
        # Written so that NaN, of 0 / 0, is not resolved; outputs that are not finite stay NaN.
        is_resolved = error > floor
        unresolved = jnp.where(jnp.isfinite(changed), floor, jnp.nan)
        estimate = Estimate.between(
            jnp.where(is_resolved, error, jnp.nan),
            jnp.where(is_resolved, jnp.maximum(jnp.sqrt(squared.lower) - floor, 0.0), 0.0),
            jnp.where(is_resolved, jnp.sqrt(squared.upper) + floor, unresolved),
        )
        return {"step_error": estimate}, rows


def _of_examples(outputs: Float[Array, "n *o"]) -> Float[Array, " n"]:
    """Squared norms of the outputs of each example."""
    return jnp.square(outputs.reshape(outputs.shape[0], -1)).sum(axis=1)
