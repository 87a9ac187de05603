"""What an optimizer does with a gradient, read from the optimizer itself.

Near a minimum the gradient is H theta, and what decides about stability is the answer of the
optimizer to a gradient that changes its sign at every step. For all optimizers that are linear in
gradients and parameters while their second moments stand still, with a buffer m for momentum,

    m <- beta m + alpha g,     theta <- theta - (p m + q g) - b theta      (p and q by parameter),

the iteration on a curvature h has an eigenvalue -1 where

    h E + b / 2 = 1,     E = (q (1 + beta) - p alpha) / (2 (1 + beta)).

-2 E is the update that answers the gradient 1, -1, 1, ... once m swings with it. So E comes from the
optimizer's own `update`, for SGD with any momentum, Adam and its like, schedules, groups and masks
alike, and the margin is lambda_max(E^1/2 H E^1/2) + b / 2.
"""

import dataclasses
import enum

from jaxtyping import Array, Float, Int, PyTree

from ntkdiag.nouns import pytree


class Reading(enum.IntEnum):
    """Whether the optimizer was recognised."""

    RECOGNISED = 0
    YOUNG = 1  # second moments are younger than 1 / (1 - beta2) steps: numbers hold for now only
    UNEXPLAINED = 2  # the update that was made is not the one that was predicted
    NOT_PROPORTIONAL = 3  # the update does not shrink with the gradient, as that of sign descent
    REFUSED = 4  # no update rule, or one known to be no descent along the gradient: LBFGS, SAM


@pytree("response", "decay", "clip", "residual", "memory", "status")
@dataclasses.dataclass(frozen=True, eq=False)
class DescentReading:
    """How an optimizer answers gradients at one step.

    Attributes:
        response: E, like the parameters, in float32 at least, >= 0; 0 for what is not trained.
        decay: b, the largest share of a parameter that weight decay takes in this step.
        clip: The share of the gradient that clipping left; 1 where it was not active.
        residual: Of the update that was made, what the prediction does not explain, relative.
        memory: 1 / (1 - beta2), the steps that second moments remember; 0 without any.
        status: A `Reading`.
    """

    response: PyTree
    decay: Float[Array, ""]
    clip: Float[Array, ""]
    residual: Float[Array, ""]
    memory: Float[Array, ""]
    status: Int[Array, ""]
