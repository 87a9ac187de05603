"""`watch` round optimizers and inside of them, in every kind of loop: the same parameters to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from monitor_problem import f, loss, problem

import ntkdiag
from ntkdiag.monitor import watch

STEPS = 7
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, STEPS)


def clipped_adamw():
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(SCHEDULE))


def problem_in_float32():
    params, x, y = problem()
    return jax.tree.map(jnp.float32, params), jnp.float32(x), y


def watched(optimizer, every=3):
    _, x, y = problem_in_float32()
    return watch(optimizer, f, train=(x, y), loss="mse", instruments="norms", every=every)


def trained(tx, params):
    """The parameters after every step, in donated buffers, and the last state."""
    _, x, y = problem_in_float32()

    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        tx_with_value = optax.with_extra_args_support(tx)
        updates, state = tx_with_value.update(gradient, state, params, value=value)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step, donate_argnums=(0, 1))
    trajectory, params, state = [], jax.tree.map(jnp.array, params), tx.init(params)
    for _ in range(STEPS):
        params, state = step(params, state)
        trajectory.append(jax.tree.map(np.asarray, params))
    return trajectory, state


def assert_same_bits(tree, other):
    jax.tree.map(np.testing.assert_array_equal, tree, other)


@pytest.mark.smoke
def test_the_same_bits():
    params, _, _ = problem_in_float32()
    plain, plain_state = trained(clipped_adamw(), params)
    trajectory, state = trained(watched(clipped_adamw()), params)
    assert_same_bits(plain, trajectory)
    assert_same_bits(plain_state, state.ntk_inner)
    assert int(state.ntk_count) == STEPS
    numbers = ntkdiag.record(state)
    assert numbers["step"] == 6
    assert np.isfinite(numbers["layer_update"]).all()


def test_extra_arguments_reach_the_optimizer_and_numbers_do_not_compile_anew():
    params, x, y = problem_in_float32()
    got = []

    def update(updates, state, params=None, *, factor, **extra_args):
        got.append(factor)
        return jax.tree.map(lambda leaf: -factor * leaf, updates), state

    scaled = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = watched(scaled, every=1)
    state = tx.init(params)
    gradient = jax.grad(loss)(params, x, y)
    for factor in (0.5, 0.25, 0.125):
        updates, state = tx.update(gradient, state, params, factor=factor, unused="a word")
        assert_same_bits(updates, jax.tree.map(lambda leaf, k=factor: -k * leaf, gradient))
        expected = [np.linalg.norm(leaf) for leaf in jax.tree.leaves(updates)]
        np.testing.assert_allclose(ntkdiag.record(state)["layer_update"], expected, rtol=1e-5)
    # The trial step is traced in the first step alone.
    assert [got[0], *got[-2:]] == [0.5, 0.25, 0.125]
