"""`unwatch`: checkpoints with and without `watch` restore into each other."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from flax.training.train_state import TrainState
from monitor_problem import f, loss, problem

from ntkdiag.monitor import record, rewatch, unwatch, watch


def adam():
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


def watched(optimizer=None):
    _, x, y = problem()
    optimizer = adam() if optimizer is None else optimizer
    return watch(optimizer, f, train=(jnp.float32(x), y), every=2, instruments="norms")


def state_of(tx):
    params, _, _ = problem()
    params = jax.tree.map(jnp.float32, params)
    return TrainState.create(apply_fn=nn.Dense(1).apply, params=params, tx=tx)


def trained(state, steps):
    _, x, y = problem()

    @jax.jit
    def step(params, opt_state):
        updates, opt_state = state.tx.update(jax.grad(loss)(params, x, y), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params, opt_state = state.params, state.opt_state
    for _ in range(steps):
        params, opt_state = step(params, opt_state)
    return state.replace(params=params, opt_state=opt_state, step=state.step + steps)


def assert_same(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def saved_and_restored(path, state, template):
    """What Orbax makes of a state, in the structure of a template."""
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "checkpoint", state)
    abstract = jax.tree.map(orbax.utils.to_shape_dtype_struct, template)
    with orbax.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / "checkpoint", abstract)


def test_watch_is_found_wherever_it_is():
    params, _, _ = problem()
    inner = optax.chain(optax.clip(1.0), watched(optax.adam(1e-2)))
    tx = optax.MultiSteps(inner, 2)
    without = optax.MultiSteps(optax.chain(optax.clip(1.0), optax.adam(1e-2)), 2)
    state = tx.init(params)
    assert_same(unwatch(state), without.init(params))
    assert_same(unwatch(watched(watched(adam())).init(params)), adam().init(params))


@pytest.mark.slow
def test_a_checkpoint_without_watch_restores_into_a_watched_run(tmp_path):
    plain = trained(state_of(adam()), 3)
    fresh = state_of(watched())
    template = fresh.replace(opt_state=unwatch(fresh.opt_state))
    restored = saved_and_restored(tmp_path, plain, template)
    opt_state = jax.jit(lambda *args: rewatch(fresh.tx, *args))(restored.opt_state, restored.params)
    resumed = fresh.replace(params=restored.params, opt_state=opt_state, step=restored.step)
    continued = trained(resumed, 2)
    assert_same(continued.params, trained(plain, 2).params)
    assert record(continued.opt_state)["step"] == 4  # from the counter of the optimizer


@pytest.mark.slow
def test_a_watched_run_goes_on_from_its_checkpoint(tmp_path):
    before = trained(state_of(watched()), 3)
    restored = saved_and_restored(tmp_path, before, state_of(watched()))
    assert_same(restored.opt_state, before.opt_state)
    # And without `watch`.
    plain = trained(state_of(adam()), 3)
    assert_same(unwatch(restored.opt_state), plain.opt_state)
    assert_same(trained(restored, 2).opt_state, trained(before, 2).opt_state)
