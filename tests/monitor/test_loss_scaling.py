"""Dynamic loss scaling: a step whose gradient overflows is taken back, and made once more with a smaller scale."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag
from ntkdiag.monitor import InMemory

# Calls whose gradient overflows: at step 0 and step 4, which are measured, as well as at step 3, which is not.
OVERFLOWS = {0, 1, 6, 7, 9}
EVERY, N_STEPS = 4, 14


def _f(params, x):
    return jnp.tanh(x @ params["w"])


def _problem():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(8, 3)), jnp.float32)
    y = jnp.asarray(rng.normal(size=(8, 2)), jnp.float32)
    return {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}, x, y


def _gradient(params, x, y, is_overflow):
    loss = lambda params: ((_f(params, x) - y) ** 2).sum(axis=-1).mean() / 2
    return jax.tree.map(lambda g: jnp.where(is_overflow, jnp.inf, g), jax.grad(loss)(params))


def _taken_back(tx):
    """As jmp and Flax's `DynamicScale` have it: parameters and state are selected leaf by leaf."""

    def step(params, state, x, y, is_overflow):
        gradient = _gradient(params, x, y, is_overflow)
        updates, after = tx.update(gradient, state, params)
        new = (optax.apply_updates(params, updates), after)
        is_finite = jnp.asarray([jnp.isfinite(g).all() for g in jax.tree.leaves(gradient)]).all()
        return jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), new, (params, state))

    return step


def test_one_row_for_each_step_and_no_finding():
    params, x, y = _problem()
    memory = InMemory()
    options = {"loss": "mse", "instruments": "norms", "every": EVERY, "writers": [memory]}
    tx = ntkdiag.watch(optax.adam(1e-2), _f, train=(x, y), **options)
    step = jax.jit(_taken_back(tx))
    state = tx.init(params)
    for t in range(N_STEPS):
        params, state = step(params, state, x, y, jnp.asarray(t in OVERFLOWS))
    jax.block_until_ready(params)
    jax.effects_barrier()
    assert len(memory.steps) == len(set(memory.steps)) >= 2
    assert all(row["status"] == 1 for row in memory.rows)
    assert np.isfinite([row["loss"] for row in memory.rows]).all()
    assert not memory.findings
