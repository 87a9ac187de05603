"""What decides how a function is traced beside its arguments: programs made under other settings are not taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import assert_close

import ntkdiag
from ntkdiag.errors import ExamplesInteractError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 6)).astype(np.float32)
W = RNG.normal(size=(6, 3)).astype(np.float32)


def masked(w, x):
    return (x * jax.random.bernoulli(jax.random.PRNGKey(0), 0.5, (6,))) @ w


def test_random_numbers():
    ntkdiag.ntk(masked, W, X)
    with jax.default_prng_impl("rbg"):
        mask = jax.random.bernoulli(jax.random.PRNGKey(0), 0.5, (6,))
        got = np.asarray(ntkdiag.ntk(masked, W, X))
    kept = np.asarray(X * mask)
    np.testing.assert_allclose(got, kept @ kept.T, rtol=1e-5, atol=1e-6)


def test_settings_handed_over_as_arrays_are_checked_each():
    def norm(w, x, train):
        return (x - jnp.where(train, x.mean(0), 0.0)) @ w

    ntkdiag.ntk(norm, W, X, train=jnp.asarray(False))
    with pytest.raises(ExamplesInteractError):
        ntkdiag.ntk(norm, W, X, train=jnp.asarray(True))
    ntkdiag.ntk(norm, W, X, train=jnp.asarray(False))


def test_keyword_arguments_that_are_equal_but_not_the_same():
    f = lambda w, x, s: (x @ w) * jnp.copysign(2.0 + jnp.sign(jnp.copysign(1.0, s)), 1.0)
    positive, negative = (np.asarray(ntkdiag.ntk(f, W, X, s=s)) for s in (0.0, -0.0))
    np.testing.assert_allclose(positive, 9 * negative, rtol=1e-5)
    g = lambda w, x, s: x @ w * jnp.where(jnp.isnan(s), 2.0, 1.0)
    np.testing.assert_allclose(
        ntkdiag.ntk(g, W, X, s=float("nan")), 4 * np.asarray(X @ X.T), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_indices_beyond_32_bits():
    taken = lambda p, i: jnp.take(p, i, axis=0, mode="fill", fill_value=0.0)
    f = lambda p, i: jnp.tanh(taken(p, i)).reshape(i.shape[0], -1)
    table, index = (
        jnp.asarray(RNG.normal(size=(9, 2))),
        jnp.array([[0, 1], [2, 2**32 + 1], [2**40, 3]]),
    )
    assert_close(ntkdiag.ntk(f, table, index, reduction="full"), reference.ntk(f, table, index))
