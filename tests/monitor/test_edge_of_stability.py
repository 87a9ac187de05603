"""A run at the edge of stability: what `watch` reads beside power iteration on the real Hessian.

Full-batch training sharpens until the largest eigenvalue of P^-1/2 H P^-1/2 is where its optimizer
becomes unstable, and stays there. P is here written down by hand for momentum; `watch` is told nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import ntkdiag

EVERY = 50
N_MEASURED, N_BEFORE = 50, 20  # measurements, and those until the run is at the edge
RATE, MOMENTUM = 0.2, 0.9


def mlp(params, x):
    (first, a), (second, b), (last, c) = params
    return jnp.tanh(jnp.tanh(x @ first + a) @ second + b) @ last + c


def problem(n=256, n_factors=3):
    """Examples whose label is the sign of a product of inputs."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(n, 8)), jnp.float32)
    params = []
    for n_in, n_out in ((8, 64), (64, 64), (64, 1)):
        weights = rng.normal(size=(n_in, n_out)) / n_in**0.5
        params.append((jnp.asarray(weights, jnp.float32), jnp.zeros(n_out)))
    return params, x, jnp.sign(x[:, :n_factors].prod(axis=1, keepdims=True))


def sharpness(loss_at, params):
    """The largest eigenvalue of the Hessian, by power iteration."""
    flat, unravel = ravel_pytree(params)
    gradient_at = jax.grad(lambda vector: loss_at(unravel(vector)))

    def product(v):
        return jax.jvp(gradient_at, (flat,), (v,))[1]

    # Shifted, so that the largest eigenvalue is the one of largest magnitude.
    def iterate(_, v):
        longer = product(v) + 5.0 * v
        return longer / jnp.linalg.norm(longer)

    start = jax.random.normal(jax.random.key(3), flat.shape)
    v = jax.lax.fori_loop(0, 400, iterate, start / jnp.linalg.norm(start))
    return v @ product(v)


@pytest.mark.slow
def test_the_margin_of_momentum_is_the_sharpness_over_its_limit():
    params, x, y = problem()
    tx = ntkdiag.watch(
        optax.sgd(RATE, momentum=MOMENTUM),
        mlp,
        train=(x, y),
        loss="mse",
        every=EVERY,
        instruments="margin",
    )

    def loss_at(params):
        return 0.5 * ((mlp(params, x) - y) ** 2).mean()

    def step(carry, _):
        params, state = carry
        update, state = tx.update(jax.grad(loss_at)(params), state, params)
        return (optax.apply_updates(params, update), state), None

    @jax.jit
    def stretch(params, state):
        """Up to the next measurement, which is of the parameters that it ends with."""
        params, state = jax.lax.scan(step, (params, state), length=EVERY)[0]
        # theta' = theta - eta m, m = g + beta m: stable up to eta lambda = 2 (1 + beta).
        return params, state, RATE / (2 * (1 + MOMENTUM)) * sharpness(loss_at, params)

    state, read = tx.init(params), []
    for _ in range(N_MEASURED):
        params, state, independent = stretch(params, state)
        read.append([ntkdiag.record(state)["margin"], float(independent)])
    margin, independent = np.mean(read[N_BEFORE:], axis=0)
    assert 0.88 <= margin <= 1.03
    np.testing.assert_allclose(margin, independent, rtol=1.5e-2)
