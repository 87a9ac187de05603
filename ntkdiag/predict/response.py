"""How far an eigenmode of the kernel has been learned, without dividing by a small eigenvalue.

The answer of a mode of eigenvalue mu to a constant source, at s = t / D of flow and after t steps
of descent at rate = eta / D, is

    psi(mu, s) = (1 - exp(-mu s)) / mu,    psi(mu, t) = (1 - (1 - rate mu)^t) / mu,

with the limits s and rate t for mu -> 0. Both are computed from functions that are smooth there:
(1 - exp(-x)) / x and (1 - (1 - x)^t) / x, by their series where x or x t is small.

A mode whose eigenvalue is not resolved goes as the eigenvalue says until s floor = 1, and stands
still from then on: what it would do is not determined by the kernel. At infinity it is left out, as
by the pseudo-inverse.
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ntkdiag.descent import MomentumKind
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import Number

TERMS = 9  # of the series, as many as float64 needs below 1/10


def flow_response(
    values: Float[Array, "*T k"], floor: Float[Array, ""], time: Float[Array, " T"]
) -> Float[Array, "T k"]:
    """psi(mu, s) of gradient flow, in units of 1 / mu, at times s = t / D that may be infinite.

    The eigenvalues mu are not negative: `[k]`, or `[T k]` where there is one ridge for each time.
    Source: Lee et al. 2019 (arXiv 1902.06720), eq. 10, written with expm1.
    """
    is_endless = jnp.isinf(time)[:, None]
    is_resolved = values > floor
    s = determined(time, is_resolved, inverse(floor))
    moving = s * _decayed(values * s)
    # Chosen at the end, so that derivatives are those of the chosen one.
    return jnp.where(is_endless, _pseudo_inverse(values, is_resolved), moving)


def descent_response(
    values: Float[Array, " k"], floor: Float[Array, ""], rate: Number, steps: Float[Array, " T"]
) -> Float[Array, "T k"]:
    """psi(mu, t) of gradient descent, in units of 1 / mu, after t steps, which may be infinite.

    At t = infinity modes with rate mu >= 2 are NaN: they diverge.
    """
    is_endless = jnp.isinf(steps)[:, None]
    is_resolved = values > floor
    t = determined(steps, is_resolved, jnp.ceil(inverse(rate * floor)))
    moving = rate * _geometric(rate * values, t)
    response = jnp.where(is_endless, _pseudo_inverse(values, is_resolved), moving)
    diverges = is_resolved & (rate * values >= 2.0)
    return jnp.where(is_endless & diverges, jnp.nan, response)


def _one_minus_power(x: Float[Array, "..."], t: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 - (1 - x)^t for x >= 0 and integer t, accurate for small x; at infinity 0, 1 or NaN."""
    is_endless = jnp.isinf(t)
    t = jnp.where(is_endless, 1.0, t)
    end = jnp.where(x == 0.0, 0.0, jnp.where(x < 2.0, 1.0, jnp.nan))

    # Below 1: by logarithms, which keep small x.
    is_below = x < 1.0
    below = -jnp.expm1(t * jnp.log1p(-jnp.where(is_below, x, 0.0)))

    # From 1 on: (-1)^t |1 - x|^t.
    size = jnp.abs(jnp.where(is_below, 0.5, 1.0 - x))
    is_at_one = size == 0.0
    sign = 1.0 - 2.0 * (t % 2)
    power = sign * jnp.exp(t * jnp.log(jnp.where(is_at_one, 1.0, size)))
    # 0^t, written so that its first two derivatives are right.
    power_at_one = jnp.where(t == 2.0, (1.0 - x) ** 2, 0.0)
    power_at_one = jnp.where(t == 1.0, 1.0 - x, power_at_one)
    power_at_one = jnp.where(t == 0.0, 1.0, power_at_one)
    power = jnp.where(is_at_one, power_at_one, power)

    return jnp.where(is_endless, end, jnp.where(is_below, below, 1.0 - power))


def _pseudo_inverse(
    values: Float[Array, "*T k"], is_resolved: Bool[Array, "*T k"]
) -> Float[Array, "*T k"]:
    """1 / mu of resolved modes, 0 of others."""
    safe = jnp.where(values > 0.0, values, 1.0)
    return jnp.where(is_resolved, 1.0 / safe, 0.0)


def _geometric(x: Float[Array, " k"], t: Float[Array, "T k"]) -> Float[Array, "T k"]:
    """(1 - (1 - x)^t) / x, which is t at 0, for x >= 0 and finite integers t.

    Its derivatives do not cancel either: near 0 it is t sum_m binomial(t, m + 1) / t (-x)^m.
    """
    is_near = (x * t < 0.1) & (t > 0.0)
    takes_series = is_near | (x == 0.0)
    small = jnp.where(is_near, x, 0.0)
    large = jnp.where(takes_series, 0.5, x)
    series = jnp.ones_like(small * t)
    for m in range(TERMS, 0, -1):
        series = 1.0 - small * (t - m) / (m + 1) * series
    return jnp.where(takes_series, t * series, _one_minus_power(large, t) / large)


def _decayed(x: Float[Array, "T k"]) -> Float[Array, "T k"]:
    """(1 - exp(-x)) / x, which is 1 at 0, for x >= 0.

    Its derivatives do not cancel either: near 0 it is sum_m (-x)^m / (m + 1)!.
    """
    is_near = x < 0.1
    small = jnp.where(is_near, x, 0.0)
    large = jnp.where(is_near, 1.0, x)
    series = jnp.ones_like(small)
    for m in range(TERMS, 0, -1):
        series = 1.0 - small / (m + 1) * series
    return jnp.where(is_near, series, -jnp.expm1(-large) / large)


def determined(
    time: Float[Array, " T"], is_resolved: Bool[Array, "*T k"], longest: Float[Array, ""]
) -> Float[Array, "T k"]:
    """The time that counts for each mode: at most `longest` where unresolved; 0 for infinity."""
    finite = jnp.where(jnp.isinf(time), 0.0, time)[:, None]
    return jnp.where(is_resolved, finite, jnp.minimum(finite, longest))


def inverse(floor: Float[Array, ""]) -> Float[Array, ""]:
    """1 / floor, infinite for 0."""
    is_positive = floor > 0.0
    return jnp.where(is_positive, 1.0 / jnp.where(is_positive, floor, 1.0), jnp.inf)


# With momentum, the answer psi of a mode of curvature mu to a constant source is
#
#     psi <- psi + d,  d from the gradient rate (1 - mu psi),
#
# which is linear in the state (psi, its velocity, 1). So t steps are the t-th power of a 3 x 3
# matrix, by repeated squaring: no case for zero eigenvalues or double roots is needed.


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
    """One step on the state, as a matrix minus I: small changes keep their precision."""
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


# A law answers how far a mode of eigenvalue lambda has answered a constant source, in units of
# 1 / lambda: for T times, or numbers of steps, and k modes at once.


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
