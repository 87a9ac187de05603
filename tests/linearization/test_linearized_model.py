"""Linearized models of every library: same outputs as the plain linear model, trained by Optax to the closed form."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from flax import linen as nn
from flax import nnx

from ntkdiag import Descent, Functional, Kernel, predict
from ntkdiag.errors import UnsupportedModelError
from ntkdiag.kernel import Convention
from ntkdiag.linearization import linearized_model
from ntkdiag.models import functionalize

N, D, C = 5, 3, 2
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(N, C)).astype(np.float32)
STEPS, ETA = 30, 0.05


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = jnp.tanh(nn.Dense(6)(x))
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(C)(x)


class NNX(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(D, 6, rngs=rngs), nnx.Linear(6, C, rngs=rngs)])
        self.norm = nnx.BatchNorm(6, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.norm(jnp.tanh(self.layers[0](x))))


def _loss(f):
    return 0.5 * jnp.sum((f - Y) ** 2) / N


def _closed_form(functional):
    """Outputs after training, from the naive kernel."""
    kernel = Kernel(
        reference.ntk(jax.jit(functional.apply), functional.params, X), Convention("full", C)
    )
    with jax.enable_x64(True):
        start = np.asarray(functional(functional.params, X), np.float64)
    descent = Descent(ETA, momentum=0.9)
    return predict.gradient_descent(kernel, Y, descent, STEPS, f0=start).train


def _optimizer():
    return optax.sgd(ETA, momentum=0.9)


@pytest.mark.slow
def test_linen():
    model = Linen()
    variables = jax.jit(model.init)(jax.random.key(0), X)
    lin = linearized_model(model, variables)
    assert isinstance(lin, nn.Module)
    started = lin.init(jax.random.key(7), X)
    assert sorted(started) == ["batch_stats", "params"]
    jax.tree.map(np.testing.assert_array_equal, started["params"], variables["params"])
    np.testing.assert_allclose(
        jax.jit(lin.apply)(started, X), jax.jit(model.apply)(variables, X), rtol=1e-5
    )
    params, tx = started["params"], _optimizer()
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        gradient = jax.grad(lambda p: _loss(lin.apply({"params": p}, X)))(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(STEPS):
        params, state = step(params, state)
    expected = _closed_form(functionalize(model, variables))
    np.testing.assert_allclose(lin.apply({"params": params}, X), expected, atol=2e-5)
    assert np.abs(model.apply({**variables, "params": params}, X) - expected).max() > 1e-3
    restored = lin.expansion.functional.restore(params)
    assert model.apply(restored, X).shape == (N, C)


@pytest.mark.slow
def test_nnx():
    model = NNX(nnx.Rngs(0))
    model.eval()
    before = np.asarray(model(X))
    lin = linearized_model(model)
    assert isinstance(lin, nnx.Module)
    np.testing.assert_allclose(lin(X), before, rtol=1e-5)
    optimizer = nnx.Optimizer(lin, _optimizer(), wrt=nnx.Param)

    @nnx.jit
    def step(lin, optimizer):
        optimizer.update(lin, nnx.grad(lambda lin: _loss(lin(X)))(lin))

    for _ in range(STEPS):
        step(lin, optimizer)
    np.testing.assert_allclose(lin(X), _closed_form(functionalize(model)), atol=2e-5)
    np.testing.assert_array_equal(model(X), before)


@pytest.mark.slow
def test_equinox():
    model = eqx.nn.MLP(D, C, 6, 1, activation=jnp.tanh, key=jax.random.key(0))
    of_batch = linearized_model(eqx.filter_vmap(model), batched=True)
    lin = linearized_model(model)
    assert lin(X[0]).shape == (C,)
    call = lambda lin: jax.vmap(lin)(X)
    np.testing.assert_allclose(of_batch(X), call(lin), rtol=1e-5)
    assert isinstance(lin, eqx.Module)
    np.testing.assert_allclose(call(lin), jax.vmap(model)(X), rtol=1e-5)
    tx = _optimizer()
    state = tx.init(eqx.filter(lin, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(lin, state):
        gradient = eqx.filter_grad(lambda lin: _loss(call(lin)))(lin)
        updates, state = tx.update(gradient, state)
        return eqx.apply_updates(lin, updates), state

    for _ in range(STEPS):
        lin, state = step(lin, state)
    np.testing.assert_allclose(call(lin), _closed_form(functionalize(model)), atol=2e-5)
    assert isinstance(lin.expansion.functional.restore(lin.params), eqx.Module)


@pytest.mark.smoke
def test_callable():
    f = lambda p, x: jnp.tanh(x @ p)
    params = np.ones((D, C), np.float32)
    lin = linearized_model(f, params)
    np.testing.assert_allclose(lin(params, X), f(params, X), rtol=1e-6)


def test_libraries_without_a_counterpart():
    functional = Functional(lambda p, x: x, {"w": jnp.ones(1)}, lambda p: p, "keras", "eval")
    message = "Use `f, params = functionalize(model)` and train `linearize(f, params)`."
    with pytest.raises(UnsupportedModelError, match=re.escape(message)):
        linearized_model(functional)
