"""Functions of the kernel as a matrix, whose derivatives are right where eigenvalues coincide, too.

h(Theta) = U diag(h(lambda)) U^T. Differentiating U by JAX divides by gaps lambda_i - lambda_j,
which is wrong where they vanish. The derivative of the product needs divided differences of h only
(Daleckii and Krein; Higham, Functions of Matrices, theorem 3.11),

    dh(Theta) = U (H * (U^T dTheta U)) U^T,  H_ij = (h_i - h_j) / (lambda_i - lambda_j),

which are smooth: where the quotient would cancel, they come from h' and h'' (Euler and Maclaurin).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

# (law, values, floor) -> several functions h at every eigenvalue
Profile: TypeAlias = Callable[[PyTree, Float[Array, " k"], Float[Array, ""]], Float[Array, "h k"]]


class Eigenmodes(NamedTuple):
    """Eigenmodes of the training kernel."""

    values: Float[Array, " k"]  # `[k]` eigenvalues, descending and not negative
    vectors: Float[Array, "k k"]  # `[k k]`, one column per mode
    floor: Float[Array, ""]  # the noise floor


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def apply(
    profile: Profile,
    kernel: Float[Array, "k k"],
    modes: Eigenmodes,
    law: PyTree,
    b: Float[Array, "k c"],
) -> Float[Array, "h k c"]:
    """h(Theta) b = U diag(h(lambda)) U^T b for the several functions h of a profile."""
    # The kernel is there for its derivative. Second derivatives are NaN where eigenvalues coincide.
    h = profile(law, modes.values, modes.floor)  # [h k]
    inner = modes.vectors.T @ b  # [k c], in the eigenbasis
    return _rotate(modes.vectors, h[:, :, None] * inner)


@apply.defjvp
def _apply_jvp(
    profile: Profile, primals: tuple, tangents: tuple
) -> tuple[Float[Array, "h k c"], Float[Array, "h k c"]]:
    """h(Theta) b and its derivative: by b, by the law and eigenvalues, and by turning Theta."""
    _, modes, law, b = primals
    kernel_dot, modes_dot, law_dot, b_dot = tangents
    values, vectors, floor = modes
    # In the eigenbasis: b, db and dTheta.
    inner = vectors.T @ b
    inner_dot = vectors.T @ b_dot
    turning = vectors.T @ kernel_dot @ vectors  # [k k]

    def at(law: PyTree, values: Float[Array, " k"]) -> Float[Array, "h k"]:
        return profile(law, values, floor)

    def slope(values: Float[Array, " k"]) -> Float[Array, "h k"]:
        """h', for all eigenvalues at once: each h depends on its own alone."""
        return jax.jvp(lambda v: at(law, v), (values,), (jnp.ones_like(values),))[1]

    def bend(values: Float[Array, " k"]) -> Float[Array, "h k"]:
        """h''."""
        return jax.jvp(slope, (values,), (jnp.ones_like(values),))[1]

    # By the law and by the eigenvalues: the diagonal of the divided differences, too.
    h, h_dot = jax.jvp(at, (law, values), (law_dot, modes_dot.values))

    @jax.checkpoint  # a [k k] for each h would be kept
    def turned(h_and_derivatives: tuple[Array, Array, Array]) -> Float[Array, "k c"]:
        """(H * (U^T dTheta U)) U^T b for one of the functions h."""
        divided = _divided_differences(values, floor, *h_and_derivatives)
        return (divided * turning) @ inner

    change = h[:, :, None] * inner_dot + h_dot[:, :, None] * inner
    change += lax.map(turned, (h, slope(values), bend(values)))
    return _rotate(vectors, h[:, :, None] * inner), _rotate(vectors, change)


def _rotate(
    vectors: Float[Array, "k k"], coefficients: Float[Array, "h k c"]
) -> Float[Array, "h k c"]:
    """U times every matrix of coefficients."""
    return jnp.einsum("kj,hjc->hkc", vectors, coefficients)


def _divided_differences(
    values: Float[Array, " k"],
    floor: Float[Array, ""],
    h: Float[Array, " k"],
    slope: Float[Array, " k"],
    bend: Float[Array, " k"],
) -> Float[Array, "k k"]:
    """(h_i - h_j) / (lambda_i - lambda_j) off the diagonal, 0 on it."""
    # Or its series up to the fourth power of the gap, (h'_i + h'_j) / 2 - gap (h''_i - h''_j) / 12,
    # where the rest, about the square of the last term, is less than the quotient's cancellation.
    eps = jnp.finfo(values.dtype).eps
    # All [k k], of mode i and mode j.
    gap = values[:, None] - values
    difference = h[:, None] - h
    size = jnp.abs(h)[:, None] + jnp.abs(h)
    mean_slope = 0.5 * (slope[:, None] + slope)
    correction = gap * (bend[:, None] - bend) / 12
    series = mean_slope - correction
    takes_quotient = correction**2 * jnp.abs(gap) > eps * size * jnp.abs(mean_slope)
    # Between a resolved mode and one that is not, h may jump.
    is_resolved = values > floor
    is_across = is_resolved[:, None] != is_resolved
    jumps = jnp.abs(difference - gap * series) > jnp.sqrt(eps) * size
    takes_quotient |= is_across & jumps
    # Where the series is taken the gap may be 0: its quotient, which nobody reads, is by 1.
    quotient = difference / jnp.where(takes_quotient, gap, 1.0)
    divided = jnp.where(takes_quotient, quotient, series)
    return divided * (1.0 - jnp.eye(len(values), dtype=values.dtype))
