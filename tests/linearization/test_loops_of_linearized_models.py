"""A linearized model goes through the loop that its network went through, call by call."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from models_contract import Linen

from ntkdiag.linearization import linearized_model

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)


def linen_loop(model):
    """Three steps as for a network with running statistics and dropout; the losses, and these."""
    variables = model.init(jax.random.key(0), X, train=False)
    params, batch_stats = variables["params"], variables["batch_stats"]
    tx = optax.sgd(0.05)
    state = tx.init(params)

    @jax.jit
    def step(params, batch_stats, state, key):
        def loss_of(params):
            outputs, updates = model.apply(
                {"params": params, "batch_stats": batch_stats},
                X,
                train=True,
                mutable=["batch_stats"],
                rngs={"dropout": key},
            )
            return jnp.mean((outputs - Y) ** 2), updates["batch_stats"]

        (loss, batch_stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), batch_stats, state, loss

    losses = []
    for number in range(3):
        params, batch_stats, state, loss = step(params, batch_stats, state, jax.random.key(number))
        losses.append(float(loss))
    model.apply({"params": params, "batch_stats": batch_stats}, X, False)  # by position, as well
    return losses, batch_stats


@pytest.mark.slow
def test_linen():
    network = Linen()
    variables = network.init(jax.random.key(0), X, train=False)
    _, moved = linen_loop(network)
    losses, batch_stats = linen_loop(linearized_model(network, variables))
    # In eval mode: the loss begins at that of the network in eval mode, and falls.
    at_start = jnp.mean((network.apply(variables, X, train=False) - Y) ** 2)
    np.testing.assert_allclose(losses[0], at_start, rtol=1e-5)
    assert losses[0] > losses[1] > losses[2]
    # The statistics come back as they went in; those of the network moved.
    jax.tree.map(np.testing.assert_array_equal, batch_stats, variables["batch_stats"])
    assert not np.allclose(moved["BatchNorm_0"]["mean"], 0)


class Equinox(eqx.Module):
    """A state, a key and batch statistics."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(3, 6, key=keys[0])
        self.norm = eqx.nn.BatchNorm(6, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)
        self.last = eqx.nn.Linear(6, 2, key=keys[1])

    def __call__(self, x, state, key=None):
        x, state = self.norm(self.first(x), state)
        return self.last(self.dropout(jnp.tanh(x), key=key)), state


def equinox_loop(model, state):
    """Three steps as for a network with a state and dropout."""
    tx = optax.sgd(0.05)
    optimizer_state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state, optimizer_state, key):
        def loss_of(model):
            batched = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
            outputs, new_state = batched(X, state, jax.random.split(key, 5))
            return jnp.mean((outputs - Y) ** 2), new_state

        (loss, new_state), gradient = eqx.filter_value_and_grad(loss_of, has_aux=True)(model)
        updates, optimizer_state = tx.update(gradient, optimizer_state)
        return eqx.apply_updates(model, updates), new_state, optimizer_state, loss

    losses = []
    for number in range(3):
        model, state, optimizer_state, loss = step(
            model, state, optimizer_state, jax.random.key(number)
        )
        losses.append(float(loss))
    return losses, state


@pytest.mark.slow
def test_equinox():
    network, state = eqx.nn.make_with_state(Equinox)(jax.random.key(0))
    values = jax.tree.leaves(state)
    lin = linearized_model(network, state=state)
    evaluated = eqx.nn.inference_mode(network)
    outputs, _ = jax.vmap(evaluated, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
        X, state
    )
    losses, state_after = equinox_loop(lin, state)
    np.testing.assert_allclose(losses[0], jnp.mean((outputs - Y) ** 2), rtol=1e-4)
    assert losses[0] > losses[1] > losses[2]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state_after), values)
    assert lin(X[0], key=jax.random.key(0)).shape == (2,)  # without a state, outputs alone
    equinox_loop(network, state)
