"""Squared gradients of single examples: by hand, and what they find on digits with flipped labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag.analysis import self_influence


def test_by_hand():
    w, x, y = jnp.zeros((2, 1)), np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[1.0], [2.0]])
    G = ntkdiag.gradient_kernel(lambda w, x: x @ w, w, x, y, loss="mse")
    np.testing.assert_allclose(self_influence(G), [25.0, 4.0])  # residual^2 ||x||^2
    np.testing.assert_allclose(self_influence(G, learning_rate=0.1), [2.5, 0.4], rtol=1e-6)


@pytest.mark.slow
def test_it_is_what_a_small_step_does():
    """eta G[i, i] is how far the loss of an example falls in a step on it alone."""
    rng = np.random.default_rng(0)
    f = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]
    params = {"a": rng.normal(size=(4, 5)), "b": rng.normal(size=(5, 3))}
    x, y, rate = rng.normal(size=(6, 4)), rng.integers(0, 3, 6), 1e-5

    def fall(x, y):
        loss = lambda p: ntkdiag.losses.CrossEntropy()(f(p, x[None]), y[None])
        moved = jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params))
        return loss(params) - loss(moved)

    with jax.enable_x64(True):
        G = ntkdiag.gradient_kernel(f, params, x, y, loss="cross_entropy")
        falls = jax.vmap(fall)(jnp.asarray(x), jnp.asarray(y))
        np.testing.assert_allclose(self_influence(G, learning_rate=rate), falls, rtol=1e-3)
