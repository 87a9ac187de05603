"""NNX modules that are handed their random streams in every call, as Flax's own examples are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import ntkdiag
from ntkdiag.errors import InvalidInputError
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


class MayBeHanded(Handed):
    def __call__(self, x, rngs=None):
        return super().__call__(x, rngs)


MODELS = [Handed, MayBeHanded]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("options", [{}, {"rngs": {"dropout": 1}}])
def test_in_eval_mode_it_is_handed_none(kind, options):
    model = kind()
    fn = functionalize(model, **options)
    quiet = nnx.clone(model)
    quiet.eval()
    np.testing.assert_allclose(fn(fn.params, X), quiet(X, rngs=None), rtol=1e-6)
    assert ntkdiag.selfcheck(model, X, **options).ok


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rngs", [3, {"dropout": 3}, {"dropout": jax.random.key}])
def test_in_train_mode_it_draws_from_the_streams_of_the_option(kind, rngs):
    if isinstance(rngs, dict):
        rngs = {name: key(3) if callable(key) else key for name, key in rngs.items()}
    model = kind()
    fn = functionalize(model, mode="train", rngs=rngs)
    streams = nnx.Rngs(3) if rngs == 3 else nnx.Rngs(dropout=3)
    expected = model(X, rngs=streams)
    for _ in range(2):
        np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(fn.apply)(fn.params, X), expected, rtol=1e-5)
    # A call may have streams of its own.
    redrawn = fn(fn.params, X, rngs=jax.random.key(4))
    np.testing.assert_allclose(redrawn, model(X, rngs=nnx.Rngs(4)), rtol=1e-6)


def test_in_dropout_mode_all_examples_have_one_mask():
    fn = functionalize(Handed(), mode="dropout", rngs=3)
    np.testing.assert_allclose(fn(fn.params, X[1:]), fn(fn.params, X)[1:], rtol=1e-6)
    assert ntkdiag.ntk(*fn, X).convention.mode == "dropout"


def test_without_streams_the_error_says_what_to_pass():
    fn = functionalize(Handed(), mode="train")
    with pytest.raises(InvalidInputError) as caught:
        fn(fn.params, X)
    assert str(caught.value) == (
        "f(params, x): expected `rngs`, because the model takes it as an argument and draws from "
        'it; got mode="train" and no rngs. Pass rngs=jax.random.key(0), or a key for each of its '
        "streams by name."
    )
