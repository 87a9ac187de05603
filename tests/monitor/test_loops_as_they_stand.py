"""`Monitor` takes what loops hold, and evaluates the model with its statistics at the step."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from internals import Status
from monitor_problem import C, D, H, naive, problem

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
    averaged: Any = None


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.a, self.n = nnx.Linear(D, H, rngs=rngs), nnx.BatchNorm(H, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.b = nnx.Linear(H, C, rngs=rngs)

    def __call__(self, x):
        return self.b(self.dropout(jnp.tanh(self.n(self.a(x)))))


class Equinox(eqx.Module):
    a: eqx.nn.Linear
    n: eqx.nn.BatchNorm
    b: eqx.nn.Linear

    def __init__(self, key):
        self.a = eqx.nn.Linear(D, H, key=key)
        self.n = eqx.nn.BatchNorm(H, axis_name="batch", mode="batch")
        self.b = eqx.nn.Linear(H, C, key=key)

    def __call__(self, x, state):
        x, state = self.n(self.a(x), state)
        return self.b(jnp.tanh(x)), state


def linen_state(tx=None):
    x, _ = data()
    variables = Linen().init(jax.random.key(0), x)
    state = StateOfLoop.create(
        apply_fn=Linen().apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        averaged=variables["params"],
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


@pytest.mark.slow
def test_variables_and_collections_beside_the_parameters_say_the_same():
    x, y = data()
    fn, state = linen_state()
    stats = {"batch_stats": later(state.batch_stats)}
    monitor = kernel_monitor(fn, train=(x, y), every=1, time_share=None)
    whole = monitor(0, {"params": state.params, **stats})
    beside = monitor(1, state.params, model_state=stats)
    alone = monitor(2, state.params)
    np.testing.assert_array_equal(whole.eigenvalues, beside.eigenvalues)
    assert beside.drift == 0
    assert alone.drift > 0.01


@pytest.mark.slow
def test_a_dictionary_of_all_that_is_trained():
    x, y = data()
    fn, state = linen_state(optax.inject_hyperparams(optax.adam)(learning_rate=0.1))
    monitor = kernel_monitor(fn, train=(x, y), every=1, loss="mse", time_share=None)
    held = {name: getattr(state, name) for name in ("params", "batch_stats", "opt_state", "step")}
    of_dictionary = monitor(0, {**held, "averaged": state.params})
    of_train_state = monitor(1, state)
    assert of_dictionary.status == Status.MEASURED
    assert of_train_state.drift == 0
    plain = kernel_monitor(lambda params, x: fn(params, x), train=(x, y))
    assert plain(0, held).trace == pytest.approx(float(of_train_state.trace), rel=1e-5)


def test_an_optimizer_without_its_model_is_refused():
    x, y = data()
    model = Nnx(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    with pytest.warns(RuntimeWarning) as caught:
        assert kernel_monitor(functionalize(model), train=(x, y))(0, optimizer) is None
    assert (
        "monitor(step, params): expected the model, or its parameters; got a Optimizer that holds neither. "
        "Pass both: monitor(step, model, optimizer)."
    ) in str(caught[0].message)


class Adapted(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.LoRALinear(D, H, lora_rank=2, rngs=rngs)
        self.b = nnx.Linear(H, C, rngs=rngs)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


@pytest.mark.parametrize("wrt", [nnx.Param, nnx.LoRAParam])
def test_an_optimizer_of_nnx_is_read_as_optax_would_be(wrt):
    x, y = data()
    model = Adapted(nnx.Rngs(0))
    tx = optax.adam(0.1)
    optimizer = nnx.Optimizer(model, tx, wrt=wrt)

    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    for _ in range(3):
        gradient = nnx.grad(loss, argnums=nnx.DiffState(0, wrt))(model)
        optimizer.update(model, gradient)
    fn = functionalize(model, trainable=wrt)

    def margin(*arguments, **keywords):
        monitor = Monitor(
            fn, train=(x, y), loss="cross_entropy", optimizer=tx, instruments="spectral"
        )
        return monitor(0, *arguments, **keywords).margin

    params = nnx.as_pure(nnx.state(model, wrt))
    state = nnx.as_pure(optimizer.opt_state)
    expected = margin(params, state)
    assert np.isfinite(expected)
    np.testing.assert_allclose(margin(model, optimizer), expected, rtol=1e-5)
    # The gradient, too, comes as NNX has it.
    gradient = nnx.grad(loss, argnums=nnx.DiffState(0, wrt))(model)
    verified = margin(params, state, gradient=nnx.as_pure(gradient))
    np.testing.assert_allclose(margin(model, optimizer, gradient=gradient), verified, rtol=1e-5)


def test_statistics_that_the_call_does_not_bring_are_those_of_the_probe():
    x, y = data()
    fn, state = linen_state()
    memory = InMemory()
    measured = kernel_monitor(fn, train=(x, y), writers=memory)(0, state.params)
    params = state.params
    hidden = x @ params["a"]["kernel"] + params["a"]["bias"]
    stats = {"n": {"mean": hidden.mean(axis=0), "var": hidden.var(axis=0)}}
    [expected] = traces(functional_of_linen, x, {"params": params, "batch_stats": stats})
    np.testing.assert_allclose(measured.trace, expected, rtol=1e-4)
    notes = memory.record["notes"]
    assert (
        "Running statistics were not handed in (model_state=): the kernel is evaluated with those "
        "of the probe, at the parameters of the step." in notes
    )
    assert not any(note.startswith("Held at") for note in notes)


def functional_of_linen(variables):
    return functionalize(Linen(), variables)


def test_parameters_that_are_not_trained_are_followed_too():
    x, y = data()
    _, state = linen_state()
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    monitor = kernel_monitor(
        functionalize(Linen(), variables, trainable="b/**"), train=(x, y), every=1, time_share=None
    )
    moved = {**variables, "params": {**state.params, "a": later(state.params["a"])}}

    def built(variables):
        return functionalize(Linen(), variables, trainable="b/**")

    measured = [monitor(step, held).trace for step, held in enumerate([variables, moved])]
    np.testing.assert_allclose(measured, traces(built, x, variables, moved), rtol=1e-4)


def test_statistics_of_a_batch_are_not_followed():
    x, y = data()
    _, state = linen_state()
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    fn = functionalize(Linen(), variables, mode="train", statistics=x)
    monitor = kernel_monitor(fn, train=(x, y), every=1, time_share=None)
    measured = [monitor(step, held) for step, held in enumerate([state.params, variables])]
    assert [one.status for one in measured] == [Status.MEASURED, Status.MEASURED]
    assert measured[0].trace == measured[1].trace


@pytest.mark.slow
@pytest.mark.parametrize("held", ["model", "state", "optimizer"])
def test_nnx_as_loops_hold_it(held):
    x, y = data()
    model = Nnx(nnx.Rngs(0))
    fn = functionalize(model)
    optimizer = nnx.ModelAndOptimizer(
        model, optax.inject_hyperparams(optax.sgd)(learning_rate=0.2), wrt=nnx.Param
    )
    memory = InMemory()
    monitor = kernel_monitor(fn, train=(x, y), every=1, loss="mse", writers=memory, time_share=None)

    def measure(step):
        if held == "optimizer":
            return monitor(step, optimizer)
        return monitor(step, model if held == "model" else nnx.state(model), optimizer)

    def built(model):
        return functionalize(model)

    expected = []
    for step in range(3):
        measured = measure(step)
        expected += traces(built, x, model)
        np.testing.assert_allclose(
            measured.margin, 0.2 / measured.critical_learning_rate, rtol=1e-5
        )
        model.train()
        grads = nnx.grad(lambda model: jnp.mean(model(3 * x) ** 2))(model)
        optimizer.update(grads)
    np.testing.assert_allclose(memory.series("trace"), expected, rtol=1e-4)
    assert memory.series("status") == [Status.MEASURED] * 3
    assert "Taken as they are at each step: n/mean, n/var." in memory.record["notes"]


@pytest.mark.long
@pytest.mark.parametrize("as_pair", [True, False], ids=["pair", "model_state="])
def test_an_equinox_state_is_followed(as_pair):
    x, y = data()
    model, state = eqx.nn.make_with_state(Equinox)(jax.random.key(0))
    _, state = trained_on(model, x, state)
    fn, memory = functionalize(model, state=state), InMemory()
    monitor = kernel_monitor(fn, train=(x, y), every=1, writers=memory, time_share=None)
    expected = []
    for step in range(3):
        expected += traces(lambda state: functionalize(model, state=state), x, state)
        if as_pair:
            monitor(step, (model, state))
        else:
            monitor(step, eqx.filter(model, eqx.is_array), model_state=state)
        _, state = trained_on(model, 3 * x, state)
    np.testing.assert_allclose(memory.series("trace"), expected, rtol=1e-4)
    assert (
        "Taken as they are at each step: state/n/counter, state/n/mean, state/n/var."
        in memory.record["notes"]
    )


def trained_on(model, x, state):
    """One pass in train mode: outputs, and the state with statistics of x in it."""
    return jax.vmap(model, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)


def test_following_compiles_once():
    x, y = data()
    model, state = eqx.nn.make_with_state(Equinox)(jax.random.key(0))
    traced = []

    def counted(x):
        traced.append(1)
        return x

    model = eqx.tree_at(
        lambda model: model.b, model, eqx.nn.Sequential([model.b, eqx.nn.Lambda(counted)])
    )
    _, state = trained_on(model, x, state)
    monitor = kernel_monitor(
        functionalize(model, state=state), train=(x, y), every=1, time_share=None
    )
    counts = []
    for step in range(3):
        monitor(step, (model, state))
        traced_before = len(traced)
        _, state = trained_on(model, 3 * x, state)
        counts.append(traced_before)
        traced.clear()
    assert counts[2] < counts[0] / 3


def test_another_state_is_refused():
    x, y = data()
    model, state = eqx.nn.make_with_state(Equinox)(jax.random.key(0))
    _, state = trained_on(model, x, state)
    other = eqx.nn.State(eqx.nn.Linear(D, C, key=jax.random.key(0)))
    monitor = kernel_monitor(functionalize(model, state=state), train=(x, y))
    with pytest.warns(RuntimeWarning) as caught:
        assert monitor(0, (model, other)) is None
    assert (
        "StructureError: monitor(step, params): expected the State of the measured model, int32[]; float32[4]; "
        "float32[4]; got one with nothing. "
        "Build f with ntkdiag.functionalize(model, state=state) from the model in training."
    ) in str(caught[0].message)


def test_a_plain_function_takes_the_parameters_of_a_train_state_and_no_statistics():
    x, y = data()
    fn, state = linen_state()
    monitor = kernel_monitor(
        lambda params, x: fn(params, x), train=(x, y), every=1, time_share=None
    )
    np.testing.assert_allclose(
        monitor(0, state).trace, naive(fn.params, fn.params, x=x, model=fn)["trace"], rtol=1e-4
    )
    with pytest.warns(RuntimeWarning) as caught:
        assert monitor(1, state.params, model_state={"batch_stats": state.batch_stats}) is None
    assert (
        "monitor(step, params, model_state=...): expected f as a Functional, which knows where running statistics "
        "belong; got a plain function. Pass ntkdiag.functionalize(model, ...) for f, or a function of all variables."
    ) in str(caught[0].message)
