"""Kernels of low rank: a handful of examples, few parameters, directions that no parameter moves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag

RATE = 0.1
get = optax.tree_utils.tree_get

# Name: examples, inputs, outputs, loss.
PROBES = {
    "two outputs": (4, 3, 2, "mse"),
    "classes of many": (40, 2, 5, "cross_entropy"),
}


def _problem(name):
    """f, parameters, x, y and the name of the loss."""
    n, n_inputs, n_outputs, loss = PROBES[name]
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(n, n_inputs)), jnp.float32)
    y = rng.normal(size=(n, n_outputs)) if loss == "mse" else rng.integers(0, n_outputs, n)
    f = lambda params, x: jnp.tanh(x @ params["w"]) + params["b"]
    w = jnp.asarray(rng.normal(size=(n_inputs, n_outputs)), jnp.float32)
    return f, {"w": w, "b": jnp.zeros(n_outputs)}, x, jnp.asarray(y), loss


def _mean_loss(out, y, loss):
    if loss == "mse":
        return ((out - y) ** 2).sum(axis=-1).mean() / 2
    return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()


def _dense_margin(f, params, x, y, loss):
    """Half of rate times the largest eigenvalue of the Gauss-Newton matrix, in float64."""
    out = f(params, x)
    jacobian = jax.jacrev(f)(params, x)
    columns = [leaf.reshape(out.size, -1) for leaf in jax.tree.leaves(jacobian)]
    columns = np.asarray(np.concatenate(columns, axis=1), np.float64)
    curvature = jax.hessian(lambda out: _mean_loss(out.reshape(y.shape[0], -1), y, loss))
    curvature = np.asarray(curvature(out.reshape(-1)), np.float64).reshape(out.size, out.size)
    return RATE / 2 * np.linalg.eigvalsh(columns.T @ curvature @ columns)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBES)
def test_the_margin_is_found_and_its_residual_says_so(name):
    f, params, x, y, loss = _problem(name)
    tx = ntkdiag.watch(optax.sgd(RATE), f, train=(x, y), loss=loss, every=1, n_train=x.shape[0])

    @jax.jit
    def step(params, state):
        gradient = jax.grad(lambda params: _mean_loss(f(params, x), y, loss))(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(3):
        # A measurement of step t is of the parameters that step t begins with.
        want = _dense_margin(f, params, x, y, loss)
        params, state = step(params, state)
        assert float(get(state, "ntk_margin")) == pytest.approx(want, rel=0.03)
        assert float(get(state, "ntk_margin_residual")) <= 0.05
