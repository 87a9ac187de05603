"""Gradient descent with momentum on an eigenmode, by powers of its small transition matrix."""

import jax
import jax.numpy as jnp

from ntkdiag.predict.response import determined, inverse
from ntkdiag.predict.threshold import MomentumKind
from ntkdiag.scalars import Number

_BITS = 31


def momentum_response(
    values: jax.Array,
    floor: jax.Array,
    rate: Number,
    ridge: Number,
    steps: jax.Array,
    momentum: Number,
    kind: MomentumKind,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """psi, chi and a of gradient descent with momentum on lambda, with a ridge; see `closed_form.assemble`.

    psi <- psi + d with d from the gradient rate (1 - mu psi), mu = lambda + ridge; chi likewise from the gradient
    rate (a - mu chi); a <- a - d from rate ridge a: all three pass through the same momentum. Each is linear in its
    state, whose t-th power is taken by repeated squaring, which needs no case for zero eigenvalues or double roots.
    Unresolved eigenvalues and t = infinity as in `descent_response`.
    Cost: 31 products of k matrices 5 x 5.

    Args:
        values: `[k]` eigenvalues lambda, not negative.
        floor: The noise floor.
        rate: eta / D.
        ridge: In units of the eigenvalues.
        steps: `[T]` integers, as floating point; may be infinite.
        momentum: beta.
        kind: "heavy-ball", "nesterov" or "ema"; see `stability_threshold`.

    Returns:
        psi and chi, `[T k]` in units of 1 / mu, and a, `[T]`.
    """
    endless = jnp.isinf(steps)
    mu = values + ridge
    toward = lambda curvature, source: _transition(curvature, source, rate, ridge, momentum, kind)
    speed = rate / (1.0 if kind == "ema" else 1.0 - momentum)
    longest = jnp.minimum(jnp.ceil(inverse(speed * floor)), 2.0**30)
    counts = lambda resolved: determined(steps, resolved, longest).astype(jnp.int32)
    plain = _power(jax.vmap(lambda m: toward(m, True))(mu), counts(mu > floor))  # [T k 5]
    pulled = _power(jax.vmap(lambda m: toward(m, False))(mu), counts(values > floor))
    # a is the same in every mode; taken from one that does not grow, as 0 x infinity would spoil it.
    every = determined(steps, jnp.ones(1, bool), longest).astype(jnp.int32)
    decay = _power(toward(jnp.zeros((), values.dtype), False)[None], every)[:, 0, 2]
    psi, chi = plain[..., 0], pulled[..., 0]
    fixed = jnp.where(mu > floor, 1.0 / jnp.where(mu > floor, mu, 1.0), 0.0)
    fixed = jnp.where(
        _stable(jax.vmap(lambda m: toward(m, True))(mu)) | (mu <= floor), fixed, jnp.nan
    )
    kept = ridge == 0.0  # without a ridge the initial parameters stay, and chi is psi
    alive = jnp.where(
        _stable(toward(jnp.asarray(ridge, values.dtype), True)[None])[0], 0.0, jnp.nan
    )
    psi = jnp.where(endless[:, None], fixed, psi)
    chi = jnp.where(endless[:, None], jnp.where(kept, fixed, alive + 0.0 * fixed), chi)
    return psi, chi, jnp.where(endless, jnp.where(kept, 1.0, alive), decay)


def _transition(
    mu: jax.Array, constant: bool, rate: Number, ridge: Number, momentum: Number, kind: MomentumKind
) -> jax.Array:
    """One step on (psi, its velocity, a, its velocity, 1), as a matrix minus I; the source of psi is 1 or a.

    Without the identity, what a step changes keeps its precision, however small it is beside 1.
    """
    unit = jnp.eye(5, dtype=mu.dtype)
    response = unit[4 if constant else 2] - mu * unit[0]
    shrink = -ridge * unit[2]
    rows = []
    for velocity, gradient in ((1, response), (3, shrink)):
        fresh = (1.0 - momentum) * gradient if kind == "ema" else gradient
        moving = fresh + momentum * unit[velocity]
        move = gradient + momentum * moving if kind == "nesterov" else moving
        rows += [rate * move, moving - unit[velocity]]
    return jnp.stack([*rows, jnp.zeros_like(unit[4])])


def _power(changes: jax.Array, steps: jax.Array) -> jax.Array:
    """The state after `steps` [T k] steps from (0, 0, 1, 0, 1).

    With a step I + d, two of them are I + (2 d + d^2).
    """
    start = jnp.array([0.0, 0.0, 1.0, 0.0, 1.0], changes.dtype)
    states = jnp.broadcast_to(start, (*steps.shape, 5))

    def body(bit: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, change = carry
        moved = states + jnp.einsum("kij,Tkj->Tki", change, states, precision="highest")
        taken = (steps >> bit) & 1
        twice = 2.0 * change + jnp.matmul(change, change, precision="highest")
        return jnp.where(taken[..., None] == 1, moved, states), twice

    return jax.lax.fori_loop(0, _BITS, body, (states, changes))[0]


def _stable(changes: jax.Array) -> jax.Array:
    """Both roots of the mode inside the unit circle: Jury's conditions on the upper left 2 x 2 block I + d.

    |det| < 1 and |tr| < 1 + det, where tr (I + d) = 2 + tr d and det (I + d) = 1 + tr d + det d.
    """
    trace = changes[:, 0, 0] + changes[:, 1, 1]
    determinant = changes[:, 0, 0] * changes[:, 1, 1] - changes[:, 0, 1] * changes[:, 1, 0]
    inside = (trace + determinant < 0.0) & (trace + determinant > -2.0)
    return inside & (determinant > 0.0) & (4.0 + 2.0 * trace + determinant > 0.0)
