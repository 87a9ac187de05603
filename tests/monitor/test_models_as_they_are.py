"""`watch` beside models as they are: several inputs, bfloat16, rules and checks of one's own, few examples, tokens."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from internals import OptimizerStatus, Status
from networks_in_training import dense_margin_of

import ntkdiag

RATE = 0.1


def measured(fn, x, y, loss, train_loss, params=None):
    """The margin after a watched step of gradient descent on the probe, and the parameters; the step is not changed."""
    params = fn.params if params is None else params
    optimizer = optax.sgd(RATE)
    instruments = ("margin", "optimizer")
    tx = ntkdiag.watch(optimizer, fn, train=(x, y), loss=loss, instruments=instruments)

    def step(tx, params, state):
        return tx.update(jax.grad(train_loss)(params), state, params)

    update, state = jax.jit(functools.partial(step, tx))(params, tx.init(params))
    plain, _ = jax.jit(functools.partial(step, optimizer))(params, optimizer.init(params))
    jax.tree.map(np.testing.assert_array_equal, update, plain)
    numbers = ntkdiag.record(state)
    assert numbers["status"] == Status.MEASURED
    assert numbers["optimizer_status"] == OptimizerStatus.RECOGNIZED
    return numbers["margin"], optax.apply_updates(params, update)


def half_mean_square(outputs, y):
    return 0.5 * jnp.sum((outputs - y) ** 2, axis=-1).mean()


def expected_margin(outputs, params, y):
    """Of the dense matrix, with E = RATE / 2."""
    response = jax.tree.map(lambda leaf: np.full(leaf.shape, RATE / 2), params)
    margin = dense_margin_of(lambda params, x: outputs(params), lambda f: half_mean_square(f, y))
    return margin(params, jnp.zeros(()), response)


class Half(nnx.Module):
    """Parameters in float32, computing in bfloat16; returns a tuple."""

    def __init__(self, rngs):
        self.first = nnx.Linear(3, 8, dtype=jnp.bfloat16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 2, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x):
        hidden = self.dropout(jnp.tanh(self.first(x)))
        return self.last(hidden), hidden


@pytest.mark.slow
def test_bfloat16_with_dropout_and_a_tuple_of_outputs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    y = rng.normal(size=(8, 2)).astype(np.float32)
    model = Half(nnx.Rngs(0))
    fn = ntkdiag.functionalize(model, output="0")

    def outputs(params):
        first, last = params["first"], params["last"]
        return jnp.tanh(x @ first["kernel"] + first["bias"]) @ last["kernel"] + last["bias"]

    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    loss = lambda p: half_mean_square(outputs(p), y)
    margin, after = measured(fn, x, y, "mse", loss, params)
    expected = expected_margin(outputs, after, y)
    # In bfloat16 with its 8 bits, but not in float16 or with a mask of dropout.
    np.testing.assert_allclose(margin, expected, rtol=3e-2)


def classes():
    """Sixteen points of three classes, and parameters of a network with eight hidden units."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 4)).astype(np.float32), np.arange(16) % 3
    shapes = {"a": (4, 8), "b": (8, 3)}
    params = {k: jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for k, s in shapes.items()}
    return x, y, params


def network(activation):
    return lambda params, x: activation(x @ params["a"]) @ params["b"]


def trained(tx, f):
    """The losses of a few steps, and the state."""
    x, y, params = classes()

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = tx.init(params), []
    for _ in range(4):
        params, state, value = step(params, state)
        losses.append(float(value))
    return losses, state


def margin_beside(f):
    """The margin of a training that `watch` leaves as it is."""
    x, y, _ = classes()
    tx = ntkdiag.watch(
        optax.sgd(RATE), f, train=(x, y), loss="cross_entropy", every=4, instruments="margin"
    )
    losses, state = trained(tx, f)
    np.testing.assert_allclose(losses, trained(optax.sgd(RATE), f)[0], rtol=1e-6)
    return ntkdiag.record(state)["margin"]


@jax.custom_vjp
def squash(x):
    """tanh by a rule that has no forward derivative, as fused attention has."""
    return jnp.tanh(x)


squash.defvjp(lambda x: (jnp.tanh(x),) * 2, lambda t, g: (g * (1 - t * t),))


def checked(x):
    """tanh behind a check at run time, as every model of diffrax has."""
    return jnp.tanh(eqx.error_if(x, jnp.isnan(x).any(), "x is NaN"))


@pytest.mark.slow
def test_derivatives_of_ones_own_and_checks_at_run_time():
    expected = margin_beside(network(jnp.tanh))
    np.testing.assert_allclose(margin_beside(network(squash)), expected, rtol=1e-3)
    np.testing.assert_allclose(margin_beside(network(checked)), expected, rtol=1e-3)
    x, y, params = classes()
    monitor = ntkdiag.Monitor(
        network(checked), train=(x, y), loss="cross_entropy", every=1, instruments="kernel"
    )
    assert monitor(0, params).status == Status.MEASURED
