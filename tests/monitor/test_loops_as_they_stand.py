"""`Monitor` takes what loops hold, at the values that it has at the step, and leaves the steps as they are."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from monitor_problem import C, D, H, naive, problem

import ntkdiag
from ntkdiag.models import functionalize
from ntkdiag.monitor import InMemory, Monitor

RATE = 0.1
N_STEPS = 4


def data():
    _, x, y = problem()
    return x.astype(np.float32), y


def cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


# What moves beside the parameters


class Scaled(nn.Module):
    """A network whose outputs are scaled by what it holds beside its parameters."""

    @nn.compact
    def __call__(self, x):
        scale = self.variable("averages", "scale", jnp.ones, ())
        return nn.Dense(C, name="b")(jnp.tanh(nn.Dense(H, name="a")(x))) * scale.value


class StateOfLoop(TrainState):
    averages: Any


@pytest.mark.slow
def test_a_train_state_is_followed_with_what_moves_beside_its_parameters():
    x, y = data()
    variables = Scaled().init(jax.random.key(0), x)
    state = StateOfLoop.create(apply_fn=Scaled().apply, tx=optax.adam(0.1), **variables)
    memory = InMemory()
    options = {"every": 1, "instruments": "kernel", "writers": memory}
    monitor = Monitor(functionalize(Scaled(), variables), train=(x, y), **options)
    for step, scale in enumerate((1.0, 2.0)):
        monitor(step, state.replace(averages={"scale": jnp.asarray(scale)}))
    monitor.close()
    plain = lambda params, x: Scaled().apply({**variables, "params": params}, x)
    largest = naive(state.params, state.params, x=x, model=plain)["eigenvalues"][0]
    found = [row["eigenvalues"][0] for row in memory.rows]
    np.testing.assert_allclose(found, [largest, 4 * largest], rtol=1e-3)
    np.testing.assert_allclose(memory.series("drift"), [0.0, 3.0], rtol=1e-2, atol=1e-6)


@pytest.mark.slow
def test_drift_of_a_resumed_training_is_nan_and_the_record_says_so(tmp_path):
    params, x, y = problem()
    params = jax.tree.map(jnp.float32, params)
    f = lambda params, x: jnp.tanh(x @ params["a"]) @ params["b"]

    def measured(steps):
        options = {"every": 1, "instruments": "kernel", "out": tmp_path}
        with Monitor(f, train=(jnp.float32(x), y), loss="cross_entropy", **options) as monitor:
            for step in steps:
                monitor(step, jax.tree.map(lambda leaf, k=step: leaf * (1 + k / 50), params))

    measured((0, 10))
    measured((20, 30))  # from a checkpoint
    run = ntkdiag.open_run(tmp_path)
    drift = [row["drift"] for row in run.rows()]
    assert drift[0] == 0.0
    assert drift[1] > 0.05
    assert np.isnan(drift[2:]).all()
    assert any("first measurement was not that of step 0" in note for note in run.record()["notes"])


# `monitor.around(step)`: each loop takes what wraps its step and gives the parameters before each


def pair_loop(around):
    """Parameters and state in a pair, whose buffers are donated."""
    params, x, y = problem()
    params, x = jax.tree.map(jnp.float32, params), jnp.float32(x)
    f = lambda params, x: jnp.tanh(x @ params["a"]) @ params["b"]
    tx = optax.adam(RATE)

    def step(carry, batch):
        (params, opt_state), (x, y) = carry, batch
        grads = jax.grad(lambda params: cross_entropy(f(params, x), y))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    step = around(jax.jit(step, donate_argnums=0), f)
    carry, trajectory = (params, tx.init(params)), []
    for _ in range(N_STEPS):
        trajectory.append(jax.tree.map(jnp.array, carry[0]))
        carry = step(carry, (x, y))
    return trajectory


class Perceptron(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(D, H, rngs=rngs), nnx.Linear(H, C, rngs=rngs)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


def nnx_loop(around):
    x, y = data()
    model = Perceptron(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        optimizer.update(model, nnx.grad(lambda model: cross_entropy(model(x), y))(model))

    step = around(step, functionalize(model))
    trajectory = []
    for _ in range(N_STEPS):
        trajectory.append(jax.tree.map(jnp.array, nnx.as_pure(nnx.state(model, nnx.Param))))
        step(model, optimizer, x, y)
    return trajectory


def equinox_loop(around):
    x, y = data()
    model = eqx.nn.MLP(D, C, H, 1, activation=jnp.tanh, key=jax.random.key(0))
    tx = optax.adam(RATE)

    @eqx.filter_jit
    def step(model, opt_state, x, y):
        loss = lambda model: cross_entropy(jax.vmap(model)(x), y)
        updates, opt_state = tx.update(eqx.filter_grad(loss)(model), opt_state, model)
        return eqx.apply_updates(model, updates), opt_state

    step = around(step, functionalize(model))
    opt_state, trajectory = tx.init(eqx.filter(model, eqx.is_inexact_array)), []
    for _ in range(N_STEPS):
        trajectory.append(eqx.filter(model, eqx.is_array))
        model, opt_state = step(model, opt_state, x, y)
    return trajectory


def test_a_resumed_loop_goes_on_with_the_number_of_its_step():
    params, x, y = problem()
    options = {"train": (x, y), "loss": "mse", "every": 100}
    f = lambda params, x: jnp.tanh(x @ params["a"]) @ params["b"]
    called = []
    for tx in (optax.adam(RATE), optax.sgd(RATE)):  # of sgd the TrainState alone counts
        monitor = Monitor(f, optimizer=tx, **options)
        monitor._observe = lambda step, point: called.append(step)
        state = TrainState.create(apply_fn=f, params=params, tx=tx)
        for _ in range(3):
            state = state.apply_gradients(grads=params)
        step = monitor.around(lambda *held: held)
        step(state, x, y)
        step(state, x, y)
    assert called == [3, 4, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop", [pair_loop, nnx_loop, equinox_loop], ids=lambda loop: loop.__name__
)
def test_a_step_with_a_monitor_around_it(loop):
    x, y = data()
    memory = InMemory()
    monitors = []

    def around(step, fn):
        monitor = Monitor(
            fn,
            train=(x, y),
            loss="cross_entropy",
            optimizer=optax.adam(RATE),
            every=2,
            instruments=("norms", "optimizer"),
            writers=memory,
        )
        monitors.append(monitor)
        return monitor.around(step)

    trajectory = loop(around)
    monitors[0].close()
    jax.tree.map(np.testing.assert_array_equal, trajectory, loop(lambda step, fn: step))
    assert memory.steps == [0, 2]
    for row in memory.rows:
        leaves = jax.tree.leaves(trajectory[row["step"]])
        norm = np.linalg.norm([np.linalg.norm(leaf) for leaf in leaves])
        np.testing.assert_allclose(row["parameter_norm"], norm, rtol=1e-5)
        # The state of the optimizer was found, and the update is that of Adam.
        np.testing.assert_allclose(row["learning_rate"], RATE, rtol=1e-4)
        assert row["update_norm"] > 0
