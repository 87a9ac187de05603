"""Loops of public repositories with one changed line, `tx = ntkdiag.watch(tx)`: the same bits, and numbers to read.

Each loop trains a network of its library for a few steps as its examples do, and returns the parameters and the state
of the optimizer: once with the optimizer as it is, once watched.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from devices import on_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ntkdiag

N_STEPS = 8
RATE = 1e-2


def batches():
    rng = np.random.default_rng(0)
    for _ in range(N_STEPS):
        x = rng.normal(size=(16, 6)).astype(np.float32)
        yield x, np.sin(x[:, :2])


def start():
    rng = np.random.default_rng(1)
    weights = {"a": rng.normal(size=(6, 8)) / 2, "b": rng.normal(size=(8, 2)) / 2}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), weights)


def outputs(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def loss(params, x, y):
    return jnp.mean((outputs(params, x) - y) ** 2)


def optax_loop(tx, params=None):
    """The loop of the Optax documentation, in donated buffers."""

    def step(params, opt_state, x, y):
        gradient = jax.grad(loss)(params, x, y)
        updates, opt_state = tx.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    step = jax.jit(step, donate_argnums=(0, 1))
    params = start() if params is None else params
    opt_state = tx.init(params)
    for x, y in batches():
        params, opt_state = step(params, opt_state, x, y)
    return params, opt_state


def micro_batches(watch):
    return optax_loop(watch(optax.MultiSteps(optax.sgd(RATE, momentum=0.9), every_k_schedule=2)))


def line_search(watch):
    tx, params = watch(optax.lbfgs()), start()
    opt_state = tx.init(params)
    x, y = next(batches())
    f = lambda params: loss(params, x, y)

    @jax.jit
    def step(params, opt_state):
        value, gradient = jax.value_and_grad(f)(params)
        arguments = {"value": value, "grad": gradient, "value_fn": f}
        updates, opt_state = tx.update(gradient, opt_state, params, **arguments)
        return optax.apply_updates(params, updates), opt_state

    for _ in range(N_STEPS):
        params, opt_state = step(params, opt_state)
    return params, opt_state


def two_arguments(watch):
    """As brax has it: the update is made without the parameters."""
    tx, params = watch(optax.adam(RATE)), start()
    opt_state = tx.init(params)

    @jax.jit
    def step(params, opt_state, x, y):
        updates, opt_state = tx.update(jax.grad(loss)(params, x, y), opt_state)
        return optax.apply_updates(params, updates), opt_state

    for x, y in batches():
        params, opt_state = step(params, opt_state, x, y)
    return params, opt_state


def sharded(watch):
    """Parameters in parts over all devices."""
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    in_parts = NamedSharding(mesh, PartitionSpec(None, "data"))
    return optax_loop(
        watch(optax.adam(RATE)), start() | {"a": jax.device_put(start()["a"], in_parts)}
    )


# Loop -> the learning rate in its last step; NaN where no rate is known.
RATES = {
    two_arguments: RATE,
    line_search: np.nan,
    micro_batches: RATE,
}


def check(loop, rate):
    expected, _ = loop(lambda tx: tx)
    params, opt_state = loop(lambda tx: ntkdiag.watch(tx, every=1))
    # XLA divides a program among devices as a whole, and sums in another order with more in it.
    rounding = {"rtol": 1e-5, "atol": 1e-7} if loop is sharded else {"rtol": 0, "atol": 0}
    jax.tree.map(functools.partial(np.testing.assert_allclose, **rounding), params, expected)
    numbers = ntkdiag.record(opt_state)
    assert numbers["status"] == 1, numbers
    assert numbers["gradient_norm"] > 0.0
    assert numbers["update_norm"] > 0.0
    np.testing.assert_allclose(numbers["learning_rate"], rate, rtol=1e-5)
    is_known = loop is not two_arguments
    assert np.isfinite(numbers["parameter_norm"]) == is_known
    assert np.isfinite(numbers["update_ratio"]) == is_known
    assert np.isfinite(numbers["batch_loss"]) == (loop is line_search)
    n_due = N_STEPS // 2 if loop is micro_batches else N_STEPS
    assert numbers["step"] == n_due


@pytest.mark.slow
@pytest.mark.parametrize("loop", RATES, ids=lambda loop: loop.__name__)
def test_one_changed_line(loop):
    check(loop, RATES[loop])


@pytest.mark.slow
def test_one_changed_line_on_eight_devices():
    on_devices(8, __file__, "check(t.sharded, t.RATE)")


def test_maps_over_what_is_like_parameters():
    """`optax.tree_map_params` reaches the moments inside, and nothing of `watch`."""
    tx = ntkdiag.watch(optax.adam(RATE))
    state = tx.init(start())
    marked = optax.tree_map_params(tx, lambda leaf: leaf + 1, state)
    plain = optax.tree_map_params(optax.adam(RATE), lambda leaf: leaf + 1, state.ntk_inner)
    jax.tree.map(np.testing.assert_array_equal, marked, state._replace(ntk_inner=plain))
