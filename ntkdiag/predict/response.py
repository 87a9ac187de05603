"""How far an eigenmode of the kernel has been learned, without dividing by a small eigenvalue.

The answer of a mode of eigenvalue mu to a constant source, at s = t / D of flow and after t steps
of descent at rate = eta / D, is

    psi(mu, s) = (1 - exp(-mu s)) / mu,    psi(mu, t) = (1 - (1 - rate mu)^t) / mu,

with the limits s and rate t for mu -> 0. Both are computed from functions that are smooth there:
(1 - exp(-x)) / x and (1 - (1 - x)^t) / x, by their series where x or x t is small.

A mode whose eigenvalue is not resolved goes as the eigenvalue says until s floor = 1, and stops
from then on: the kernel does not determine it. At infinity it is left out, as by the
pseudo-inverse.
"""

import dataclasses
from typing import TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ntkdiag.arrays import Number
from ntkdiag.pytree_dataclass import pytree

TERMS = 9  # of the series, as many as float64 needs below 1/10


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
    """(1 - (1 - x)^t) / x, near 0 by its series, for x >= 0 and finite integers t."""
    is_near = (x * t < 0.1) & (t > 0.0)
    takes_series = is_near | (x == 0.0)
    small = jnp.where(is_near, x, 0.0)
    large = jnp.where(takes_series, 0.5, x)
    series = jnp.ones_like(small * t)
    for m in range(TERMS, 0, -1):
        series = 1.0 - small * (t - m) / (m + 1) * series
    return jnp.where(takes_series, t * series, _one_minus_power(large, t) / large)


def _decayed(x: Float[Array, "T k"]) -> Float[Array, "T k"]:
    """(1 - exp(-x)) / x, near 0 by its series, for x >= 0."""
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
    """Gradient flow: Lee et al. 2019 (arXiv 1902.06720), eq. 10, written with expm1."""

    time: Float[Array, " T"]  # `[T]` t / D; may be infinite
    ridge: Float[Array, " T"]  # `[T]`, one for each time, in units of the eigenvalues

    def response(self, values: Float[Array, " k"], floor: Float[Array, ""]) -> Float[Array, "T k"]:
        """psi(mu, s) of every mode at every time, from eigenvalues that are not negative."""
        mu = values + self.ridge[:, None]  # [T k]
        is_endless = jnp.isinf(self.time)[:, None]
        is_resolved = mu > floor
        s = _determined(self.time, is_resolved, _inverse(floor))
        moving = s * _decayed(mu * s)
        # Chosen at the end, so that derivatives are those of the chosen one.
        return jnp.where(is_endless, _pseudo_inverse(mu, is_resolved), moving)


@pytree("steps", "rate", "ridge")
@dataclasses.dataclass(frozen=True)
class DescentLaw:
    """Gradient descent; at t = infinity modes with rate mu >= 2 are NaN: they diverge."""

    steps: Float[Array, " T"]  # `[T]` integers, as floating point; may be infinite
    rate: Number  # eta / D
    ridge: Number  # in units of the eigenvalues

    def response(self, values: Float[Array, " k"], floor: Float[Array, ""]) -> Float[Array, "T k"]:
        """psi(mu, t), as of `FlowLaw`."""
        mu = values + self.ridge
        is_endless = jnp.isinf(self.steps)[:, None]
        is_resolved = mu > floor
        t = _determined(self.steps, is_resolved, jnp.ceil(_inverse(self.rate * floor)))
        moving = self.rate * _geometric(self.rate * mu, t)
        response = jnp.where(is_endless, _pseudo_inverse(mu, is_resolved), moving)
        diverges = is_resolved & (self.rate * mu >= 2.0)
        return jnp.where(is_endless & diverges, jnp.nan, response)


Law: TypeAlias = FlowLaw | DescentLaw
