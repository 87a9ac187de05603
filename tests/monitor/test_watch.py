"""`watch`: the updates are untouched, the numbers are those of the naive kernel, at the right steps."""

import importlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Status
from monitor_problem import C, H, N, f, naive, problem, train

import ntkdiag
from ntkdiag import errors
from ntkdiag.models import functionalize
from ntkdiag.monitor import Estimate, InMemory, WatchState, watch


def kernel_watch(**options):
    """`watch` of the kernel alone, which the naive kernel knows, too."""
    return watch(optax.sgd(0.1), f, instruments="kernel", top_k=3, **options)


@pytest.fixture
def x64():
    """Float64 on every thread: a compiled step calls back on threads where the context manager is not in force."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.smoke
@pytest.mark.usefixtures("x64")
def test_values_at_the_scheduled_steps_match_the_naive_kernel(tmp_path):
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(train=(x, y), every=3, loss="mse", writers=memory, out=tmp_path)
    trajectory, state = train(tx, params, 8)
    assert memory.steps == [1, 3, 6]
    for row in memory.rows:
        expected = naive(trajectory[row["step"]], trajectory[1], x=x, y=y)
        assert row["status"] == Status.MEASURED
        np.testing.assert_allclose(row["eigenvalues"], expected["eigenvalues"][:3], rtol=1e-3)
        for name in ("trace", "participation_ratio", "alignment"):
            np.testing.assert_allclose(row[name], expected[name], rtol=0.02)
        np.testing.assert_allclose(row["drift"], expected["drift"], rtol=0.05, atol=1e-6)
    assert memory.rows[0]["drift"] == 0.0
    assert memory.rows[2]["drift"] > 0.01
    # As text NaN is NaN.
    run = ntkdiag.open_run(tmp_path)
    assert str((run.record(), run.rows())) == str((memory.record, memory.rows))
    # The state holds the last measurement.
    numbers = ntkdiag.record(state)
    assert isinstance(state, WatchState)
    assert len(jax.tree.leaves(state._replace(ntk_inner=()))) <= 6  # each costs time at every step
    assert int(state.ntk_count) == 8
    for name, number in numbers.items():
        np.testing.assert_allclose(number, memory.rows[-1][name], rtol=1e-6)


@pytest.mark.slow
def test_a_step_that_is_not_scheduled_runs_no_measurement():
    params, x, y = problem()
    runs = []

    def counted(params, x):
        jax.debug.callback(lambda: runs.append(1))
        return f(params, x)

    tx = watch(optax.sgd(0.1), counted, train=(x, y), every=5, instruments="kernel", top_k=3)
    state, update = tx.init(params), jax.jit(tx.update)
    jax.effects_barrier()
    runs.clear()  # init has looked whether examples interact
    for step in range(1, 6):
        before = len(runs)
        _, state = update(params, state, params)
        jax.effects_barrier()
        assert (len(runs) > before) == (step in (1, 5))


def with_root_mean_square(params, x):
    hidden = x @ params["a"]
    return hidden * jax.lax.rsqrt(jnp.mean(hidden**2, -1, keepdims=True)) @ params["b"]


@pytest.mark.parametrize(
    ("model", "dtype", "normalizes"),
    [
        (f, np.float32, False),
        (with_root_mean_square, np.float32, True),
        (with_root_mean_square, np.float64, False),
        # Evaluated with running statistics, trained with those of the batch.
        (nn.Sequential([nn.Dense(H), nn.BatchNorm(True), nn.Dense(C)]), np.float32, True),
    ],
)
def test_only_networks_that_normalize_are_warned_of(model, dtype, normalizes, monkeypatch):
    asked = []
    module = importlib.import_module("ntkdiag.monitor.watch")
    monkeypatch.setattr(module, "warn_if_untrusted_jit", lambda asks: asked.append(asks()))
    with jax.enable_x64(dtype == np.float64):
        params, x, y = problem()
        params, x = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (params, x))
        fn = model
        if isinstance(model, nn.Module):
            fn = functionalize(model, model.init(jax.random.key(0), x))
            params = fn.params
        tx = watch(optax.sgd(0.1), fn, train=(x, y), every=1, instruments="norms")
        jax.eval_shape(tx.update, params, tx.init(params), params)
    assert asked == [normalizes]


@pytest.mark.slow
def test_a_state_restored_with_another_probe_begins_anew():
    params, x, y = problem()
    one, other = (kernel_watch(train=(examples, y), every=1) for examples in (x, 2 * x))
    _, state = one.update(params, one.init(params), params)
    moved = jax.tree.map(lambda p: 1.1 * p, params)
    _, same = one.update(params, state, moved)
    assert ntkdiag.record(same)["drift"] > 0
    _, fresh = other.update(params, state, moved)
    assert ntkdiag.record(fresh)["drift"] == 0


@pytest.mark.slow
def test_drift_is_nan_where_the_first_kernel_is_not_kept(monkeypatch):
    monkeypatch.setattr(importlib.import_module("ntkdiag.monitor.watch"), "MOST_BYTES", 0)
    params, x, y = problem()
    memory = InMemory()
    tx = kernel_watch(train=(x, y), every=1, writers=memory)
    _, state = train(tx, params, 2)
    assert not state.ntk_memory
    assert np.isnan(memory.series("drift")).all()
    assert np.isfinite(memory.series("trace")).all()
    assert any("Drift is NaN" in note for note in memory.record["notes"])


def output_norm(context):
    """An instrument as users write it."""
    return {"output_norm": Estimate.of_mean((context.outputs**2).sum(axis=1))}


def test_an_instrument_of_ones_own():
    params, x, y = problem()
    tx = watch(optax.sgd(0.1), f, train=(x, y), instruments=("norms", output_norm))
    update, state = jax.jit(tx.update)(params, tx.init(params), params)
    numbers = ntkdiag.record(state)
    after = optax.apply_updates(params, update)
    norms = (np.asarray(f(after, x)) ** 2).sum(axis=1)
    np.testing.assert_allclose(numbers["output_norm"], norms.mean(), rtol=1e-5)
    lower = norms.mean() - 2.7764451 * norms.std(ddof=1) / np.sqrt(N)  # Student's t, 4 degrees
    np.testing.assert_allclose(numbers["output_norm_lower"], lower, atol=1e-5)
    assert len(numbers["layer_gradient"]) == 2


def test_the_state_of_an_optimizer_without_watch_is_refused():
    params, x, y = problem()
    tx = kernel_watch(train=(x, y))
    with pytest.raises(errors.StructureError, match="Convert it"):
        tx.update(params, optax.sgd(0.1).init(params), params)
