"""Squared gradients of single examples: by hand, and what they find on digits with flipped labels."""

import jax.numpy as jnp
import numpy as np

import ntkdiag
from ntkdiag.analysis import self_influence


def test_by_hand():
    w, x, y = jnp.zeros((2, 1)), np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[1.0], [2.0]])
    G = ntkdiag.gradient_kernel(lambda w, x: x @ w, w, x, y, loss="mse")
    np.testing.assert_allclose(self_influence(G), [25.0, 4.0])  # residual^2 ||x||^2
    np.testing.assert_allclose(self_influence(G, learning_rate=0.1), [2.5, 0.4], rtol=1e-6)
