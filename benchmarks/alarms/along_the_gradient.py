"""The curvature along the gradient, and along the update: one product each.

    c(g) = (E g)^T G (E g) / g^T E g        at most the margin, which is the largest over all g
    c(u) = u^T G u / (2 |g.u|)              for the update u

with E and G as of the margin, and g the gradient that the optimizer got. According to arXiv
2506.04805 Adam spikes where the first passes the edge, not where the margin does.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import ntkdiag
from ntkdiag.monitor.step_context import inner_product

Estimate = ntkdiag.monitor.Estimate


@dataclasses.dataclass(frozen=True)
class AlongTheGradient(ntkdiag.monitor.Instrument):
    """Both numbers, in units in which 1 is the edge."""

    name: ClassVar[str] = "along_the_gradient"
    needs_update: ClassVar[bool] = True
    needs_optimizer: ClassVar[bool] = True

    def forwards(self, layout: Any) -> float:
        """Two forward derivatives."""
        return 4.0

    def measure(self, context: Any, memory: Any) -> tuple[dict[str, Any], Any]:
        """Two pushes."""
        numbers = {"curvature_of_gradient": jnp.nan, "curvature_of_update": jnp.nan}
        reading = context.reading
        if reading is not None:
            answer = jax.tree.map(jnp.multiply, reading.response(), context.gradient)
            met = inner_product(context.gradient, answer)
            numbers["curvature_of_gradient"] = jnp.where(
                reading.has_numbers, _curvature(context, answer) / met, jnp.nan
            )
        update = context.update
        slope = jnp.abs(inner_product(context.gradient, update))
        numbers["curvature_of_update"] = _curvature(context, update) / (2.0 * slope)
        return {name: Estimate.exact(value) for name, value in numbers.items()}, memory


def _curvature(context: Any, tangent: Any) -> jax.Array:
    """v^T G v."""
    change = context.push(tangent)
    return jnp.vdot(change, context.curve(change))
