"""`watch` in the optimizers of each library and inside Optax's own wrappers."""

import functools

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
from monitor_problem import C, D, H, f, loss, naive, problem

from ntkdiag import Monitor, errors
from ntkdiag.models import functionalize
from ntkdiag.monitor import InMemory, WatchState, watch

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


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(D, H, rngs=rngs), nnx.Linear(H, C, rngs=rngs)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


def data():
    _, x, y = problem()
    return x.astype(np.float32), y


def linen():
    x, _ = data()
    return LinenModel(), LinenModel().init(jax.random.key(0), x)


def squared(outputs, y):
    return 0.5 * jnp.mean(jnp.sum((outputs - jax.nn.one_hot(y, C)) ** 2, axis=1))


def check(memory, fn, trajectory, *, learning_rate=None):
    """Every measurement against the naive kernel at the parameters of its step, which `trajectory` holds."""
    _, y = data()
    x, first = data()[0], memory.steps[0]
    for row in memory.rows:
        expected = naive(
            trajectory[row["step"]],
            trajectory[first],
            x=x,
            y=y,
            learning_rate=learning_rate,
            model=fn.apply,
        )
        for name in ("trace", "participation_ratio", "alignment"):
            np.testing.assert_allclose(row[f"{name}"], expected[name], rtol=1e-5)
        np.testing.assert_allclose(row["drift"], expected["drift"], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(row["eigenvalues"], expected["eigenvalues"][:5], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, True], ids=["params", "variables"])
def test_linen_train_state(whole):
    x, y = data()
    model, variables = linen()
    fn, memory = functionalize(model, variables), InMemory()
    tx = kernel_watch(optax.sgd(0.1), fn, train=(x, y), every=2, writers=memory)
    params = variables if whole else variables["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    @jax.jit
    def step(state):
        def objective(params):
            return squared(state.apply_fn(params if whole else {"params": params}, x), y)

        return state.apply_gradients(grads=jax.grad(objective)(state.params))

    trajectory = []
    for _ in range(5):
        trajectory.append(state.params["params"] if whole else state.params)
        state = step(state)
    jax.effects_barrier()
    assert memory.steps == [0, 2, 4]
    assert memory.record["library"] == "linen"
    assert memory.record["mode"] == "eval"
    check(memory, fn, trajectory)
    np.testing.assert_allclose(get(state.opt_state, "ntk_trace"), memory.rows[-1]["trace"])


@pytest.mark.slow
def test_nnx_optimizer():
    x, y = data()
    model = NnxModel(nnx.Rngs(0))
    fn, memory = functionalize(model), InMemory()
    tx = kernel_watch(optax.adam(0.01), fn, train=(x, y), every=2, writers=memory)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda model: squared(model(x), y))(model))

    trajectory = []
    for _ in range(3):
        trajectory.append(fn.extract(model))
        step(model, optimizer)
    jax.effects_barrier()
    assert memory.steps == [0, 2]
    check(memory, fn, trajectory)
    trace = get(optimizer.opt_state, "ntk_trace")
    np.testing.assert_allclose(np.asarray(trace[...]), memory.rows[-1]["trace"])
    # The host hook takes the model itself.
    measurement = Monitor(fn, train=(x, y), instruments="kernel")(0, model)
    np.testing.assert_allclose(
        measurement.trace, naive(fn.extract(model), trajectory[0], x=x, model=fn)["trace"], 1e-5
    )


@pytest.mark.slow
def test_equinox():
    x, y = data()
    model = eqx.nn.MLP(D, C, H, 1, activation=jnp.tanh, key=jax.random.key(0))
    fn, memory = functionalize(model), InMemory()
    tx = kernel_watch(optax.sgd(0.1), fn, train=(x, y), every=1, writers=memory)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    state = tx.init(params)

    @eqx.filter_jit
    def step(params, state):
        grads = eqx.filter_grad(
            lambda params: squared(jax.vmap(eqx.combine(params, static))(x), y)
        )(params)
        updates, state = tx.update(grads, state, params)
        return eqx.apply_updates(params, updates), state

    trajectory = []
    for _ in range(2):
        trajectory.append(params)
        params, state = step(params, state)
    jax.effects_barrier()
    assert memory.steps == [0, 1]
    check(memory, fn, trajectory)


def run(tx, steps, params, grads=None):
    _, x, y = problem()
    state, trajectory = tx.init(params), []
    update = jax.jit(tx.update)
    for step in range(steps):
        trajectory.append(params)
        gradient = jax.grad(loss)(params, x, y) if grads is None else grads[step]
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    jax.effects_barrier()
    return trajectory, state


@pytest.mark.slow
def test_multi_steps_counts_real_steps():
    params, x, y = problem()
    memory = InMemory()
    inside = kernel_watch(optax.sgd(0.1), f, train=(x, y), every=2, writers=memory)
    tx = optax.MultiSteps(inside, every_k_schedule=3)
    trajectory, _ = run(tx, 9, params)
    assert memory.steps == [0, 2]
    for row, at in zip(memory.rows, (trajectory[2], trajectory[8]), strict=True):
        np.testing.assert_allclose(row["trace"], naive(at, params, x=x)["trace"], rtol=1e-5)
    np.testing.assert_array_equal(trajectory[0]["a"], trajectory[2]["a"])


@pytest.mark.slow
def test_apply_if_finite():
    params, x, y = problem()
    memory = InMemory()
    inside = kernel_watch(optax.sgd(0.1), f, train=(x, y), every=1, writers=memory)
    tx = optax.apply_if_finite(inside, 5)
    good = jax.tree.map(jnp.ones_like, params)
    bad = jax.tree.map(lambda a: a * jnp.nan, good)
    _, state = run(tx, 3, params, [good, bad, good])
    assert memory.steps == [0, 1]
    assert int(get(state, "ntk_count")) == 2  # the update that was not finite did not happen
    assert int(get(state, "ntk_status")) == Status.MEASURED


@pytest.mark.slow
def test_sam_chooses_between_states_by_arithmetic():
    params, x, y = problem()
    memory = InMemory()
    inside = kernel_watch(optax.sgd(0.1), f, train=(x, y), every=1, writers=memory)
    trajectory, state = run(optax.contrib.sam(inside, optax.sgd(0.05), sync_period=2), 6, params)
    assert memory.steps == [0, 1, 1, 2, 2]
    last = {step: row["trace"] for step, row in zip(memory.steps, memory.rows, strict=True)}
    for step, trace in last.items():  # of rows of one step the last is right
        np.testing.assert_allclose(
            trace, naive(trajectory[2 * step], params, x=x)["trace"], rtol=1e-5
        )
    assert memory.rows[-1]["drift"] > 0
    [watched] = [
        node
        for node in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, WatchState))
        if isinstance(node, WatchState)
    ]
    assert np.isfinite(watched.ntk_memory["kernel"].kernel0).all()


@pytest.mark.slow
def test_multi_transform_from_outside():
    params, x, y = problem()
    memory = InMemory()
    parts = optax.multi_transform(
        {"slow": optax.sgd(0.01), "fast": optax.adam(0.1)}, {"a": "slow", "b": "fast"}
    )
    tx = kernel_watch(parts, f, train=(x, y), every=2, writers=memory)
    trajectory, _ = run(tx, 3, params)
    assert memory.steps == [0, 2]
    np.testing.assert_allclose(
        memory.rows[1]["trace"], naive(trajectory[2], params, x=x)["trace"], rtol=1e-5
    )


@pytest.mark.parametrize("known", [True, False], ids=["Functional", "callable"])
def test_multi_transform_from_inside_is_refused(known):
    params, x, y = problem()
    fn = functionalize(f, params) if known else f
    optimizers = {"one": watch(optax.sgd(0.1), fn, train=(x, y)), "two": optax.sgd(0.1)}
    tx = optax.multi_transform(optimizers, {"a": "one", "b": "two"})
    with pytest.raises(errors.StructureError) as caught:
        tx.init(params)
    assert str(caught.value) == (
        "watch(optimizer, f).init(params): expected all parameters of the measured function; got a masked part of "
        "them (optax.masked or optax.multi_transform hides the others). "
        "Wrap the whole optimizer: ntkdiag.watch(optax.multi_transform(...), f, ...)."
    )


@pytest.mark.slow
def test_an_injected_rate_is_in_the_margin_of_watch():
    params, x, y = problem()
    options = {"train": (x, y), "loss": "mse", "instruments": ("spectral", "kernel")}
    injected = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    _, state = run(watch(injected, f, **options), 1, params)
    margin = 0.1 / get(state, "ntk_critical_learning_rate")
    np.testing.assert_allclose(get(state, "ntk_margin"), margin, rtol=1e-3)


def test_other_parameters_are_refused():
    x, y = data()
    model, variables = linen()
    tx = watch(optax.sgd(0.1), functionalize(model, variables), train=(x, y))
    params = variables["params"]
    other = {"a": params["a"], "c": params["b"], "b": {"kernel": params["b"]["kernel"][:, :1]}}
    with pytest.raises(errors.StructureError) as caught:
        tx.init(other)
    assert str(caught.value) == (
        "watch(optimizer, f).init(params): expected the optimizer to hold the parameters of the measured function; got "
        "b/bias: missing, expected float32[2]; c/bias: unexpected float32[2]; c/kernel: unexpected float32[4, 2]; "
        "b/kernel: expected float32[4, 2], got float32[4, 1]. "
        "Build f with ntkdiag.functionalize from the model that is trained (trainable= for a part of it)."
    )
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
    own = model.apply(variables, x, train=True, mutable="batch_stats")[1]["batch_stats"]
    hidden = x @ params["a"]["kernel"] + params["a"]["bias"]
    probe_stats = {"n": {"mean": hidden.mean(0), "var": hidden.var(0)}}
    assert jax.tree.structure(own) == jax.tree.structure(probe_stats)
    expected = []
    for batch_stats in (probe_stats, stats):
        fixed = {"params": params, "batch_stats": batch_stats}
        evaluate = functionalize(model, fixed).apply
        expected.append(naive(params, params, x=x, model=evaluate)["trace"])
    np.testing.assert_allclose(memory.series("trace"), expected, rtol=1e-4)
    assert memory.series("status") == [Status.MEASURED] * 2
    assert memory.record["notes"].count(
        "Running statistics were not handed in (model_state=): the kernel is evaluated with those of "
        "the probe, at the parameters of the step."
    )
