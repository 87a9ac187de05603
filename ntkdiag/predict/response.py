"""How far an eigenmode of the kernel has been learned at a given time, without dividing by a small eigenvalue."""

import jax
import jax.numpy as jnp

from ntkdiag.scalars import Number

_TERMS = 9  # of the series, as many as float64 needs below 1/10


def flow_response(values: jax.Array, floor: jax.Array, time: jax.Array) -> jax.Array:
    """psi(mu, s) = (1 - exp(-mu s)) / mu, with the limit s for mu -> 0.

    A mode with an unresolved eigenvalue goes as the eigenvalue says until s floor = 1, and stands still from then on:
    what it would do is not determined by the kernel. At s = infinity it is left out, as by the pseudo-inverse.
    Cost: one pass. Source: Lee et al. 2019 (arXiv 1902.06720), eq. 10, written with expm1.

    Args:
        values: `[k]` eigenvalues mu, not negative.
        floor: The noise floor.
        time: `[T]` s = t / D; may be infinite.

    Returns:
        `[T k]`, in units of 1 / mu.
    """
    endless = jnp.isinf(time)[:, None]
    s = determined(time, values > floor, inverse(floor))
    safe = jnp.where(values > 0.0, values, 1.0)
    fixed = jnp.where(values > floor, 1.0 / safe, 0.0)
    return jnp.where(endless, fixed, s * _decayed(values * s))  # and so for the derivatives


def descent_response(
    values: jax.Array, floor: jax.Array, rate: Number, steps: jax.Array
) -> jax.Array:
    """psi(mu, t) = (1 - (1 - rate mu)^t) / mu, with the limit rate t for mu -> 0.

    Unresolved eigenvalues as in `flow_response`. At t = infinity modes with rate mu >= 2 are NaN: they diverge.
    Cost: one pass.

    Args:
        values: `[k]` eigenvalues mu, not negative.
        floor: The noise floor.
        rate: eta / D.
        steps: `[T]` integers, as floating point; may be infinite.

    Returns:
        `[T k]`, in units of 1 / mu.
    """
    endless = jnp.isinf(steps)[:, None]
    t = determined(steps, values > floor, jnp.ceil(inverse(rate * floor)))
    safe = jnp.where(values > 0.0, values, 1.0)
    fixed = jnp.where(values > floor, 1.0 / safe, 0.0)
    found = jnp.where(endless, fixed, rate * _geometric(rate * values, t))
    return jnp.where(endless & (values > floor) & (rate * values >= 2.0), jnp.nan, found)


def pulled_response(
    values: jax.Array, floor: jax.Array, rate: Number, ridge: Number, steps: jax.Array
) -> jax.Array:
    """chi(lambda, t) = (a^t - b^t) / lambda, a = 1 - rate ridge, b = a - rate lambda: the answer to a source a^t.

    The limit for lambda -> 0 is rate t a^(t - 1). Unresolved eigenvalues and t = infinity as in `descent_response`.
    Cost: one pass.

    Args:
        values: `[k]` eigenvalues lambda of the kernel, without the ridge.
        floor: The noise floor.
        rate: eta / D.
        ridge: The ridge, in units of the eigenvalues.
        steps: `[T]` integers, as floating point; may be infinite.

    Returns:
        `[T k]`, in units of 1 / lambda.
    """
    endless = jnp.isinf(steps)[:, None]
    t = determined(steps, values > floor, jnp.ceil(inverse(rate * floor)))
    a = jnp.asarray(1.0 - rate * ridge, values.dtype)
    # b / a = 1 - x keeps small eigenvalues accurate; where b and a have different signs the difference does not cancel.
    smooth = rate * values < a
    divisor, safe = jnp.where(a > 0.0, a, 1.0), jnp.where(values > 0.0, values, 1.0)
    ratio = jnp.where(smooth, rate * values / divisor, 0.0)

    kept = 1.0 - one_minus_power(1.0 - a, t)  # a^t
    apart = one_minus_power(rate * values + (1.0 - a), t) - one_minus_power(1.0 - a, t)
    limit = rate * t * kept / jnp.where(a == 0.0, 1.0, a)
    apart = jnp.where(values > 0.0, apart / safe, limit)
    finite = jnp.where(smooth, kept * rate / divisor * _geometric(ratio, t), apart)
    fixed = jnp.where(
        (values > floor) & (a == 1.0), 1.0 / safe, 0.0
    )  # a ridge lets every pull die out
    diverges = (values > floor) & (rate * values + (1.0 - a) >= 2.0)
    return jnp.where(endless & diverges, jnp.nan, jnp.where(endless, fixed, finite))


def one_minus_power(x: jax.Array, t: jax.Array | float) -> jax.Array:
    """1 - (1 - x)^t for x >= 0 and integer t, accurate for small x.

    Cost: one pass.

    Args:
        x: Learning rate times curvature.
        t: Integers as floating point; at infinity the result is 0 for x = 0, 1 for 0 < x < 2, NaN from 2 on.

    Returns:
        The broadcast of both.
    """
    endless = jnp.isinf(t)
    t = jnp.where(endless, 1.0, t)
    end = jnp.where(x == 0.0, 0.0, jnp.where(x < 2.0, 1.0, jnp.nan))
    below = x < 1.0
    logs = jnp.log1p(-jnp.where(below, x, 0.0))
    direct = -jnp.expm1(t * logs)
    size = jnp.abs(jnp.where(below, 0.5, 1.0 - x))
    at_one = size == 0.0
    power = (1.0 - 2.0 * (t % 2)) * jnp.exp(t * jnp.log(jnp.where(at_one, 1.0, size)))
    first = jnp.where(
        t == 1.0, 1.0 - x, jnp.where(t == 2.0, (1.0 - x) ** 2, 0.0)
    )  # 0^t, with its derivatives
    power = jnp.where(at_one, jnp.where(t == 0.0, 1.0, first), power)
    return jnp.where(endless, end, jnp.where(below, direct, 1.0 - power))


def _geometric(x: jax.Array, t: jax.Array) -> jax.Array:
    """(1 - (1 - x)^t) / x, which is t at 0, for x >= 0 and finite integers t; its derivatives do not cancel either."""
    near = (x * t < 0.1) & (t > 0.0)
    small, large = jnp.where(near, x, 0.0), jnp.where(near | (x == 0.0), 0.5, x)
    series = jnp.ones_like(small * t)
    for m in range(_TERMS, 0, -1):  # sum over m of binomial(t, m + 1) (-x)^m
        series = 1.0 - small * (t - m) / (m + 1) * series
    return jnp.where(near | (x == 0.0), t * series, one_minus_power(large, t) / large)


def _decayed(x: jax.Array) -> jax.Array:
    """(1 - exp(-x)) / x, which is 1 at 0, for x >= 0; its derivatives do not cancel either."""
    near = x < 0.1
    small, large = jnp.where(near, x, 0.0), jnp.where(near, 1.0, x)
    series = jnp.ones_like(small)
    for m in range(_TERMS, 0, -1):  # sum over m of (-x)^m / (m + 1)!
        series = 1.0 - small / (m + 1) * series
    return jnp.where(near, series, -jnp.expm1(-large) / large)


def determined(time: jax.Array, resolved: jax.Array, longest: jax.Array) -> jax.Array:
    """The time that counts for each mode: all of it where the eigenvalue is resolved, elsewhere no more than a longest.

    Cost: one pass.

    Args:
        time: `[T]`; infinite times come back as 0.
        resolved: `[k]`.
        longest: About 1 / floor, in the same units.

    Returns:
        `[T k]`.
    """
    finite = jnp.where(jnp.isinf(time), 0.0, time)[:, None]
    return jnp.where(resolved, finite, jnp.minimum(finite, longest))


def inverse(floor: jax.Array) -> jax.Array:
    """1 / floor, infinite for 0."""
    return jnp.where(floor > 0.0, 1.0 / jnp.where(floor > 0.0, floor, 1.0), jnp.inf)
