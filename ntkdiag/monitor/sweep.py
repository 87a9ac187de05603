"""The one pass over the probe that the instruments of the economy tier share.

The examples go through the model in groups. For each group the model is linearized once, and then

    f(theta)             outputs
    r = dL / df          where a loss was named
    J^T r                its part of the gradient of the loss on the probe
    ||J_l^T z||^2        for each layer l, z random signs: a sample of the trace of its kernel
    J dtheta             where there is an update

Groups are independent samples of the trace: error bars come from their scatter, over random signs
and examples at once.
"""

import dataclasses
from typing import TYPE_CHECKING

from jaxtyping import Array, Float, PyTree

from ntkdiag.nouns import pytree

if TYPE_CHECKING:
    from ntkdiag.monitor.situation import Situation


@pytree("outputs", "loss", "residuals", "gradient", "traces", "predicted_change")
@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """What the sweep found; N examples in G groups, L leaves.

    Attributes:
        outputs: f(theta), `[N ...]`.
        loss: Of the probe; None where none was named.
        residuals: dL/df, `[N ...]`; None without a loss.
        gradient: dL/dtheta on the probe, like the parameters; None without a loss.
        traces: `[G L]`, samples of the trace of the kernel of one example, for each leaf.
        predicted_change: J dtheta, `[N ...]`; None without an update.
    """

    outputs: Float[Array, "n *o"]
    loss: Float[Array, ""] | None
    residuals: Float[Array, "n *o"] | None
    gradient: PyTree | None
    traces: Float[Array, "g l"]
    predicted_change: Float[Array, "n *o"] | None


def sweep(situation: "Situation") -> Sweep:
    """Sweep over the probe of a situation.

    Cost: 7 forward passes over the probe: one by itself, two each for J^T r, J^T z and J dtheta.
    """
    raise NotImplementedError
