"""The obvious ways to handle a Flax linen model that are wrong: one test shows each of them."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax.training import train_state
from models_noisy import LinenNet, X, first_key, linen_variables, same, second_key, snapshot

from ntkdiag import errors
from ntkdiag.models import functionalize


class State(train_state.TrainState):
    batch_stats: dict
    key: jax.Array


def test_a_train_state_gives_its_collections():
    variables = linen_variables()
    tx = optax.adam(1e-3)
    state = State.create(apply_fn=LinenNet().apply, tx=tx, key=first_key(), **variables)
    expected = LinenNet().apply(variables, X, train=False)
    jitted = state.replace(apply_fn=jax.jit(LinenNet().apply, static_argnames="train"))
    for fn in (functionalize(LinenNet(), state), functionalize(state), functionalize(jitted)):
        np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
        assert set(fn.restore(fn.params)) == {"params", "batch_stats"}
    stepped = state.apply_gradients(grads=state.params)
    assert same(snapshot(fn.extract(stepped)), snapshot(stepped.params))
    with pytest.raises(errors.InvalidInputError, match=r"functionalize\(module, state\)"):
        functionalize(state.replace(apply_fn=lambda variables, x: x))
    # Some keep all collections under `params`.
    whole = train_state.TrainState.create(apply_fn=LinenNet().apply, params=variables, tx=tx)
    fn = functionalize(LinenNet(), whole)
    np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
    assert len(fn.fixed) == 2


def test_partitioned_parameters_are_unboxed_and_boxed_again():
    dense = nn.Dense(
        2, kernel_init=nn.with_partitioning(nn.initializers.lecun_normal(), ("embed", None))
    )
    variables = dense.init(first_key(), X)
    assert isinstance(variables["params"]["kernel"], nn.Partitioned)
    fn = functionalize(dense, variables)
    assert isinstance(fn.params["kernel"], jax.Array)
    np.testing.assert_allclose(fn(fn.params, X), dense.apply(variables, X), rtol=1e-6)
    restored = fn.restore(fn.params)
    assert restored["params"]["kernel"].names == ("embed", None)
    assert same(snapshot(fn.extract(restored)), snapshot(fn.params))


def test_switches_that_are_fields_follow_the_mode():
    class Net(nn.Module):
        train: bool = True
        deterministic: bool | None = None

        @nn.compact
        def __call__(self, x, deterministic=None):
            deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
            x = nn.Dropout(0.5, deterministic=deterministic)(nn.Dense(4)(x))
            return nn.Dropout(0.5, deterministic=not self.train)(x)

    variables = Net(train=False).init(first_key(), X, deterministic=True)
    expected = Net(train=False).apply(variables, X, deterministic=True)
    for net in (Net(), Net(deterministic=False)):
        fn = functionalize(net, variables)
        np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
    noisy = functionalize(Net(train=False), variables, mode="train", rngs={"dropout": second_key()})
    assert np.mean(np.asarray(noisy(noisy.params, X)) == 0) > 0.3
