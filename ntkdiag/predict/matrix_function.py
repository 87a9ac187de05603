"""Functions of the kernel as a matrix, whose derivatives are right where eigenvalues coincide, too."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Modes(NamedTuple):
    """Eigenmodes of the training kernel.

    Attributes:
        values: `[k]` eigenvalues, not negative.
        vectors: `[k k]`, one column per mode.
        floor: The noise floor.
    """

    values: jax.Array
    vectors: jax.Array
    floor: jax.Array


Profile = Callable[[Any, jax.Array, jax.Array], jax.Array]  # (law, values [k], floor) -> [h k]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def apply(profile: Profile, kernel: jax.Array, modes: Modes, law: Any, b: jax.Array) -> jax.Array:
    """h(Theta) b = U diag(h(lambda)) U^T b for several functions h.

    Its derivative by the kernel goes through no derivative of eigenvectors, which has none where eigenvalues coincide:
    dh(Theta) = U (h[lambda_i, lambda_j] * (U^T dTheta U)) U^T with the divided differences of h (Daleckii and Krein;
    Higham, Functions of Matrices, theorem 3.11). Second derivatives do, and are NaN there.
    Cost: O(k^2 c) for each h; for a derivative O(k^3), and O(k^2 c) for each.

    Args:
        profile: Every h, of a law at eigenvalues.
        kernel: `[k k]`, symmetric.
        modes: Of the kernel.
        law: How modes are learned: a pytree of numbers.
        b: `[k c]`.

    Returns:
        `[h k c]`.
    """
    return _rotate(
        modes.vectors, profile(law, modes.values, modes.floor)[:, :, None] * (modes.vectors.T @ b)
    )


@apply.defjvp
def _apply_jvp(profile: Profile, primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (_, modes, law, b), (kernel_dot, modes_dot, law_dot, b_dot) = primals, tangents
    values, vectors, floor = modes
    inner, inner_dot = vectors.T @ b, vectors.T @ b_dot
    turning = vectors.T @ kernel_dot @ vectors
    at = lambda law, values: profile(law, values, floor)
    h, h_dot = jax.jvp(
        at, (law, values), (law_dot, modes_dot.values)
    )  # the diagonal of the divided differences, too
    along = lambda fn: lambda values: jax.jvp(fn, (values,), (jnp.ones_like(values),))[1]
    slope = along(functools.partial(at, law))

    @jax.checkpoint  # a [k k] for each would be kept
    def turned(one: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return (_divided_differences(values, floor, *one) * turning) @ inner

    change = h[:, :, None] * inner_dot + h_dot[:, :, None] * inner
    change += lax.map(turned, (h, slope(values), along(slope)(values)))
    return _rotate(vectors, h[:, :, None] * inner), _rotate(vectors, change)


def _rotate(vectors: jax.Array, coefficients: jax.Array) -> jax.Array:
    return jnp.einsum("kj,hjc->hkc", vectors, coefficients)


def _divided_differences(
    values: jax.Array, floor: jax.Array, h: jax.Array, slope: jax.Array, bend: jax.Array
) -> jax.Array:
    """(h_i - h_j) / (lambda_i - lambda_j) off the diagonal, 0 on it; from h' and h'' where that cancels.

    The mean of h' over the gap is (h'_i + h'_j) / 2 - gap (h''_i - h''_j) / 12 up to its fourth power (Euler and
    Maclaurin); the square of the last term, relative to the first, tells about how large that is. Between a resolved
    mode and one that is not h may jump.
    """
    gap, difference = values[:, None] - values, h[:, None] - h
    mean = 0.5 * (slope[:, None] + slope)
    correction = gap * (bend[:, None] - bend) / 12
    series, size = mean - correction, jnp.abs(h)[:, None] + jnp.abs(h)
    eps = jnp.finfo(values.dtype).eps
    apart = correction**2 * jnp.abs(gap) > eps * size * jnp.abs(mean)
    resolved = values > floor
    apart |= (resolved[:, None] != resolved) & (
        jnp.abs(difference - gap * series) > jnp.sqrt(eps) * size
    )
    found = jnp.where(apart, difference / jnp.where(apart, gap, 1.0), series)
    return found * (1.0 - jnp.eye(len(values), dtype=values.dtype))
