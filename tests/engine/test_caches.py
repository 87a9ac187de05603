"""What is kept between calls: programs of functions, not the parameters of the models they were made from."""

import copy
import gc
import itertools
import weakref

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import ntkdiag
from ntkdiag.jaxtools import caching

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def linen(seed):
    model = nn.Dense(2)
    return ntkdiag.functionalize(model, model.init(jax.random.key(seed), X))


def plain(seed):
    return ntkdiag.functionalize(
        lambda p, x: x @ p["w"], {"w": jax.random.normal(jax.random.key(seed), (4, 2))}
    )


MODELS = {
    "linen": linen,
    "nnx": lambda seed: ntkdiag.functionalize(nnx.Linear(4, 2, rngs=nnx.Rngs(seed))),
    "equinox": lambda seed: ntkdiag.functionalize(eqx.nn.Linear(4, 2, key=jax.random.key(seed))),
    "plain": plain,
}


def weights_of(params):
    return [weakref.ref(leaf) for leaf in jax.tree.leaves(params)]


@pytest.mark.parametrize(
    "library",
    ["plain", *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n != "plain")],
)
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


def released(*references):
    gc.collect()
    return all(reference() is None for reference in references)


@pytest.mark.slow
def test_programs_go_with_their_function():
    f, w, frozen = closes_over(0)
    ntkdiag.ntk(f, w, X)
    ntkdiag.ntk(f, w, X[:2], reduction="full")
    assert not released(frozen)
    del f
    assert released(frozen)


class Trainer:
    """What an entry must not keep: data, and the state of an optimizer."""

    def __init__(self):
        self.state = jnp.ones(1000)

    def forward(self, params, x):
        return jnp.tanh(x @ params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        lambda f, w: ntkdiag.ntk(f, w, X),
        lambda f, w: ntkdiag.Monitor(f, train=(X, None))(0, w),
        lambda f, w: ntkdiag.neural_tangents.empirical_ntk_fn(f)(X, None, w),
        lambda f, w: ntkdiag.compare(w, w + 1, model=f, train=(X, None)),
    ],
    ids=["ntk", "Monitor", "compat", "compare"],
)
def test_owners_of_methods_are_let_go(use):
    trainer = Trainer()
    use(trainer.forward, jnp.ones((4, 2)))
    state = weakref.ref(trainer.state)
    del trainer
    assert released(state)


@pytest.mark.smoke
def test_cleared():
    f, w, _ = closes_over(0)
    before = np.asarray(ntkdiag.ntk(f, w, X))
    ntkdiag.clear_caches()
    np.testing.assert_array_equal(ntkdiag.ntk(f, w, X), before)


def test_the_one_not_asked_for_the_longest_goes_first(monkeypatch):
    monkeypatch.setattr(caching, "_KEPT", 2)
    cache = caching.Cache()
    f = lambda x: x
    cache.put(f, "a", 1)
    cache.put(f, "b", 2)
    assert cache.get(f, "a") == 1
    cache.put(f, "c", 3)
    assert (cache.get(f, "a"), cache.get(f, "b"), cache.get(f, "c")) == (1, None, 3)


def test_a_copy_begins_empty():
    kernel_fn = ntkdiag.neural_tangents.empirical_ntk_fn(jnp.tanh)
    kernel_fn._prepared.put(jnp.tanh, "a", 1)
    assert copy.deepcopy(kernel_fn)._prepared.get(jnp.tanh, "a") is None
    assert kernel_fn._prepared.get(jnp.tanh, "a") == 1


def test_functions_that_entries_hold_go_with_them():
    """What an entry lets go is a function with an entry of its own: all of them in one change."""
    cache = caching.Cache()
    functions = [lambda: None for _ in range(5)]
    for function, held in itertools.pairwise(functions):
        for key in ("a", "b"):
            cache.put(function, key, held)
    cache.put(functions[-1], "a", 1)
    first = functions[0]
    gone = weakref.ref(functions[-1])
    del functions, function, held
    del first
    gc.collect()
    assert gone() is None
