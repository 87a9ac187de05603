"""What is kept between calls: programs of functions, not the parameters of the models they were made from."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def test_parameters_are_let_go():
    f, params = ntkdiag.functionalize(eqx.nn.Linear(4, 2, key=jax.random.key(0)))
    ntkdiag.ntk(f, params, X)
    alive = [weakref.ref(leaf) for leaf in jax.tree.leaves(params)]
    del params
    assert released(*alive)  # although f is still there


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
def test_owners_of_methods_are_let_go():
    trainer = Trainer()
    w = jnp.ones((4, 2))
    ntkdiag.Monitor(trainer.forward, train=(X, None), every=1)(0, w)
    ntkdiag.compare(w, w + 1, model=trainer.forward, train=(X, None))
    state = weakref.ref(trainer.state)
    del trainer
    assert released(state)


@pytest.mark.smoke
def test_cleared():
    f, w, _ = closes_over(0)
    before = np.asarray(ntkdiag.ntk(f, w, X))
    ntkdiag.clear_caches()
    np.testing.assert_array_equal(ntkdiag.ntk(f, w, X), before)
