"""Gradient descent with momentum on an eigenmode, by powers of its small transition matrix.

The answer psi of a mode of curvature mu to a constant source passes through a momentum,

    psi <- psi + d,  d from the gradient rate (1 - mu psi).

That is linear in the state (psi, its velocity, 1). So t steps are the t-th power of a 3 x 3 matrix,
by repeated squaring: no case for zero eigenvalues or double roots is needed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ntkdiag.descent import MomentumKind
from ntkdiag.predict.response import determined, inverse
from ntkdiag.scalars import Number

# The state, by position.
RESPONSE, VELOCITY, ONE = range(3)
BITS = 31  # of a number of steps


def momentum_response(
    values: Float[Array, " k"],
    floor: Float[Array, ""],
    rate: Number,
    steps: Float[Array, " T"],
    momentum: Number,
    kind: MomentumKind,
) -> Float[Array, "T k"]:
    """psi, in units of 1 / mu, after `steps` of gradient descent with momentum.

    `values` are the mu, which are not negative, `rate` is eta / D, and steps may be infinite.
    Unresolved ones and t = infinity as in `descent_response`. Cost: 31 products of k matrices
    3 x 3.
    """

    def transition(mu: Float[Array, ""]) -> Float[Array, "3 3"]:
        return _transition(mu, rate, momentum, kind)

    changes = jax.vmap(transition)(values)
    is_resolved = values > floor
    # With momentum a mode moves at the speed rate / (1 - beta): that long it counts at most.
    speed = rate / (1.0 if kind == "ema" else 1.0 - momentum)
    longest = jnp.minimum(jnp.ceil(inverse(speed * floor)), 2.0**30)
    counts = determined(steps, is_resolved, longest).astype(jnp.int32)
    moving = _power(changes, counts)[..., RESPONSE]

    # Infinity: psi = 1 / mu where that is resolved and stable.
    end = jnp.where(is_resolved, 1.0 / jnp.where(is_resolved, values, 1.0), 0.0)
    end = jnp.where(_is_stable(changes) | ~is_resolved, end, jnp.nan)
    return jnp.where(jnp.isinf(steps)[:, None], end, moving)


def _transition(
    mu: Float[Array, ""], rate: Number, momentum: Number, kind: MomentumKind
) -> Float[Array, "3 3"]:
    """One step on the state, as a matrix minus I.

    Without the identity, what a step changes keeps its precision, however small it is beside 1.
    """
    unit = jnp.eye(3, dtype=mu.dtype)
    gradient = unit[ONE] - mu * unit[RESPONSE]
    fresh = (1.0 - momentum) * gradient if kind == "ema" else gradient
    moving = fresh + momentum * unit[VELOCITY]
    direction = gradient + momentum * moving if kind == "nesterov" else moving
    return jnp.stack([rate * direction, moving - unit[VELOCITY], jnp.zeros_like(unit[ONE])])


def _power(changes: Float[Array, "k 3 3"], steps: Int[Array, "T k"]) -> Float[Array, "T k 3"]:
    """The state after some steps from (0, 0, 1).

    With a step I + d, two of them are I + (2 d + d^2): the bits of the number of steps say which
    powers of two are taken.
    """
    start = jnp.array([0.0, 0.0, 1.0], changes.dtype)
    states = jnp.broadcast_to(start, (*steps.shape, 3))

    def body(bit: Int[Array, ""], carry: tuple[Array, Array]) -> tuple[Array, Array]:
        states, change = carry  # change is (I + d)^(2^bit) - I
        moved = states + jnp.einsum("kij,Tkj->Tki", change, states, precision="highest")
        is_taken = ((steps >> bit) & 1) == 1
        twice = 2.0 * change + jnp.matmul(change, change, precision="highest")
        return jnp.where(is_taken[..., None], moved, states), twice

    return jax.lax.fori_loop(0, BITS, body, (states, changes))[0]


def _is_stable(changes: Float[Array, "k 3 3"]) -> Array:
    """Both roots of the mode inside the unit circle: Jury's conditions on the block I + d.

    d is the upper left 2 x 2. |det| < 1 and |tr| < 1 + det, where tr (I + d) = 2 + tr d and
    det (I + d) = 1 + tr d + det d.
    """
    trace = changes[:, 0, 0] + changes[:, 1, 1]
    determinant = changes[:, 0, 0] * changes[:, 1, 1] - changes[:, 0, 1] * changes[:, 1, 0]
    is_inside = (trace + determinant < 0.0) & (trace + determinant > -2.0)
    return is_inside & (determinant > 0.0) & (4.0 + 2.0 * trace + determinant > 0.0)
