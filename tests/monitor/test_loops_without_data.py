"""Loops of public repositories with one changed line, `tx = ntkdiag.watch(tx)`: the same bits, and numbers to read.

Each loop trains a network of its library for a few steps as its examples do, and returns the parameters and the state
of the optimizer: once with the optimizer as it is, once watched.
"""

import functools
import os
import pathlib
import subprocess
import sys

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import dynamic_scale
from flax.training.train_state import TrainState
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


def optax_loop(tx, **extra_args_of):
    """The loop of the Optax documentation, in donated buffers."""

    def step(params, opt_state, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        extra_args = {"value": value} if extra_args_of.get("value") else {}
        updates, opt_state = tx.update(gradient, opt_state, params, **extra_args)
        return optax.apply_updates(params, updates), opt_state

    step = jax.jit(step, donate_argnums=(0, 1))
    params = start()
    opt_state = tx.init(params)
    for x, y in batches():
        params, opt_state = step(params, opt_state, x, y)
    return params, opt_state


def plain(watch):
    return optax_loop(watch(optax.adam(RATE)))


def not_compiled(watch):
    tx, params = watch(optax.adam(RATE)), start()
    opt_state = tx.init(params)
    for x, y in batches():
        updates, opt_state = tx.update(jax.grad(loss)(params, x, y), opt_state, params)
        params = optax.apply_updates(params, updates)
    return params, opt_state


def handed_loss(watch):
    return optax_loop(watch(optax.adam(RATE)), value=True)


def on_plateau(watch):
    tx = optax.chain(optax.adam(RATE), optax.contrib.reduce_on_plateau(patience=2))
    return optax_loop(watch(tx), value=True)


def clipped_schedule(watch):
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, RATE, 3), optax.constant_schedule(RATE)], [3]
    )
    return optax_loop(watch(optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(schedule))))


def injected(watch):
    tx = optax.inject_hyperparams(optax.adam)(
        optax.piecewise_constant_schedule(10 * RATE, {4: 0.1})
    )
    return optax_loop(watch(tx))


def groups(watch):
    group_of = {"a": "body", "b": "head"}
    transforms = {"body": optax.set_to_zero(), "head": optax.adam(RATE)}
    return optax_loop(watch(optax.multi_transform(transforms, group_of)))


def micro_batches(watch):
    return optax_loop(watch(optax.MultiSteps(optax.sgd(RATE, momentum=0.9), every_k_schedule=2)))


def schedule_free(watch):
    return optax_loop(watch(optax.contrib.schedule_free_adamw(RATE, warmup_steps=2)))


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


def steps_in_scan(watch):
    tx, params = watch(optax.adam(RATE)), start()
    x, y = (np.stack(arrays) for arrays in zip(*batches(), strict=True))

    @jax.jit
    def train(params, opt_state):
        def step(carry, batch):
            params, opt_state = carry
            updates, opt_state = tx.update(jax.grad(loss)(params, *batch), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        return jax.lax.scan(step, (params, opt_state), (x, y))[0]

    return train(params, tx.init(params))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.tanh(nn.Dense(8)(x)))


def linen_train_state(watch):
    model = Linen()
    variables = model.init(jax.random.key(0), next(batches())[0])
    state = TrainState.create(
        apply_fn=model.apply, params=variables["params"], tx=watch(optax.adam(RATE))
    )

    @jax.jit
    def step(state, x, y):
        def loss(params):
            return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    for x, y in batches():
        state = step(state, x, y)
    return state.params, state.opt_state


def half_precision(watch):
    """Flax's dynamic scaling of the loss, whose first steps overflow and are taken back."""
    tx, params = watch(optax.adam(RATE)), start()
    opt_state = tx.init(params)
    scale = dynamic_scale.DynamicScale(scale=2.0**24)

    @jax.jit
    def step(params, opt_state, scale, x, y):
        half = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float16), tree)
        of_loss = scale.value_and_grad(lambda params: loss(half(params), *half((x, y))))
        scale, is_finite, _, gradient = of_loss(params)
        updates, new_state = tx.update(gradient, opt_state, params)
        new_params = optax.apply_updates(params, updates)
        keep = lambda new, old: jnp.where(is_finite, new, old)
        params = jax.tree.map(keep, new_params, params)
        return params, jax.tree.map(keep, new_state, opt_state), scale

    for _ in range(2):
        for x, y in batches():
            params, opt_state, scale = step(params, opt_state, scale, x, y)
    return params, opt_state


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


def nnx_optimizer(watch):
    model = Nnx(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, watch(optax.adam(RATE)), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        gradient = nnx.grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradient)

    for x, y in batches():
        step(model, optimizer, x, y)
    as_arrays = lambda tree: jax.tree.map(jnp.asarray, nnx.to_pure_dict(nnx.state(tree)))
    return as_arrays(model), optimizer


def equinox_module(watch):
    model = eqx.nn.MLP(6, 2, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    tx = watch(optax.adam(RATE))
    opt_state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, opt_state, x, y):
        gradient = eqx.filter_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(model)
        updates, opt_state = tx.update(gradient, opt_state, model)
        return eqx.apply_updates(model, updates), opt_state

    for x, y in batches():
        model, opt_state = step(model, opt_state, x, y)
    return eqx.filter(model, eqx.is_array), opt_state


def two_networks(watch):
    """Adversaries with an optimizer each, one of which is watched."""
    generator, critic = start(), start()["b"]
    tx, of_critic = watch(optax.adam(RATE, b1=0.5)), optax.adam(RATE, b1=0.5)
    states = tx.init(generator), of_critic.init(critic)

    def game(generator, critic, x):
        return jnp.mean(jnp.tanh(outputs(generator, x) @ critic.T))

    @jax.jit
    def step(generator, critic, states, x):
        of_generator, against = jax.grad(game, (0, 1))(generator, critic, x)
        updates, state = tx.update(of_generator, states[0], generator)
        generator = optax.apply_updates(generator, updates)
        updates, of_critic_state = of_critic.update(-against, states[1], critic)
        return generator, optax.apply_updates(critic, updates), (state, of_critic_state)

    for x, _ in batches():
        generator, critic, states = step(generator, critic, states, x)
    return (generator, critic), states[0]


def sharded(watch):
    """Parameters in parts over all devices."""
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    in_parts = NamedSharding(mesh, PartitionSpec(None, "data"))
    tx = watch(optax.adam(RATE))
    params = start() | {"a": jax.device_put(start()["a"], in_parts)}
    opt_state = jax.jit(tx.init)(params)

    @jax.jit
    def step(params, opt_state, x, y):
        updates, opt_state = tx.update(jax.grad(loss)(params, x, y), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for x, y in batches():
        params, opt_state = step(params, opt_state, x, y)
    return params, opt_state


# Loop -> the learning rate in its last step; NaN where no rate is known.
RATES = {
    plain: RATE,
    two_arguments: RATE,
    equinox_module: RATE,
    clipped_schedule: RATE,
    groups: RATE,
    half_precision: RATE,
    handed_loss: RATE,
    injected: RATE,
    line_search: np.nan,
    linen_train_state: RATE,
    micro_batches: RATE,
    nnx_optimizer: RATE,
    not_compiled: RATE,
    on_plateau: np.nan,
    schedule_free: np.nan,
    steps_in_scan: RATE,
    two_networks: RATE,
}
FAST = (two_arguments,)


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
    has_loss = loop in (handed_loss, on_plateau, line_search)
    assert np.isfinite(numbers["batch_loss"]) == has_loss
    n_due = {micro_batches: N_STEPS // 2, half_precision: 2 * N_STEPS}.get(loop, N_STEPS)
    if loop is not half_precision:
        assert numbers["step"] == n_due - 1


@pytest.mark.parametrize(
    "loop",
    [pytest.param(loop, marks=() if loop in FAST else pytest.mark.slow) for loop in RATES],
    ids=lambda loop: loop.__name__,
)
def test_one_changed_line(loop):
    check(loop, RATES[loop])


@pytest.mark.slow
def test_one_changed_line_on_eight_devices():
    here = pathlib.Path(__file__)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    script = f"import {here.stem} as loops; loops.check(loops.sharded, loops.RATE); print('held')"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=here.parents[2],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(here.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout == "held\n", run.stderr
