"""What decides how a function is traced beside its arguments: programs made under other settings are not taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from tolerance import relative_error

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
    mode = "fill"
    f = lambda p, i: jnp.tanh(jnp.take(p, i, axis=0, mode=mode, fill_value=0.0)).reshape(
        i.shape[0], -1
    )
    table, index = (
        jnp.asarray(RNG.normal(size=(9, 2))),
        jnp.array([[0, 1], [2, 2**32 + 1], [2**40, 3]]),
    )
    assert (
        relative_error(
            ntkdiag.ntk(f, table, index, reduction="full"), reference.ntk(f, table, index)
        )
        < 1e-12
    )


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_weights_joined_in_another_order_for_the_columns():
    def f(p, x):
        both = [p["a"], p["b"]] if x.shape[1] < 4 else [p["b"], p["a"]]
        return jnp.tanh(x @ jnp.concatenate(both, 1)).sum(1)

    p = {"a": jnp.asarray(RNG.normal(size=(4, 3))), "b": jnp.asarray(RNG.normal(size=(4, 3)))}
    x, y = (jnp.asarray(RNG.normal(size=shape)) for shape in ((3, 3, 4), (2, 7, 4)))
    rows, columns = (reference.jacobian(f, p, v) for v in (x, y))
    want = np.einsum("nop,mqp->nomq", rows, columns)
    assert relative_error(ntkdiag.ntk(f, p, x, y, reduction="full"), want) < 1e-12
