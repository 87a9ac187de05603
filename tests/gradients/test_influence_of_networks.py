"""Influences against networks that were trained again, each without an example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from internals import as_loss, load_digits

import ntkdiag

N, LEFT_OUT, N_TEST, WIDTH, RIDGE = 60, 20, 60, 128, 0.2


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def problem(seed):
    """Digits 3, 5 and 8, a tenth of them with a wrong label, and parameters to begin from."""
    digits, rng = load_digits(seed), np.random.default_rng(seed)
    is_hard = np.isin(digits.y_train, (3, 5, 8))
    x = digits.x_train[is_hard].reshape(-1, 64).astype(np.float32)[: N + N_TEST] / 8
    y = np.searchsorted((3, 5, 8), digits.y_train[is_hard])[: N + N_TEST]
    wrong = rng.permutation(N) < N // 10
    y[:N][wrong] = (y[:N][wrong] + 1) % 3
    params = {"a": rng.normal(size=(64, WIDTH)) / 8, "b": rng.normal(size=(WIDTH, 3)) / WIDTH**0.5}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    return params, (x[:N], y[:N]), (x[N:], y[N:])


def trained_again(params, train, test, loss):
    """The losses on the test examples, with all training examples [0] and without each of some.

    Each is trained to the minimum of the sum of its losses and ridge / 2 ||theta - theta_0||^2.
    """
    x, y = map(jnp.asarray, train)
    weights = jnp.ones((LEFT_OUT + 1, N)).at[jnp.arange(LEFT_OUT) + 1, jnp.arange(LEFT_OUT)].set(0)

    def objective(moved, weights):
        pull = sum(
            jnp.sum((p - q) ** 2)
            for p, q in zip(*map(jax.tree.leaves, (moved, params)), strict=True)
        )
        terms = loss.example_terms(f(moved, x), loss.read(y, (N, 3)))
        return weights @ terms + RIDGE / 2 * pull

    @jax.jit
    @jax.vmap
    def minimize(weights):
        def step(_, state):
            moved, velocity = state
            gradient = jax.grad(objective)(moved, weights)
            velocity = jax.tree.map(lambda v, g: 0.95 * v - 3e-3 * g, velocity, gradient)
            return jax.tree.map(jnp.add, moved, velocity), velocity

        moved, _ = jax.lax.fori_loop(0, 6000, step, (params, jax.tree.map(jnp.zeros_like, params)))
        size = sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(objective)(moved, weights)))
        return loss.per_example(
            f(moved, test[0]), loss.read(jnp.asarray(test[1]), (N_TEST, 3))
        ), size

    losses, sizes = minimize(weights)
    assert np.sqrt(np.max(sizes)) < 1e-2  # there
    return np.asarray(losses, np.float64)


def interval_of(correlation, n):
    """95 % interval of a rank correlation, by Fisher's transformation."""
    half_width = 1.96 * 1.03 / (n - 3) ** 0.5
    return np.tanh(np.arctanh(correlation) + np.array([-half_width, half_width]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mse", "cross_entropy"])
def test_leaving_out_and_training_again(name):
    """20 examples x 5 seeds: rank correlation of what was foretold and what training again does."""
    foretold, real = [], []
    for seed in range(5):
        params, train, test = problem(seed)
        found = ntkdiag.influence(f, params, train, test, loss=name, ridge=RIDGE)
        losses = trained_again(params, train, test, as_loss(name))
        foretold.append(found.loss[:LEFT_OUT].mean(axis=1))
        real.append((losses[1:] - losses[0]).mean(axis=1))
        rank = scipy.stats.spearmanr(foretold[-1], real[-1]).statistic
        lower, upper = interval_of(rank, LEFT_OUT)
        print(
            f"{name} seed {seed}: rank correlation {rank:.2f} [{lower:.2f}, {upper:.2f}], e1 {found.e1:.2f}"
        )
    # All 100 examples, in ranks within their seed.
    ranks = [
        np.concatenate([scipy.stats.rankdata(row) for row in rows]) for rows in (foretold, real)
    ]
    together = np.corrcoef(*ranks)[0, 1]
    lower, upper = interval_of(together, 5 * LEFT_OUT)
    signs = np.mean(np.sign(foretold) == np.sign(real))
    print(f"{name}: {together:.2f} [{lower:.2f}, {upper:.2f}], sign right {signs:.0%}")
    assert lower > 0.5
