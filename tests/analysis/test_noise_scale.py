"""The gradient noise scale: by hand, without bias, and its intervals where the truth is known."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag
from ntkdiag.analysis import noise_scale, self_influence
from ntkdiag.errors import InvalidInputError

RNG = np.random.default_rng(0)


def by_hand(rows):
    """tr Cov, and |mean|^2 without the products of a row with itself."""
    n = len(rows)
    products = rows @ rows.T
    of_pairs = products[~np.eye(n, dtype=bool)]
    return rows.var(axis=0, ddof=1).sum(), of_pairs.mean()


@pytest.mark.slow
def test_moments_by_hand_and_by_leaf():
    f = lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]
    params = {"a": RNG.normal(size=(4, 5)), "b": RNG.normal(size=(5, 3))}
    x, y = RNG.normal(size=(20, 4)), RNG.integers(0, 3, 20)
    with jax.enable_x64(True):
        G = ntkdiag.gradient_kernel(f, params, x, y, loss="cross_entropy", per_leaf=True)
        loss = lambda p, x, y: ntkdiag.losses.CrossEntropy()(f(p, x[None]), y[None])
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
    noise = noise_scale(G)
    parts = {name: np.asarray(leaf).reshape(20, -1) for name, leaf in gradients.items()}
    for found, rows in [
        (noise, np.concatenate(list(parts.values()), axis=1)),
        (noise_scale(G.leaves["a"]), parts["a"]),
        (noise_scale(G.leaves["b"]), parts["b"]),
    ]:
        variance, squared = by_hand(rows)
        np.testing.assert_allclose(found.variance, variance, rtol=1e-10)
        np.testing.assert_allclose(found.squared_gradient, squared, rtol=1e-8)
        assert found.lower < found.value < found.upper


def gradients_of_all():
    """The gradients of all 4,096 examples of a network, [N P], in float64."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, 8))
    logits = np.tanh(x @ rng.normal(size=(8, 12))) @ rng.normal(size=(12, 3))
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    params = {"a": rng.normal(size=(8, 16)) / 8**0.5, "b": rng.normal(size=(16, 3)) / 4}

    def loss(p, x, y):
        outputs = jnp.tanh(x @ p["a"]) @ p["b"]
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

    with jax.enable_x64(True):
        of_each = jax.vmap(jax.grad(lambda p, x, y: loss(p, x[None], y[None])), (None, 0, 0))
        gradients = jax.jit(of_each)(params, x, y)
    return np.concatenate([np.reshape(leaf, (4096, -1)) for leaf in jax.tree.leaves(gradients)], 1)


def redrawn(gradients, n, times):
    """Lower and upper ends for examples drawn at random, [times] each."""
    run = jax.jit(noise_scale)
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        for _ in range(times):
            rows = gradients[rng.choice(len(gradients), n, replace=False)]
            noise = run(rows @ rows.T)
            yield float(noise.lower), float(noise.upper)


def test_intervals_cover_the_truth():
    """400 redraws of a few of 4,096 examples, whose noise scale is known; twice their mean."""
    gradients = gradients_of_all()
    gradients = gradients + gradients.mean(axis=0)
    truth = by_moments(gradients)
    assert 2.5 < truth < 10
    covered = [lower <= truth <= upper for lower, upper in redrawn(gradients, 64, 400)]
    assert 0.92 <= np.mean(covered) <= 0.98


def by_moments(rows):
    """The noise scale of all there are: their mean is the mean."""
    mean = rows.mean(axis=0)
    return np.sum((rows - mean) ** 2) / (len(rows) - 1) / np.sum(mean**2)


def test_self_influence_by_hand():
    w, x, y = jnp.zeros((2, 1)), np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[1.0], [2.0]])
    G = ntkdiag.gradient_kernel(lambda w, x: x @ w, w, x, y, loss="mse")
    np.testing.assert_allclose(self_influence(G), [25.0, 4.0])  # residual^2 ||x||^2


def test_nothing_to_tell():
    alternating = np.array([[1.0, 0.0], [-1.0, 0.0]] * 8)  # no mean gradient at all
    noise = noise_scale(alternating @ alternating.T)
    assert (noise.value, noise.upper) == (math.inf, math.inf)
    assert noise.lower > 1
    nothing = noise_scale(np.zeros((8, 8)))
    assert np.isnan([nothing.value, nothing.lower, nothing.upper]).all()


def test_messages():
    for call, message in [
        (lambda: noise_scale(np.eye(7)), "at least 8 examples, whose scatter"),
        (
            lambda: noise_scale(ntkdiag.ntk(lambda w, x: x @ w, jnp.ones((2, 1)), np.ones((8, 2)))),
            "expected the kernel of `gradient_kernel`",
        ),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            call()
