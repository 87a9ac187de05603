"""The obvious ways to handle a Flax NNX model that are wrong: one test shows each of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models_noisy import NNXNet, X, same, snapshot
from reference import ntk

from ntkdiag.models import functionalize


def test_the_state_of_an_nnx_model_is_not_its_parameters():
    model = NNXNet()
    graph, state = nnx.split(model)
    with pytest.raises(TypeError, match="uint32"):
        jax.jacrev(lambda s: nnx.merge(graph, s, copy=True)(X))(state)
    model.eval()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    model.train()
    fn = functionalize(model, call_kwargs={})
    by_params = ntk(lambda p, x: nnx.merge(graph, p, rest, copy=True)(x), params, X)
    np.testing.assert_allclose(ntk(fn.apply, fn.params, X), by_params, rtol=1e-12)
    floating = nnx.state(model, (nnx.Param, nnx.BatchStat))
    assert len(jax.tree.leaves(floating)) == len(jax.tree.leaves(fn.params)) + 2


def test_the_users_later_updates_do_not_show_through():
    model = NNXNet()
    fn, naive = functionalize(model), nnx.split(model, nnx.Param, ...)[2]
    before = fn(fn.params, X)
    model.norm.mean[...] = jnp.full(4, 9.0)
    model.first.kernel[...] = jnp.zeros((4, 4))
    assert naive["norm"]["mean"][0] == 9.0
    np.testing.assert_array_equal(fn(fn.params, X), before)
    assert fn.fixed["norm/mean"][0] == 0.0
    assert fn.restore(fn.params).norm.mean[0] == 0.0
    np.testing.assert_array_equal(fn.extract(model)["again"]["kernel"], np.zeros((4, 4)))


def test_nnx_filters_and_globs():
    for trainable, leaves in [
        (nnx.Param, 4),
        ((nnx.Param, nnx.BatchStat), 6),
        (nnx.All(nnx.Param, nnx.PathContains("norm")), 2),
        ("**/bias", 2),
        (lambda path, leaf: path.startswith("norm"), 2),
    ]:
        model = NNXNet()
        fn, whole = functionalize(model, trainable=trainable), functionalize(model)
        assert len(jax.tree.leaves(fn.params)) == leaves
        np.testing.assert_allclose(fn(fn.params, X), whole(whole.params, X), rtol=1e-6)
        assert same(snapshot(nnx.state(fn.restore(fn.params))), snapshot(nnx.state(model)))
