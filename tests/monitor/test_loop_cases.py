"""Loops in which a measurement went wrong once, each with its relatives.

Copies of donated buffers are in `test_compiled_step.py`, losses with masks in `test_losses_of_people.py`.
"""

import statistics
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from networks_in_training import adam_in, adam_response, dense_margin_of

import ntkdiag
from ntkdiag.monitor import InMemory, TopCurvatures

get = optax.tree_utils.tree_get
N, D, C = 32, 5, 3


def tanh_layer(params, x):
    return jnp.tanh(x @ params["w"])


def examples():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, D)).astype(np.float32), rng.integers(0, C, N)
    return x, y, {"w": jnp.asarray(rng.normal(size=(D, C)), jnp.float32)}


# Wrappers that are the identity: the margin is that without them.

IDENTITIES = {
    "apply_every(1)": lambda: optax.chain(optax.adam(0.01), optax.apply_every(1)),
    "apply_every(1) before": lambda: optax.chain(optax.apply_every(1), optax.adam(0.01)),
    "identity": lambda: optax.chain(optax.adam(0.01), optax.identity()),
    "MultiSteps(1)": lambda: optax.MultiSteps(optax.adam(0.01), every_k_schedule=1),
}


def margin_after(optimizer, n_steps=4):
    x, y, params = examples()
    options = {
        "loss": "cross_entropy",
        "every": 1,
        "instruments": TopCurvatures(rounds=8),
        "time_share": None,
    }
    tx = ntkdiag.watch(optimizer, tanh_layer, train=(x, y), **options)
    loss = lambda params: optax.softmax_cross_entropy_with_integer_labels(
        tanh_layer(params, x), y
    ).mean()
    state = tx.init(params)
    update = jax.jit(tx.update)
    for _ in range(n_steps):
        updates, state = update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    return float(get(state, "ntk_margin"))


@pytest.mark.slow
@pytest.mark.parametrize("name", IDENTITIES)
def test_the_identity_changes_no_margin(name):
    np.testing.assert_allclose(
        margin_after(IDENTITIES[name]()), margin_after(optax.adam(0.01)), rtol=1e-3
    )


# The first readings.


def deep(act):
    def f(params, x):
        return act(act(x @ params["a"]) @ params["b"]) @ params["c"]

    return f


EARLY = {
    "tanh": (jnp.tanh, 2e-3, 10),
    "relu": (jax.nn.relu, 2e-3, 10),
    "swish": (jax.nn.swish, 5e-3, 7),
    "large steps": (jnp.tanh, 2e-2, 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EARLY)
def test_the_first_readings_are_those_of_the_largest_eigenvalue(name):
    """Each of the first nine, or its interval says what is left."""
    act, rate, every = EARLY[name]
    f, rng = deep(act), np.random.default_rng(0)
    x = rng.random((256, 64)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(64, 10)), axis=1)
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"a": (64, 48), "b": (48, 48), "c": (48, 10)}
    params = {k: jax.random.normal(key, shapes[k]) / 8 for k, key in zip(shapes, keys, strict=True)}
    probe, labels = x[:32], y[:32]
    options = {"loss": "cross_entropy", "every": every, "instruments": "margin", "time_share": None}
    tx = ntkdiag.watch(optax.adam(rate), f, train=(probe, labels), **options)
    loss = lambda p, x, y: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()
    of_probe = lambda logits: optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(params, state, x, y):
        updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    dense = dense_margin_of(f, of_probe)
    state, ratios = tx.init(params), []
    for t in range(8 * every + 1):
        batch, before = rng.integers(0, 256, 32), params
        params, state = step(params, state, x[batch], y[batch])
        if t % every == 0:
            response = adam_response(adam_in(state.ntk_inner), rate)
            ratios.append(float(get(state, "ntk_margin")) / dense(before, probe, response))
    assert len(ratios) == 9
    assert min(ratios) > 0.92, ratios
    assert max(ratios) < 1.01, ratios
    assert sum(ratio > 0.97 for ratio in ratios) >= 8, ratios


# Writers, at steps that are not measured.


@pytest.mark.slow
@pytest.mark.parametrize("instruments", ["step_error", ("layer_norms", "margin")])
def test_a_writer_costs_little_at_steps_that_are_not_measured(instruments):
    """CPU time of such steps with a writer over that without `watch`: the best of three rounds."""
    rng = np.random.default_rng(0)
    x, y = (
        jnp.asarray(rng.normal(size=(128, 64)), jnp.float32),
        jnp.asarray(rng.integers(0, 10, 128)),
    )
    shapes = {"a": (64, 128), "b": (128, 128), "c": (128, 10)}
    params = {k: jnp.asarray(rng.normal(size=s) / 8, jnp.float32) for k, s in shapes.items()}
    f = deep(jnp.tanh)
    options = {"loss": "cross_entropy", "every": 10**6, "time_share": None, "writers": InMemory()}
    base = optax.adam(1e-3)
    loops = []
    for tx in (
        base,
        ntkdiag.watch(base, f, train=(x[:32], y[:32]), instruments=instruments, **options),
    ):

        def step(params, state, tx=tx):
            loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()
            updates, state = tx.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        step = jax.jit(step)
        loops.append([step, *step(params, tx.init(params))])
    jax.block_until_ready([loop[1:] for loop in loops])

    def ratio():
        seconds = []
        for loop in loops:
            begun = time.process_time()
            for _ in range(20):
                loop[1:] = loop[0](*loop[1:])
            jax.block_until_ready(loop[1])
            seconds.append(time.process_time() - begun)
        return seconds[1] / seconds[0]

    # Others use the machine, too.
    assert min(statistics.median(ratio() for _ in range(10)) for _ in range(3)) < 1.3


# Biases that have no gradient by symmetry.


class Attends(nn.Module):
    """Attention to what came before; its keys have a bias."""

    norm: str = "layer"

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(8, 16)(tokens)
        mask = nn.make_causal_mask(tokens)
        h = h + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(h), mask=mask)
        if self.norm == "mean over tokens":
            h = nn.LayerNorm(reduction_axes=(1,), feature_axes=-1)(nn.Dense(16)(h))
        return nn.Dense(8)(h)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [optax.adam(1e-3), optax.adamw(1e-3)], ids=["adam", "adamw"])
@pytest.mark.parametrize("norm", ["layer", "mean over tokens"])
def test_biases_without_a_gradient_by_symmetry_are_no_finding(norm, optimizer):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 8, (48, 9))
    tokens[:, 1::2] = (tokens[:, :-1:2] + 3) % 8
    x, y = tokens[:, :-1], tokens[:, 1:]
    model = Attends(norm)
    params = model.init(jax.random.key(0), x)["params"]
    found = []
    options = {"loss": "cross_entropy", "every": 5, "instruments": "economy", "time_share": None}
    tx = ntkdiag.watch(
        optimizer,
        ntkdiag.functionalize(model, {"params": params}),
        train=(x[:32], y[:32]),
        on_finding=found.append,
        writers=InMemory(),
        **options,
    )

    @jax.jit
    def step(params, state):
        loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(
            model.apply({"params": p}, x), y
        ).mean()
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(31):
        params, state = step(params, state)
    jax.effects_barrier()
    assert get(state, "ntk_measurements") == 7
    assert not [finding.sentence for finding in found]
