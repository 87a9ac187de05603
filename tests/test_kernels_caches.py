"""What is kept between calls: programs of functions, not the parameters of the models they were made from."""

import copy
import gc
import weakref

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import ntkdiag
from ntkdiag.kernels import caches

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def linen(seed):
    model = nn.Dense(2)
    return ntkdiag.functionalize(model, model.init(jax.random.key(seed), X))


def plain(seed):
    return ntkdiag.functionalize(lambda p, x: x @ p["w"], {"w": jax.random.normal(jax.random.key(seed), (4, 2))})


MODELS = {
    "linen": linen,
    "nnx": lambda seed: ntkdiag.functionalize(nnx.Linear(4, 2, rngs=nnx.Rngs(seed))),
    "equinox": lambda seed: ntkdiag.functionalize(eqx.nn.Linear(4, 2, key=jax.random.key(seed))),
    "plain": plain,
}


def weights_of(params):
    return [weakref.ref(leaf) for leaf in jax.tree.leaves(params)]


@pytest.mark.parametrize("library", MODELS)
def test_parameters_are_let_go(library):
    f, params = MODELS[library](0)
    ntkdiag.ntk(f, params, X)
    alive = weights_of(params)
    del params
    gc.collect()
    assert not any(ref() is not None for ref in alive)  # although f is still there
    assert np.isfinite(np.asarray(ntkdiag.ntk(f, MODELS[library](1).params, X))).all()


def closes_over(seed, size=1000):
    frozen = jax.random.normal(jax.random.key(seed), (4, size))
    f = lambda w, x: jnp.tanh(x @ frozen) @ w
    return f, jnp.ones((size, 1)), weakref.ref(frozen)


def test_few_are_kept_once_they_are_heavy(monkeypatch):
    ntkdiag.clear_caches()
    monkeypatch.setattr(caches, "_HEAVY", 4 * 4 * 1000 * 2 - 1)  # two of these are too heavy
    alive = []
    for seed in range(7):
        f, w, frozen = closes_over(seed)
        ntkdiag.ntk(f, w, X)
        alive.append(frozen)
        del f, w
    jax.clear_caches()
    gc.collect()
    assert [ref() is not None for ref in alive] == [False] * 3 + [True] * 4


def test_cleared():
    f, w, frozen = closes_over(0)
    before = np.asarray(ntkdiag.ntk(f, w, X))
    ntkdiag.clear_caches()
    np.testing.assert_array_equal(ntkdiag.ntk(f, w, X), before)
    del f
    ntkdiag.clear_caches()
    jax.clear_caches()
    gc.collect()
    assert frozen() is None


def test_the_one_not_asked_for_the_longest_goes_first(monkeypatch):
    monkeypatch.setattr(caches, "_KEPT", 2)
    cache = caches.Cache()
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_a_copy_begins_empty():
    kernel_fn = ntkdiag.empirical_ntk_fn(jnp.tanh)
    kernel_fn._prepared.put("a", 1)
    assert copy.deepcopy(kernel_fn)._prepared.get("a") is None
    assert kernel_fn._prepared.get("a") == 1
