"""A key for one side only, and functions that return Python numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import neural_tangents as nt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)
X2 = RNG.normal(size=(2, 4)).astype(np.float32)
W = RNG.normal(size=(4, 2)).astype(np.float32)


def noisy(params, x, rng=None):
    mask = 1.0 if rng is None else jax.random.bernoulli(rng, 0.5, (4,)).astype(jnp.float32)
    return (x * mask) @ params


@pytest.mark.slow
def test_a_key_for_one_side_only():
    key = jax.random.key(0)
    mask = np.asarray(jax.random.bernoulli(key, 0.5, (4,)), np.float32)
    ntk_fn = nt.empirical_ntk_fn(noisy)
    np.testing.assert_allclose(ntk_fn(X, X2, W, rng=(key, None)), (X * mask) @ X2.T, rtol=1e-5)
    np.testing.assert_allclose(ntk_fn(X, X2, W, rng=(None, key)), X @ (X2 * mask).T, rtol=1e-5)
    np.testing.assert_allclose(ntk_fn(X, None, W, rng=(key, None)), (X * mask) @ X.T, rtol=1e-5)
    product = nt.empirical_ntk_vp_fn(noisy, X, X2, W, rng=(key, None))
    v = np.ones((2, 2), np.float32)
    np.testing.assert_allclose(product(v), (X * mask) @ X2.T @ v, rtol=1e-5)
