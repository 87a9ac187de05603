"""`watch` beside models as they are: several inputs, tuples of outputs, bfloat16, dropout."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from internals import Reading, Status
from networks_in_training import dense_margin_of

import ntkdiag
from ntkdiag.monitor import TopCurvatures

get = optax.tree_utils.tree_get
RATE = 0.1


def measured(fn, x, y, loss, train_loss, params=None):
    """The optimizer's state after one watched step of gradient descent on the probe; the step is not changed."""
    params = fn.params if params is None else params
    instrument = TopCurvatures(rounds=20)
    optimizer = optax.sgd(RATE)
    tx = ntkdiag.watch(optimizer, fn, train=(x, y), loss=loss, instruments=instrument)

    def step(tx, params, state):
        return tx.update(jax.grad(train_loss)(params), state, params)

    update, state = jax.jit(functools.partial(step, tx))(params, tx.init(params))
    plain, _ = jax.jit(functools.partial(step, optimizer))(params, optimizer.init(params))
    jax.tree.map(np.testing.assert_array_equal, update, plain)
    assert int(get(state, "ntk_status")) == Status.MEASURED
    assert int(get(state, "ntk_optimizer_status")) == Reading.RECOGNISED
    return state


def half_mean_square(outputs, y):
    return 0.5 * jnp.sum((outputs - y) ** 2, axis=-1).mean()


def expected_margin(outputs, params, y):
    """Of the dense matrix, with E = RATE / 2."""
    response = jax.tree.map(lambda leaf: np.full(leaf.shape, RATE / 2), params)
    margin = dense_margin_of(lambda params, x: outputs(params), lambda f: half_mean_square(f, y))
    return margin(params, jnp.zeros(()), response)


class TwoInputs(nn.Module):
    """Takes a picture and a number, returns logits and hidden features."""

    @nn.compact
    def __call__(self, inputs):
        hidden = nn.tanh(nn.Dense(6)(inputs["image"]) + nn.Dense(6)(inputs["scalar"][:, None]))
        return {"logits": nn.Dense(2)(hidden), "hidden": hidden}


@pytest.mark.slow
def test_a_dictionary_of_inputs_and_of_outputs():
    rng = np.random.default_rng(0)
    x = {
        "image": rng.normal(size=(8, 3)).astype(np.float32),
        "scalar": rng.normal(size=8).astype(np.float32),
    }
    y = rng.normal(size=(8, 2)).astype(np.float32)
    model = TwoInputs()
    variables = model.init(jax.random.key(0), x)
    fn = ntkdiag.functionalize(model, variables, output="logits")

    def outputs(params):
        return model.apply({"params": params}, x)["logits"]

    params = variables["params"]
    state = measured(fn, x, y, "mse", lambda p: half_mean_square(outputs(p), y), params)
    expected = expected_margin(outputs, params, y)
    np.testing.assert_allclose(get(state, "ntk_margin"), expected, rtol=1e-3)


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
    state = measured(fn, x, y, "mse", lambda p: half_mean_square(outputs(p), y), params)
    expected = expected_margin(outputs, params, y)
    # In bfloat16 with its 8 bits, but not in float16 or with a mask of dropout.
    np.testing.assert_allclose(get(state, "ntk_margin"), expected, rtol=3e-2)
