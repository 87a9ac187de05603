"""Shares of the leaves in the trace, beside the kernels of all pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import LeafTraces, shares_of_leaves

from ntkdiag.measuring import leaf_parts

X = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)


def layers(params, x):
    """Two layers stacked in one leaf, an output layer, and a leaf without use."""

    def layer(h, weight):
        return jnp.tanh(h @ weight), None

    h, _ = jax.lax.scan(layer, x, params["layers"])
    return h @ params["head"]


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(1)
    shapes = {"layers": (2, 5, 5), "head": (5, 3), "unused": (4,)}
    return {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()
    }


def expected_shares(f, params, x):
    jacobian = jax.jacrev(f)(params, x)
    squares = {path: float(jnp.sum(leaf**2)) for path, leaf in jacobian.items()}
    return [squares[path] / sum(squares.values()) for path in sorted(squares)]


@pytest.mark.slow
def test_shares_are_squares_of_the_jacobian(params, monkeypatch):
    n_params = sum(leaf.size for leaf in params.values())
    monkeypatch.setattr(leaf_parts, "BYTES_TOGETHER", 4 * 4 * 3 * n_params)  # four examples
    traces = LeafTraces(layers, n_outputs=3, memory=None)(params, X)
    shares = shares_of_leaves(traces, params)
    np.testing.assert_allclose(shares, expected_shares(layers, params, X), rtol=1e-5)


@pytest.mark.slow
def test_a_joint_batch_is_taken_whole():
    def normalised(params, x):
        h = x @ params["first"]
        h = (h - h.mean(axis=0)) / (h.std(axis=0) + 0.1)
        return jnp.tanh(h) @ params["second"]

    rng = np.random.default_rng(2)
    params = {
        "first": jnp.asarray(rng.normal(size=(5, 6)), jnp.float32),
        "second": jnp.asarray(rng.normal(size=(6, 2)), jnp.float32),
    }
    normalised.joint = True
    traces = LeafTraces(normalised, n_outputs=2, memory=None)(params, X)
    shares = shares_of_leaves(traces, params)
    np.testing.assert_allclose(shares, expected_shares(normalised, params, X), rtol=1e-5)


def test_a_function_without_derivatives_has_no_shares():
    params = {"weight": jnp.ones((2, 2))}
    traces = LeafTraces(lambda params, x: jnp.ones((len(x), 2)), n_outputs=2, memory=None)
    with pytest.warns(UserWarning, match="no parameter reaches"):
        shares = shares_of_leaves(traces(params, X), params)
    assert np.isnan(shares).all()
