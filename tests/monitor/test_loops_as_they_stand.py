"""`Monitor` takes what loops hold, and evaluates the model with its statistics at the step."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from internals import Status
from monitor_problem import C, H, naive, problem

from ntkdiag.models import functionalize
from ntkdiag.monitor import InMemory, Monitor

kernel_monitor = functools.partial(Monitor, instruments="kernel")


def data():
    _, x, y = problem()
    return x.astype(np.float32), y


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train, name="n")(nn.Dense(H, name="a")(x))
        return nn.Dense(C, name="b")(jnp.tanh(x))


class StateOfLoop(TrainState):
    batch_stats: Any


def linen_state(tx=None):
    x, _ = data()
    variables = Linen().init(jax.random.key(0), x)
    state = StateOfLoop.create(
        apply_fn=Linen().apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=tx or optax.sgd(0.1),
    )
    return functionalize(Linen(), variables), state


def later(tree):
    """Running statistics after some training: other means, larger variances."""
    return jax.tree.map(lambda leaf: 1.5 * leaf + 0.5, tree)


def traces(functional, x, *states):
    """The traces of the naive kernel of a Functional built anew for each of some models."""
    values = []
    for model in states:
        fn = functional(model)
        values.append(naive(fn.params, fn.params, x=x, model=fn.apply)["trace"])
    return values


@pytest.mark.slow
def test_a_train_state_is_followed_with_its_statistics():
    x, y = data()
    fn, state = linen_state(optax.adam(0.1))
    memory = InMemory()
    monitor = kernel_monitor(fn, train=(x, y), every=1, loss="mse", writers=memory, time_share=None)
    moved = dataclasses.replace(state, batch_stats=later(state.batch_stats))
    assert [monitor(step, held).status for step, held in enumerate([state, moved])] == [1, 1]

    def built(state):
        return functionalize(Linen(), {"params": state.params, "batch_stats": state.batch_stats})

    np.testing.assert_allclose(memory.series("trace"), traces(built, x, state, moved), rtol=1e-4)
    assert memory.series("drift")[1] > 0.01  # statistics alone change the kernel
    notes = memory.record["notes"]
    assert "Taken as they are at each step: batch_stats/n/mean, batch_stats/n/var." in notes
    assert not any(note.startswith("Held at") for note in notes)


def test_statistics_of_a_batch_are_not_followed():
    x, y = data()
    _, state = linen_state()
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    fn = functionalize(Linen(), variables, mode="train", statistics=x)
    monitor = kernel_monitor(fn, train=(x, y), every=1, time_share=None)
    measured = [monitor(step, held) for step, held in enumerate([state.params, variables])]
    assert [one.status for one in measured] == [Status.MEASURED, Status.MEASURED]
    assert measured[0].trace == measured[1].trace
