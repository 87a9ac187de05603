"""What is refused when a model and what is asked of it do not fit, with the remedy; and the registry."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ntkdiag import errors
from ntkdiag.models import functionalize

X = np.ones((3, 4), np.float32)


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(2)(x))
        return nn.Dropout(0.5, deterministic=not train)(x)


class NoisyNNX(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.dropout(self.linear(x))


def linear():
    return eqx.nn.Linear(4, 2, key=jax.random.key(0))


def plain(params, x):
    return x @ params


def said(kind, make):
    with pytest.raises(kind) as caught:
        make()
    return str(caught.value)


def refused(make):
    return said(errors.InvalidInputError, make)


def test_objects_that_are_no_models():
    for make, remedy in [
        (lambda: {"w": 1}, "functionalize(f, params)"),
        (lambda: Noisy, "the class Noisy"),
    ]:
        assert remedy in said(errors.UnsupportedModelError, lambda make=make: functionalize(make()))


@pytest.mark.usefixtures("wrong_types")
def test_arguments_that_fit_no_model():
    for make, remedy in [
        (lambda: functionalize(functionalize(plain, X), trainable="**"), "the model it was made"),
        (lambda: functionalize(NoisyNNX(), train=True), "is called trainable=, mode=, rngs="),
        (lambda: functionalize(NoisyNNX(), {"w": 1}), "go in with Functional.with_params"),
        (lambda: functionalize(Noisy()), "Pass variables = module.init(key, x)"),
        (
            lambda: functionalize(NoisyNNX(), rngs={"dropout": 1}, mode="train"),
            'draws from the stream "default"',
        ),
        (lambda: functionalize(plain, X, mode="train"), "pass the module itself"),
        (
            lambda: functionalize(plain, {"params": X, "batch_stats": X}),
            'Pass trainable="params/**"',
        ),
    ]:
        assert remedy in refused(make)


def test_batches_of_the_wrong_rank():
    fn = functionalize(linear())
    text = refused(lambda: fn(fn.params, np.ones(4, np.float32)))
    assert "got examples of shape (), which it refused with: " in text
    assert "Pass batched=True to functionalize for a module that takes a batch" in text


def test_stateful_layers_without_a_state_or_with_one_used_up():
    module, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="ema")
    text = refused(lambda: functionalize(module))
    assert "second result of equinox.nn.make_with_state" in text
    jax.vmap(lambda x: module(x, state)[0], axis_name="batch")(X)
    assert "got a state that was used up" in refused(lambda: functionalize(module, state=state))


def test_other_parameters():
    fn = functionalize(linear())
    wrong = {"weight": np.ones((2, 5), np.float32)}
    text = said(errors.StructureError, lambda: fn.with_params(wrong))
    assert "bias: missing, expected float32[2]" in text
    assert "weight: expected float32[2, 4], got float32[2, 5]" in text
    narrow = jax.tree.map(lambda w: w.astype(jnp.float16), fn.params)
    text = said(errors.StructureError, lambda: fn.with_params(narrow))
    assert "bias: expected float32[2], got float16[2]" in text
    for call in (lambda: fn.restore(wrong), lambda: fn(wrong, X)):
        assert "bias: missing" in said(errors.StructureError, call)
