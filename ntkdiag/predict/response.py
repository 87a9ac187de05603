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

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ntkdiag.arrays import Number
from ntkdiag.pytree_dataclass import pytree

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
    s = _determined(time, is_resolved, _inverse(floor))
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
    t = _determined(steps, is_resolved, jnp.ceil(_inverse(rate * floor)))
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


def _determined(
    time: Float[Array, " T"], is_resolved: Bool[Array, "*T k"], longest: Float[Array, ""]
) -> Float[Array, "T k"]:
    """The time that counts for each mode: at most `longest` where unresolved; 0 for infinity."""
    finite = jnp.where(jnp.isinf(time), 0.0, time)[:, None]
    return jnp.where(is_resolved, finite, jnp.minimum(finite, longest))


def _inverse(floor: Float[Array, ""]) -> Float[Array, ""]:
    """1 / floor, infinite for 0."""
    is_positive = floor > 0.0
    return jnp.where(is_positive, 1.0 / jnp.where(is_positive, floor, 1.0), jnp.inf)


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


@pytree("steps", "rate", "ridge")
@dataclasses.dataclass(frozen=True)
class DescentLaw:
    """Gradient descent."""

    steps: Float[Array, " T"]  # `[T]` integers, as floating point; may be infinite
    rate: Number  # eta / D
    ridge: Number  # in units of the eigenvalues

    def response(self, values: Float[Array, " k"], floor: Float[Array, ""]) -> Float[Array, "T k"]:
        """As of `FlowLaw`."""
        return descent_response(values + self.ridge, floor, self.rate, self.steps)


Law: TypeAlias = FlowLaw | DescentLaw
