"""How far each mode is learned under squared error with a ridge: flow, descent, momentum."""

import functools

import jax
import jax.numpy as jnp

from ntkdiag.kernels.operands.number import Number
from ntkdiag.linearize.predict.closed_form import Response
from ntkdiag.linearize.predict.momentum import momentum_response
from ntkdiag.linearize.predict.response import (
    descent_response,
    flow_response,
    one_minus_power,
    pulled_response,
)
from ntkdiag.linearize.predict.threshold import MomentumKind


@jax.jit
def responses_of_flow(values: jax.Array, floor: jax.Array, time: jax.Array, ridge: Number) -> Response:
    """Responses of gradient flow with a ridge.

    Cost: one pass.

    Args:
        values: `[k]` eigenvalues, not negative.
        floor: The noise floor.
        time: `[T]` t / D; may be infinite.
        ridge: In units of the eigenvalues.

    Returns:
        The responses.
    """
    endless = jnp.isinf(time)
    decay = jnp.exp(-ridge * jnp.where(endless, 0.0, time))
    decay = jnp.where(endless & (ridge > 0), 0.0, decay)
    chi = decay[:, None] * flow_response(values, floor, time)
    return Response(flow_response(values + ridge, floor, time), chi, decay)


@functools.partial(jax.jit, static_argnames="kind")
def responses_of_descent(
    values: jax.Array,
    floor: jax.Array,
    steps: jax.Array,
    rate: Number,
    ridge: Number,
    momentum: Number | None,
    kind: MomentumKind,
) -> Response:
    """Responses of gradient descent with a ridge and momentum.

    Cost: one pass; with momentum as `momentum_response`.

    Args:
        values: `[k]` eigenvalues, not negative.
        floor: The noise floor.
        steps: `[T]` integers, as floating point; may be infinite.
        rate: eta / D.
        ridge: In units of the eigenvalues.
        momentum: beta; None for none.
        kind: See `stability_threshold`.

    Returns:
        The responses.
    """
    if momentum is not None:
        return Response(*momentum_response(values, floor, rate, ridge, steps, momentum, kind))
    decay = 1.0 - one_minus_power(jnp.asarray(rate * ridge, values.dtype), steps)
    chi = pulled_response(values, floor, rate, ridge, steps)
    return Response(descent_response(values + ridge, floor, rate, steps), chi, decay)
