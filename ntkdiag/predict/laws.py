"""How modes are learned under squared error with a ridge: by flow, by descent, with momentum."""

import dataclasses
import functools
from typing import TypeAlias

import jax
import jax.numpy as jnp

from ntkdiag.predict.momentum import momentum_response
from ntkdiag.predict.response import (
    descent_response,
    flow_response,
    one_minus_power,
    pulled_response,
)
from ntkdiag.predict.threshold import MomentumKind
from ntkdiag.scalars import Number


@functools.partial(jax.tree_util.register_dataclass, data_fields=["time", "ridge"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Flow:
    """Gradient flow.

    Attributes:
        time: `[T]` t / D; may be infinite.
        ridge: In units of the eigenvalues; a number, or `[T]` one for each time.
    """

    time: jax.Array
    ridge: Number | jax.Array

    def responses(self, values: jax.Array, floor: jax.Array) -> tuple[jax.Array, jax.Array]:
        """How far each mode is learned at each time.

        Cost: one pass.

        Args:
            values: `[k]` eigenvalues, not negative.
            floor: The noise floor.

        Returns:
            psi, the answer to a constant source, and chi, that to the pull of the decaying initial parameters, both
            `[T k]` in units of 1 / eigenvalue.
        """
        chi = self.decay()[:, None] * flow_response(values, floor, self.time)
        return flow_response(values + jnp.reshape(self.ridge, (-1, 1)), floor, self.time), chi

    def decay(self) -> jax.Array:
        """What is left of the initial parameters under weight decay to zero, `[T]`; 1 without."""
        endless = jnp.isinf(self.time)
        decay = jnp.exp(-self.ridge * jnp.where(endless, 0.0, self.time))
        return jnp.where(endless & (self.ridge > 0), 0.0, decay)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["steps", "rate", "ridge", "momentum"],
    meta_fields=["kind"],
)
@dataclasses.dataclass(frozen=True)
class Descent:
    """Gradient descent.

    Attributes:
        steps: `[T]` integers, as floating point; may be infinite.
        rate: eta / D.
        ridge: In units of the eigenvalues.
        momentum: beta; None for none.
        kind: See `stability_threshold`.
    """

    steps: jax.Array
    rate: Number
    ridge: Number
    momentum: Number | None = None
    kind: MomentumKind = "heavy-ball"

    def responses(self, values: jax.Array, floor: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `Flow.responses`; with momentum at the cost of `momentum_response`."""
        if self.momentum is not None:
            return self._with_momentum(values, floor)[:2]
        chi = pulled_response(values, floor, self.rate, self.ridge, self.steps)
        return descent_response(values + self.ridge, floor, self.rate, self.steps), chi

    def decay(self) -> jax.Array:
        """As `Flow.decay`."""
        if self.momentum is not None:
            nothing = jnp.zeros(1, self.steps.dtype)
            return self._with_momentum(nothing, nothing[0])[2]
        return 1.0 - one_minus_power(
            jnp.asarray(self.rate * self.ridge, self.steps.dtype), self.steps
        )

    def _with_momentum(
        self, values: jax.Array, floor: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        assert self.momentum is not None
        return momentum_response(
            values, floor, self.rate, self.ridge, self.steps, self.momentum, self.kind
        )


Law: TypeAlias = Flow | Descent
