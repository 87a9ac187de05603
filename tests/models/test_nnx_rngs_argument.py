"""NNX modules that are handed their random streams in every call, as Flax's own examples are."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import ntkdiag
from ntkdiag.models import functionalize

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


class Handed(nnx.Module):
    """Its dropout has no stream of its own."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.body = nnx.Linear(3, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x, rngs):
        return self.head(self.dropout(jnp.tanh(self.body(x)), rngs=rngs))


def test_in_train_mode_it_draws_from_the_streams_of_the_option():
    model = Handed()
    fn = functionalize(model, mode="train", rngs={"dropout": 3})
    expected = model(X, rngs=nnx.Rngs(dropout=3))
    for _ in range(2):
        np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
    # A call may have streams of its own.
    redrawn = fn(fn.params, X, rngs=jax.random.key(4))
    np.testing.assert_allclose(redrawn, model(X, rngs=nnx.Rngs(4)), rtol=1e-6)


class WithRawArrays(nnx.Module):
    """Arrays as attributes, bare and in a list, which newer versions of Flax want wrapped."""

    def __init__(self):
        self.linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        self.scale = jnp.asarray([1.0, 3.0])
        self.shift = np.asarray([0.5, 0.25], np.float32)
        self.many = nnx.data([jnp.ones(2), jnp.arange(2)])
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        x = self.linear(x) * self.scale + self.shift
        return self.dropout(x + self.many[0] + self.many[1])


def test_raw_arrays_are_held_fixed():
    model = WithRawArrays()
    fn = functionalize(model)
    assert set(fn.params) == {"linear"}
    assert {"scale", "shift", "many/0", "many/1"} <= set(fn.fixed)
    before = fn(fn.params, X)
    model.eval()
    np.testing.assert_allclose(before, model(X), rtol=1e-6)
    np.testing.assert_allclose(fn.restore(fn.params).scale, [1.0, 3.0])
    # A change of the model afterwards does not show.
    model.scale = model.scale * 2
    np.testing.assert_array_equal(fn(fn.params, X), before)
    assert ntkdiag.ntk(*fn, X).array.shape == (4, 4)
