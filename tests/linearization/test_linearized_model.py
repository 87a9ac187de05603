"""A linearized model has the outputs of its network, and is trained by Optax to the closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from flax import nnx

from ntkdiag import Descent, Kernel, predict
from ntkdiag.kernel import Convention
from ntkdiag.linearization import linearized_model
from ntkdiag.models import functionalize

N, D, C = 5, 3, 2
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(N, C)).astype(np.float32)
STEPS, ETA = 30, 0.05


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
    return predict.iterate_descent(kernel, Y, descent, STEPS, loss="mse", f0=start).train


@pytest.mark.slow
def test_nnx():
    model = NNX(nnx.Rngs(0))
    model.eval()
    before = np.asarray(model(X))
    lin = linearized_model(model)
    assert isinstance(lin, nnx.Module)
    np.testing.assert_allclose(lin(X), before, rtol=1e-5)
    optimizer = nnx.Optimizer(lin, optax.sgd(ETA, momentum=0.9), wrt=nnx.Param)

    @nnx.jit
    def step(lin, optimizer):
        optimizer.update(lin, nnx.grad(lambda lin: _loss(lin(X)))(lin))

    for _ in range(STEPS):
        step(lin, optimizer)
    np.testing.assert_allclose(lin(X), _closed_form(functionalize(model)), atol=2e-5)
    np.testing.assert_array_equal(model(X), before)
