"""Runs at the edge of stability: what `watch` reads beside power iteration on the real Hessian.

Full-batch training sharpens until the largest eigenvalue of P^-1/2 H P^-1/2 is where its optimizer
becomes unstable, and stays there. P is here written down by hand for each optimizer, from its
published update; `watch` is told nothing.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import ntkdiag

EVERY = 50
N_MEASURED = 50
# Measurements until the run is at the edge.
N_BEFORE = 20
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 200, 100 * EVERY)


@dataclasses.dataclass(frozen=True)
class Run:
    """A training on n examples whose label is the sign of a product of inputs.

    Attributes:
        response: P^-1 over the limit of stability, of the optimizer's state and the step.
    """

    optimizer: optax.GradientTransformation
    response: Callable
    n: int = 64
    n_factors: int = 2
    decay: Callable = lambda step: 0.0


def of_momentum(state, step):
    """theta' = theta - eta m, m = g + beta m: stable up to eta lambda = 2 (1 + beta)."""
    del step
    trace = optax.tree_utils.tree_get(state, "trace")
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.2 / (2 * (1 + 0.9))), trace)


def of_adam(learning_rate, b1=0.9, b2=0.99, eps=1e-8):
    """P = sqrt(v / (1 - b2^t)) + eps, stable up to 2 (1 + b1) / ((1 - b1) eta)."""

    def response(state, step):
        nu = optax.tree_utils.tree_get(state, "nu")
        rate = learning_rate(step) / (1 - b1 ** (step + 1))
        edge = 2 * (1 + b1) / (1 - b1)
        return jax.tree.map(
            lambda v: rate / edge / (jnp.sqrt(v / (1 - b2 ** (step + 1))) + eps), nu
        )

    return response


RUNS = {
    # On fewer examples momentum has learned them all before it is at its edge.
    "momentum": Run(optax.sgd(0.2, momentum=0.9), of_momentum, n=256, n_factors=3),
    "adam": Run(optax.adam(3e-3, b2=0.99), of_adam(lambda step: 3e-3)),
    "adamw-schedule-clip": Run(
        optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE, b2=0.99, weight_decay=1e-3)
        ),
        of_adam(SCHEDULE),
        decay=lambda step: 1e-3 * SCHEDULE(step),
    ),
}


def mlp(params, x):
    (first, a), (second, b), (last, c) = params
    return jnp.tanh(jnp.tanh(x @ first + a) @ second + b) @ last + c


def problem(n, n_factors):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(n, 8)), jnp.float32)
    params = []
    for n_in, n_out in ((8, 64), (64, 64), (64, 1)):
        weights = rng.normal(size=(n_in, n_out)) / n_in**0.5
        params.append((jnp.asarray(weights, jnp.float32), jnp.zeros(n_out)))
    return params, x, jnp.sign(x[:, :n_factors].prod(axis=1, keepdims=True))


def preconditioned_sharpness(loss_at, params, response):
    """The largest eigenvalue of P^-1/2 H P^-1/2, by power iteration."""
    flat, unravel = ravel_pytree(params)
    root = jnp.sqrt(ravel_pytree(response)[0])
    gradient_at = jax.grad(lambda vector: loss_at(unravel(vector)))

    def product(v):
        return root * jax.jvp(gradient_at, (flat,), (root * v,))[1]

    # Shifted, so that the largest eigenvalue is the one of largest magnitude.
    def iterate(_, v):
        longer = product(v) + 0.3 * v
        return longer / jnp.linalg.norm(longer)

    start = jax.random.normal(jax.random.key(3), flat.shape)
    v = jax.lax.fori_loop(0, 400, iterate, start / jnp.linalg.norm(start))
    return v @ product(v)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_the_margin_is_the_preconditioned_sharpness(run):
    params, x, y = problem(run.n, run.n_factors)
    tx = ntkdiag.watch(
        run.optimizer, mlp, train=(x, y), loss="mse", every=EVERY, instruments="spectral"
    )

    def loss_at(params):
        return 0.5 * ((mlp(params, x) - y) ** 2).mean()

    def step(carry, _):
        params, state = carry
        update, state = tx.update(jax.grad(loss_at)(params), state, params)
        return (optax.apply_updates(params, update), state), None

    @jax.jit
    def stretch(params, state):
        """Up to the next measurement, and this one."""
        before = params
        (params, state), _ = step((params, state), None)
        now = state.ntk_step
        # The second moments of the update itself.
        response = run.response(state.ntk_inner, now)
        sharpness = preconditioned_sharpness(loss_at, before, response)
        independent = sharpness + run.decay(now) / 2
        margin = state.ntk_numbers["ntk_margin"]
        carry = jax.lax.scan(step, (params, state), length=EVERY - 1)[0]
        return carry, jnp.stack([margin, independent])

    carry, read = (params, tx.init(params)), []
    for _ in range(N_MEASURED):
        carry, pair = stretch(*carry)
        read.append(np.asarray(pair))
    at_the_edge = np.asarray(read[N_BEFORE:])
    margin, independent = at_the_edge.mean(axis=0)
    assert 0.88 <= margin <= 1.03
    np.testing.assert_allclose(margin, independent, rtol=1.5e-2)
