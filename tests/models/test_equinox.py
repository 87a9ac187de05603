"""The obvious ways to handle an Equinox model that are wrong: one test shows each of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models_noisy import EquinoxNet, X, first_key, second_key

from ntkdiag.models import functionalize


def test_integer_buffers_are_not_parameters():
    class Net(eqx.Module):
        linear: eqx.nn.Linear
        order: jax.Array
        table: np.ndarray

        def __call__(self, x):
            return self.linear(x)[self.order] * self.table

    net = Net(
        eqx.nn.Linear(4, 3, key=first_key()),
        jnp.array([2, 0, 1]),
        np.array([1.0, 2.0, 3.0], np.float32),
    )
    arrays, static = eqx.partition(net, eqx.is_array)
    with pytest.raises(TypeError, match="int32"):
        jax.jacrev(lambda p: jax.vmap(eqx.combine(p, static))(X))(arrays)
    fn = functionalize(net)
    assert fn.params.order is None
    assert isinstance(fn.params.table, jax.Array)
    assert len(jax.tree.leaves(fn.params)) == 3
    np.testing.assert_allclose(fn(fn.params, X), jax.vmap(net)(X), rtol=1e-6)
    buffers_held = functionalize(net, trainable="linear/*")
    assert len(jax.tree.leaves(buffers_held.params)) == 2
    assert set(buffers_held.fixed) == {"order", "table"}


def test_a_state_is_used_more_than_once_in_a_trace():
    module, state = eqx.nn.make_with_state(EquinoxNet)(first_key())
    fn = functionalize(module, state=state)
    quiet = eqx.nn.inference_mode(module)
    expected = jax.vmap(lambda x: quiet(x, state)[0])(X)
    twice = jax.jit(lambda p, x: fn(p, x) + fn(p, x))
    np.testing.assert_allclose(twice(fn.params, X), 2 * expected, rtol=1e-5)
    assert module.dropout.inference is False
    # Training goes on and uses the state up; the Functional keeps what it was given.
    step = jax.vmap(lambda x, key: module(x, state, key=key), axis_name="batch", out_axes=(0, None))
    step(X, jax.random.split(second_key(), 3))
    with pytest.raises(ValueError, match="old state"):
        jax.tree.leaves(state)
    np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-5)
    assert len([path for path in fn.fixed if path.startswith("state/")]) >= 2


def test_shared_equinox_layers_count_once_and_tied_arrays_are_pointed_out():
    embed = eqx.nn.Embedding(5, 4, key=first_key())
    head = eqx.nn.Linear(4, 5, use_bias=False, key=first_key())
    shared = eqx.nn.Shared((embed, head), lambda pair: pair[1].weight, lambda pair: pair[0].weight)

    class Tied(eqx.Module):
        pair: eqx.Module

        def __call__(self, token):
            embed, head = self.pair() if isinstance(self.pair, eqx.nn.Shared) else self.pair
            return head(embed(token))

    assert len(jax.tree.leaves(functionalize(Tied(shared)).params)) == 1
    naive = Tied((embed, eqx.tree_at(lambda m: m.weight, head, embed.weight)))
    with pytest.warns(UserWarning, match="Tie them with equinox.nn.Shared") as caught:
        fn = functionalize(naive)
    assert len(jax.tree.leaves(fn.params)) == 2
    assert caught[0].filename == __file__
