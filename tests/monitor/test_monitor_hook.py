"""`Monitor`: rows from a Python loop, without ever raising into it."""

import jax
import numpy as np
import optax
import pytest
from monitor_problem import f, loss, naive, problem

import ntkdiag
from ntkdiag import Monitor
from ntkdiag.monitor import InMemory, Measurement


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Three rows of a training that is wrapped by `around`, and the parameters of each step."""
    params, x, y = problem()
    params = jax.tree.map(np.float32, params)
    tx = optax.sgd(0.1)
    memory = InMemory()
    path = tmp_path_factory.mktemp("monitor")
    options = {"loss": "mse", "optimizer": tx, "instruments": ("kernel", "margin")}
    monitor = Monitor(f, train=(x, y), every=3, writers=memory, out=path, **options)

    @monitor.around
    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    trajectory, state = [], tx.init(params)
    for _ in range(7):
        trajectory.append(params)
        params, state = step(params, state)
    monitor.close()
    return monitor, memory, path, trajectory


def test_rows_are_of_the_parameters_before_each_step(measured):
    _, memory, _, trajectory = measured
    _, x, y = problem()
    assert memory.steps == [0, 3, 6]
    for row in memory.rows:
        want = naive(trajectory[row["step"]], trajectory[0], x=x, y=y, learning_rate=0.1)
        # A kernel of ten rows is known from ten products.
        for name in ("trace", "participation_ratio", "alignment", "margin"):
            np.testing.assert_allclose(row[name], want[name], rtol=3e-3, err_msg=name)
        np.testing.assert_allclose(row["eigenvalues"], want["eigenvalues"][:5], rtol=1e-2)
        np.testing.assert_allclose(row["drift"], want["drift"], rtol=0.1, atol=1e-6)


def test_what_it_returns_and_writes(measured):
    monitor, memory, path, _ = measured
    last = monitor.last
    assert isinstance(last, Measurement)
    assert int(last.step) == 6
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(last))
    for name, estimate in last.estimates.items():
        np.testing.assert_array_equal(estimate.value, memory.rows[-1][name])
    run = ntkdiag.open_run(path)
    np.testing.assert_equal((run.record(), run.rows()), (memory.record, memory.rows))
    assert (memory.record["source"], memory.record["call"]) == ("watch", "Monitor")
    assert memory.rows[0]["seconds"] == monitor.cost.setup_seconds
    assert monitor.cost.measurements == 3
    assert str(monitor.cost).startswith("3 measurements; first ")


def of_norms(**options):
    params, x, y = problem()
    return params, Monitor(f, train=(x, y), every=1, instruments="norms", **options)


@pytest.mark.smoke
def test_never_raises_into_the_loop():
    memory = InMemory()
    params, monitor = of_norms(writers=memory)
    with pytest.warns(RuntimeWarning) as caught:
        assert [monitor(step, {"a": params["a"]}) for step in range(3)] == [None] * 3
    (warning,) = caught
    assert "step 0 could not be measured" in str(warning.message)
    assert "got KeyError: 'b'" in str(warning.message)
    assert int(monitor(3, params).status) == 1
    assert memory.steps == [3]


def test_inside_jit_it_says_so_and_recovers():
    params, monitor = of_norms()
    with pytest.warns(RuntimeWarning, match="use ntkdiag.watch inside the compiled step"):
        jax.jit(lambda params: monitor(0, params))(params)
    assert int(monitor(1, params).status) == 1


@pytest.mark.slow
def test_a_call_without_a_state_has_no_margin_and_all_else():
    params, x, y = problem()
    tx = optax.sgd(0.1, momentum=0.9)
    monitor = Monitor(f, train=(x, y), every=1, loss="mse", optimizer=tx)
    state = tx.init(params)
    with_state, without = monitor(0, params, state), monitor(1, params)
    again = monitor(2, params, state, gradient=params)
    assert np.isfinite([with_state.margin, again.margin]).all()
    assert np.isfinite([with_state.step_error, again.step_error]).all()
    assert np.isnan([without.margin, without.step_error, without.learning_rate]).all()
    assert np.isfinite([without.trace, without.loss]).all()
    np.testing.assert_allclose(again.margin, with_state.margin, rtol=1e-3)


@pytest.mark.slow
def test_the_exact_kernel_has_the_numbers_of_track():
    params, x, y = problem()
    moved = jax.tree.map(lambda leaf: 1.1 * leaf, params)
    options = {"train": (x, y), "loss": "cross_entropy"}
    monitor = Monitor(f, every=1, instruments="kernel", kernel=True, **options)
    rows = [monitor(step, at) for step, at in enumerate((params, moved))]
    tracked = ntkdiag.track([(0, params), (1, moved)], model=f, **options)
    for row, want in zip(rows, tracked.rows, strict=True):
        for name in ("trace", "alignment_above", "critical_learning_rate", "loss", "accuracy"):
            np.testing.assert_allclose(row[name].value, want[name], rtol=1e-5, err_msg=name)
            assert row[name].is_exact
    np.testing.assert_allclose(rows[1].drift, naive(moved, params, x=x)["drift"], rtol=1e-5)
    assert rows[0].drift == 0.0
