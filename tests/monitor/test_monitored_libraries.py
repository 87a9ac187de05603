"""`watch` beside parameters and statistics of Linen that are not trained."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Status
from monitor_problem import C, H, naive, problem

from ntkdiag import errors
from ntkdiag.models import functionalize
from ntkdiag.monitor import InMemory, watch

get = optax.tree_utils.tree_get
kernel_watch = functools.partial(watch, instruments="kernel")


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(C, name="b")(jnp.tanh(nn.Dense(H, name="a")(x)))


class LinenNormed(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(H, name="a")(x)
        return nn.Dense(C, name="b")(
            jnp.tanh(nn.BatchNorm(use_running_average=not train, name="n")(x))
        )


def data():
    _, x, y = problem()
    return x.astype(np.float32), y


def linen():
    x, _ = data()
    return LinenModel(), LinenModel().init(jax.random.key(0), x)


@pytest.mark.slow
def test_other_parameters_are_refused():
    x, y = data()
    model, variables = linen()
    tx = watch(optax.sgd(0.1), functionalize(model, variables), train=(x, y))
    params = variables["params"]
    other = {"a": params["a"], "c": params["b"], "b": {"kernel": params["b"]["kernel"][:, :1]}}
    with pytest.raises(errors.StructureError, match="b/bias: missing, expected float32"):
        tx.init(other)
    # Later they leave the step unmeasured: training goes on.
    state = tx.init(params)
    other = {**params, "b": jax.tree.map(lambda leaf: leaf[..., :1], params["b"])}
    with pytest.warns(RuntimeWarning, match="b/kernel: expected float32"):
        updates, state = jax.jit(tx.update)(other, state, other)
    jax.tree.map(np.testing.assert_array_equal, updates, optax.tree.scale(-0.1, other))
    assert int(state.ntk_status) == Status.UNMEASURED


@pytest.mark.slow
def test_frozen_parameters_in_the_optimizer_are_followed():
    x, y = data()
    model, variables = linen()
    fn, memory = functionalize(model, variables, trainable="b/**"), InMemory()
    tx = kernel_watch(optax.sgd(0.1), fn, train=(x, y), every=1, writers=memory)
    params, state = variables["params"], tx.init(variables["params"])
    moved = {**params, "a": jax.tree.map(lambda a: a + 1, params["a"])}
    for p in (params, moved, params):
        _, state = jax.jit(tx.update)(p, state, p)
    jax.effects_barrier()
    assert memory.series("status") == [Status.MEASURED] * 3
    expected = []
    for held in (params, moved, params):
        at = functionalize(model, {"params": held}, trainable="b/**")
        expected.append(naive(at.params, at.params, x=x, model=at.apply)["trace"])
    assert expected[0] != pytest.approx(expected[1], rel=0.1)
    np.testing.assert_allclose(memory.series("trace"), expected, rtol=1e-5)
    note = "Taken as they are at each step: params/a/bias, params/a/kernel."
    assert note in memory.record["notes"]


@pytest.mark.slow
def test_statistics_of_a_batch_are_those_of_the_probe_or_the_ones_handed_in():
    x, y = data()
    model = LinenNormed()
    variables = model.init(jax.random.key(0), x)
    fn, memory = functionalize(model, variables), InMemory()
    tx = kernel_watch(optax.sgd(0.1), fn, train=(x, y), every=1, writers=memory)
    params, state = variables["params"], tx.init(variables["params"])
    stats = jax.tree.map(lambda leaf: 1.5 * leaf + 0.5, variables["batch_stats"])

    for model_state in (None, {"batch_stats": stats}):
        _, state = tx.update(params, state, params, model_state=model_state)
    # By themselves they are those of the probe, which have no gradient.
    hidden = x @ params["a"]["kernel"] + params["a"]["bias"]
    probe_stats = {"n": {"mean": hidden.mean(0), "var": hidden.var(0)}}
    expected = []
    for batch_stats in (probe_stats, stats):
        fixed = {"params": params, "batch_stats": batch_stats}
        evaluate = functionalize(model, fixed).apply
        expected.append(naive(params, params, x=x, model=evaluate)["trace"])
    np.testing.assert_allclose(memory.series("trace"), expected, rtol=1e-4)
    assert memory.series("status") == [Status.MEASURED] * 2
    assert any("were not handed in (model_state=)" in note for note in memory.record["notes"])
