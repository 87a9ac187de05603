"""How modes are learned under squared error with a ridge: by flow, by descent, with momentum.

A law answers two questions about a mode of eigenvalue lambda. psi: how far it has answered a
constant source, the residual. chi: how far it has answered the pull to zero, which fades while the
initial parameters decay. Both in units of 1 / lambda. `decay` says what is left of the initial
parameters. Every answer is for T times, or numbers of steps, and k modes at once.
"""

import dataclasses
from typing import TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.descent import MomentumKind
from ntkdiag.predict.momentum import momentum_response
from ntkdiag.predict.response import (
    descent_response,
    flow_response,
    one_minus_power,
    pulled_response,
)
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import Number

Responses: TypeAlias = tuple[Float[Array, "T k"], Float[Array, "T k"]]


@pytree("time", "ridge")
@dataclasses.dataclass(frozen=True)
class FlowLaw:
    """Gradient flow.

    Attributes:
        time: `[T]` t / D; may be infinite.
        ridge: `[T]`, one for each time, in units of the eigenvalues.
    """

    time: Float[Array, " T"]
    ridge: Float[Array, " T"]

    def responses(self, values: Float[Array, " k"], floor: Float[Array, ""]) -> Responses:
        """psi and chi of every mode at every time, from eigenvalues that are not negative."""
        # The residual is answered at the speed lambda + ridge, the pull at lambda.
        shifted = values + self.ridge[:, None]  # [T k]
        psi = flow_response(shifted, floor, self.time)
        # The pull fades by exp(-ridge t) in all modes alike.
        chi = self.decay()[:, None] * flow_response(values, floor, self.time)
        return psi, chi

    def decay(self) -> Float[Array, " T"]:
        """What is left of the initial parameters under a pull to zero; 1 without a ridge."""
        is_endless = jnp.isinf(self.time)
        decay = jnp.exp(-self.ridge * jnp.where(is_endless, 0.0, self.time))
        return jnp.where(is_endless & (self.ridge > 0), 0.0, decay)


@pytree("steps", "rate", "ridge", "momentum")
@dataclasses.dataclass(frozen=True)
class DescentLaw:
    """Gradient descent.

    Attributes:
        steps: `[T]` integers, as floating point; may be infinite.
        rate: eta / D.
        ridge: In units of the eigenvalues.
        momentum: beta; None for none, which has shorter formulas.
        kind: See `ntkdiag.Descent`.
    """

    steps: Float[Array, " T"]
    rate: Number
    ridge: Number
    momentum: Number | None = None
    kind: MomentumKind = "heavy-ball"

    def responses(self, values: Float[Array, " k"], floor: Float[Array, ""]) -> Responses:
        """As of `FlowLaw`; with momentum at the cost of `momentum_response`."""
        if self.momentum is not None:
            psi, chi, _ = self._with_momentum(values, floor)
            return psi, chi
        psi = descent_response(values + self.ridge, floor, self.rate, self.steps)
        chi = pulled_response(values, floor, self.rate, self.ridge, self.steps)
        return psi, chi

    def decay(self) -> Float[Array, " T"]:
        """As of `FlowLaw`: (1 - rate ridge)^t without momentum."""
        if self.momentum is not None:
            # It is the same in every mode: asked for one of eigenvalue 0, with noise floor 0.
            nothing = jnp.zeros(1, self.steps.dtype)
            _, _, kept = self._with_momentum(nothing, nothing[0])
            return kept
        change = jnp.asarray(self.rate * self.ridge, self.steps.dtype)
        return 1.0 - one_minus_power(change, self.steps)

    def _with_momentum(
        self, values: Float[Array, " k"], floor: Float[Array, ""]
    ) -> tuple[Float[Array, "T k"], Float[Array, "T k"], Float[Array, " T"]]:
        """psi, chi and what is left of the initial parameters, with momentum."""
        assert self.momentum is not None
        return momentum_response(
            values, floor, self.rate, self.ridge, self.steps, self.momentum, self.kind
        )


Law: TypeAlias = FlowLaw | DescentLaw
