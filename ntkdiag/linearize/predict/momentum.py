"""Gradient descent with momentum on an eigenmode, by powers of its small transition matrix."""

from typing import Literal

import jax
import jax.numpy as jnp

from ntkdiag.kernels.operands.number import Number

MomentumKind = Literal["heavy-ball", "nesterov", "ema"]
_BITS = 31


def momentum_response(
    values: jax.Array, floor: jax.Array, rate: Number, steps: jax.Array, momentum: Number, kind: MomentumKind
) -> jax.Array:
    """psi(mu, t) of the recursion psi <- psi + d with d from the gradient rate (1 - mu psi).

    The recursion is linear in (psi, velocity, 1); its t-th power is taken by repeated squaring, which needs no case
    for zero eigenvalues or double roots. Unresolved eigenvalues and t = infinity as in `descent_response`.
    Cost: 31 products of k matrices 3 x 3.

    Args:
        values: `[k]` eigenvalues mu, not negative.
        floor: The noise floor.
        rate: eta / D.
        steps: `[T]` integers, as floating point; may be infinite.
        momentum: beta.
        kind: "heavy-ball", "nesterov" or "ema"; see `stability_threshold`.

    Returns:
        `[T k]`, in units of 1 / mu.
    """
    resolved = values > floor
    curvature = jnp.where(resolved, values, 0.0)
    matrices = jax.vmap(lambda mu: _transition(mu, rate, momentum, kind))(curvature)  # [k 3 3]
    finite = jnp.where(jnp.isinf(steps), 0.0, steps).astype(jnp.int32)
    psi = _power(matrices, finite)  # [T k]
    fixed = jnp.where(_stable(matrices), 1.0 / jnp.where(resolved, values, 1.0), jnp.nan)
    endless = jnp.isinf(steps)[:, None]
    unresolved = jnp.where(psi * floor < 1.0, psi, 0.0)
    return jnp.where(resolved, jnp.where(endless, fixed, psi), jnp.where(endless, 0.0, unresolved))


def _transition(mu: jax.Array, rate: Number, momentum: Number, kind: MomentumKind) -> jax.Array:
    """One step on (psi, velocity, 1), as a matrix."""
    zero, one = jnp.zeros_like(mu), jnp.ones_like(mu)
    gradient = jnp.stack([-mu, zero, one])  # of psi: 1 - mu psi
    fresh = (1.0 - momentum) * gradient if kind == "ema" else gradient
    velocity = fresh + momentum * jnp.stack([zero, one, zero])
    move = gradient + momentum * velocity if kind == "nesterov" else velocity
    return jnp.stack([jnp.stack([one, zero, zero]) + rate * move, velocity, jnp.stack([zero, zero, one])])


def _power(matrices: jax.Array, steps: jax.Array) -> jax.Array:
    """Psi after `steps` steps from (0, 0, 1), for every mode and every number of steps."""
    states = jnp.broadcast_to(jnp.array([0.0, 0.0, 1.0], matrices.dtype), (*steps.shape, *matrices.shape[:2]))

    def body(bit: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states, power = carry
        moved = jnp.einsum("kij,Tkj->Tki", power, states)
        taken = (steps >> bit) & 1
        return jnp.where(taken[:, None, None] == 1, moved, states), power @ power

    return jax.lax.fori_loop(0, _BITS, body, (states, matrices))[0][..., 0]


def _stable(matrices: jax.Array) -> jax.Array:
    """Both roots of the mode inside the unit circle (Jury's conditions on the upper left 2 x 2 block)."""
    trace = matrices[:, 0, 0] + matrices[:, 1, 1]
    determinant = matrices[:, 0, 0] * matrices[:, 1, 1] - matrices[:, 0, 1] * matrices[:, 1, 0]
    return (jnp.abs(determinant) < 1.0) & (jnp.abs(trace) < 1.0 + determinant)
