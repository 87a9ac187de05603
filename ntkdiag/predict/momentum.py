"""Gradient descent with momentum on an eigenmode, by powers of its small transition matrix.

With mu = lambda + ridge, three recursions pass through the same momentum:

    psi <- psi + d,  d from the gradient rate (1 - mu psi)    the answer to a constant source
    chi <- chi + d,  d from the gradient rate (a - mu chi)    the answer to the fading pull
    a <- a - d,      d from the gradient rate ridge a         what is left of theta_0

Each is linear in the state (psi, its velocity, a, its velocity, 1). So t steps are the t-th power
of a 5 x 5 matrix, by repeated squaring: no case for zero eigenvalues or double roots is needed.
"""

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ntkdiag.descent import MomentumKind
from ntkdiag.predict.response import determined, inverse
from ntkdiag.scalars import Number

# The state, by position.
RESPONSE, RESPONSE_VELOCITY, KEPT, KEPT_VELOCITY, ONE = range(5)
BITS = 31  # of a number of steps
Source: TypeAlias = Literal["constant", "fading"]


def momentum_response(
    values: Float[Array, " k"],
    floor: Float[Array, ""],
    rate: Number,
    ridge: Number,
    steps: Float[Array, " T"],
    momentum: Number,
    kind: MomentumKind,
) -> tuple[Float[Array, "T k"], Float[Array, "T k"], Float[Array, " T"]]:
    """psi and chi, in units of 1 / mu, and a, after `steps` of gradient descent with momentum.

    `values` are eigenvalues that are not negative, `rate` is eta / D, and steps may be infinite.
    Unresolved eigenvalues and t = infinity as in `descent_response`. Cost: 31 products of k
    matrices 5 x 5.
    """
    is_endless = jnp.isinf(steps)
    mu = values + ridge

    def transitions(curvatures: Float[Array, " k"], source: Source) -> Float[Array, "k 5 5"]:
        def transition(curvature: Float[Array, ""]) -> Float[Array, "5 5"]:
            return _transition(curvature, source, rate, ridge, momentum, kind)

        return jax.vmap(transition)(curvatures)

    # With momentum a mode moves at the speed rate / (1 - beta): that long it counts at most.
    speed = rate / (1.0 if kind == "ema" else 1.0 - momentum)
    longest = jnp.minimum(jnp.ceil(inverse(speed * floor)), 2.0**30)

    def counts(is_resolved: Array) -> Int[Array, "T k"]:
        return determined(steps, is_resolved, longest).astype(jnp.int32)

    # Finite times, by powers.
    to_constant = transitions(mu, "constant")
    psi = _power(to_constant, counts(mu > floor))[..., RESPONSE]
    chi = _power(transitions(mu, "fading"), counts(values > floor))[..., RESPONSE]
    # a is the same in every mode: taken from one that does not grow, as 0 x infinity spoils it.
    still = transitions(jnp.zeros(1, values.dtype), "fading")
    kept = _power(still, counts(jnp.ones(1, bool)))[:, 0, KEPT]

    # Infinity: psi = 1 / mu where that is resolved and stable; a pull has died out by then.
    is_resolved = mu > floor
    psi_end = jnp.where(is_resolved, 1.0 / jnp.where(is_resolved, mu, 1.0), 0.0)
    psi_end = jnp.where(_is_stable(to_constant) | ~is_resolved, psi_end, jnp.nan)
    ridge_mode = transitions(jnp.asarray(ridge, values.dtype)[None], "constant")
    kept_end = jnp.where(_is_stable(ridge_mode)[0], 0.0, jnp.nan)
    # Without a ridge the initial parameters stay, and chi is psi. With one chi ends at 0, but for
    # modes that diverge: 0 x psi hands their NaN on.
    has_no_ridge = ridge == 0.0
    chi_end = jnp.where(has_no_ridge, psi_end, kept_end + 0.0 * psi_end)
    kept_end = jnp.where(has_no_ridge, 1.0, kept_end)
    psi = jnp.where(is_endless[:, None], psi_end, psi)
    chi = jnp.where(is_endless[:, None], chi_end, chi)
    return psi, chi, jnp.where(is_endless, kept_end, kept)


def _transition(
    mu: Float[Array, ""],
    source: Source,
    rate: Number,
    ridge: Number,
    momentum: Number,
    kind: MomentumKind,
) -> Float[Array, "5 5"]:
    """One step on the state, as a matrix minus I.

    Without the identity, what a step changes keeps its precision, however small it is beside 1.
    """
    unit = jnp.eye(5, dtype=mu.dtype)

    def rows(gradient: Float[Array, " 5"], velocity: int) -> list[Float[Array, " 5"]]:
        """The changes of a quantity and of its velocity, as linear functions of the state."""
        fresh = (1.0 - momentum) * gradient if kind == "ema" else gradient
        moving = fresh + momentum * unit[velocity]
        direction = gradient + momentum * moving if kind == "nesterov" else moving
        return [rate * direction, moving - unit[velocity]]

    driven_by = ONE if source == "constant" else KEPT
    response_rows = rows(unit[driven_by] - mu * unit[RESPONSE], RESPONSE_VELOCITY)
    kept_rows = rows(-ridge * unit[KEPT], KEPT_VELOCITY)
    return jnp.stack([*response_rows, *kept_rows, jnp.zeros_like(unit[ONE])])


def _power(changes: Float[Array, "k 5 5"], steps: Int[Array, "T k"]) -> Float[Array, "T k 5"]:
    """The state after some steps from (0, 0, 1, 0, 1).

    With a step I + d, two of them are I + (2 d + d^2): the bits of the number of steps say which
    powers of two are taken.
    """
    start = jnp.array([0.0, 0.0, 1.0, 0.0, 1.0], changes.dtype)
    states = jnp.broadcast_to(start, (*steps.shape, 5))

    def body(bit: Int[Array, ""], carry: tuple[Array, Array]) -> tuple[Array, Array]:
        states, change = carry  # change is (I + d)^(2^bit) - I
        moved = states + jnp.einsum("kij,Tkj->Tki", change, states, precision="highest")
        is_taken = ((steps >> bit) & 1) == 1
        twice = 2.0 * change + jnp.matmul(change, change, precision="highest")
        return jnp.where(is_taken[..., None], moved, states), twice

    return jax.lax.fori_loop(0, BITS, body, (states, changes))[0]


def _is_stable(changes: Float[Array, "k 5 5"]) -> Array:
    """Both roots of the mode inside the unit circle: Jury's conditions on the block I + d.

    d is the upper left 2 x 2. |det| < 1 and |tr| < 1 + det, where tr (I + d) = 2 + tr d and
    det (I + d) = 1 + tr d + det d.
    """
    trace = changes[:, 0, 0] + changes[:, 1, 1]
    determinant = changes[:, 0, 0] * changes[:, 1, 1] - changes[:, 0, 1] * changes[:, 1, 0]
    is_inside = (trace + determinant < 0.0) & (trace + determinant > -2.0)
    return is_inside & (determinant > 0.0) & (4.0 + 2.0 * trace + determinant > 0.0)
