"""How modes are learned under squared error with a ridge: by flow, by descent, with momentum.

A law answers one question about a mode of eigenvalue lambda. psi: how far it has answered a
constant source, the residual, in units of 1 / lambda. Every answer is for T times, or numbers of
steps, and k modes at once.
"""

import dataclasses
from typing import TypeAlias

from jaxtyping import Array, Float

from ntkdiag.descent import MomentumKind
from ntkdiag.predict.momentum import momentum_response
from ntkdiag.predict.response import descent_response, flow_response
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import Number


@pytree("time", "ridge")
@dataclasses.dataclass(frozen=True)
class FlowLaw:
    """Gradient flow."""

    time: Float[Array, " T"]  # `[T]` t / D; may be infinite
    ridge: Float[Array, " T"]  # `[T]`, one for each time, in units of the eigenvalues

    def response(self, values: Float[Array, " k"], floor: Float[Array, ""]) -> Float[Array, "T k"]:
        """psi of every mode at every time, from eigenvalues that are not negative."""
        shifted = values + self.ridge[:, None]  # [T k]
        return flow_response(shifted, floor, self.time)


@pytree("steps", "rate", "ridge", "momentum")
@dataclasses.dataclass(frozen=True)
class DescentLaw:
    """Gradient descent."""

    steps: Float[Array, " T"]  # `[T]` integers, as floating point; may be infinite
    rate: Number  # eta / D
    ridge: Number  # in units of the eigenvalues
    momentum: Number | None = None  # beta; None for none, which has shorter formulas
    kind: MomentumKind = "heavy-ball"  # see `ntkdiag.Descent`

    def response(self, values: Float[Array, " k"], floor: Float[Array, ""]) -> Float[Array, "T k"]:
        """As of `FlowLaw`; with momentum at the cost of `momentum_response`."""
        shifted = values + self.ridge
        if self.momentum is None:
            return descent_response(shifted, floor, self.rate, self.steps)
        return momentum_response(shifted, floor, self.rate, self.steps, self.momentum, self.kind)


Law: TypeAlias = FlowLaw | DescentLaw
