"""`Monitor`: the numbers of `watch` from a Python loop, within a budget, without ever raising into the loop."""

import importlib
import types

import jax
import numpy as np
import optax
import pytest
from internals import Status, measure_kernel
from monitor_problem import QUANTITIES, agree, f, naive, problem, train

from ntkdiag import JsonLines, Monitor
from ntkdiag.monitor import InMemory, Measurement, read_json_lines, watch

get = optax.tree_utils.tree_get


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is told to move."""
    now = types.SimpleNamespace(seconds=100.0)
    for name in ("hook", "pace"):
        module = importlib.import_module(f"ntkdiag.monitor.{name}")
        monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_values_match_the_naive_kernel_and_those_of_watch(tmp_path):
    params, x, y = problem()
    memory, path = InMemory(), tmp_path / "run.jsonl"
    watched = watch(optax.sgd(0.1), f, train=(x, y), every=3, loss="mse", instruments="kernel")
    trajectory, state = train(watched, params, 7)
    options = {"loss": "mse", "instruments": "kernel", "writers": [memory, JsonLines(path)]}
    monitor = Monitor(f, train=(x, y), every=3, time_share=None, **options)
    measured = [monitor(step, p) for step, p in enumerate(trajectory)]
    assert [m is not None for m in measured] == [True, False, False] * 2 + [True]
    for row in memory.rows:
        agree(row, naive(trajectory[row["step"]], params, x=x, y=y), top_k=5)
    last = measured[-1]
    assert isinstance(last, Measurement)
    assert last is monitor.last
    assert int(last.step) == 6
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(last))
    for name in QUANTITIES:
        np.testing.assert_array_equal(getattr(last, name), memory.rows[-1][f"{name}"])
        np.testing.assert_allclose(getattr(last, name), get(state, f"ntk_{name}"), rtol=1e-9)
    np.testing.assert_equal(read_json_lines(path), ([memory.record], memory.rows))
    assert (memory.record["source"], memory.record["call"]) == ("watch", "Monitor")
    assert memory.record["time_share"] is None


def test_budget(clock, monkeypatch):
    params, x, y = problem()
    memory = InMemory()
    price = {"seconds": 30.0}

    def timed(*args, **kwargs):
        clock.seconds += price["seconds"]
        return measure_kernel(*args, **kwargs)

    module = importlib.import_module("ntkdiag.monitor.instruments.exact_kernel")
    monkeypatch.setattr(module, "measure_kernel", timed)
    options = {"instruments": "kernel", "time_share": 0.1, "writers": [memory]}
    monitor = Monitor(f, train=(x, y), every=1, **options)
    assert monitor(0, params) is not None  # always made, and not counted: it compiles
    assert monitor.cost.setup_seconds == 30.0
    price["seconds"] = 2.0
    for step in range(1, 61):
        clock.seconds += 1.0
        monitor(step, params)
    # The second measurement shows the price, 2 s: 20 steps. The first intervals are a third as long.
    assert memory.steps == [0, 1, 7, 13, 33, 53]
    assert memory.series("seconds") == [30.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert (monitor.cost.measurements, monitor.cost.seconds) == (6, 10.0)
    assert monitor.cost.share == 10 / monitor.cost.elapsed
    assert repr(monitor).startswith(
        "Monitor(Every(k=1): 6 measurements; first 30 s with compilation"
    )


def test_the_first_process_decides_for_all(monkeypatch):
    """What the clock says differs between processes, but all of them have to take part in the collectives."""
    module = importlib.import_module("ntkdiag.monitor.hook")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    answers = iter([1, 3, 1])
    decide = lambda wait: np.asarray(next(answers))
    monkeypatch.setattr(module.multihost_utils, "broadcast_one_to_all", decide)
    params, x, _ = problem()
    monitor = Monitor(f, train=(x, None), every=1, instruments="kernel", time_share=1e9)
    measured = [monitor(step, params) is not None for step in range(5)]
    assert measured == [True, True, False, False, True]


@pytest.mark.smoke
def test_never_raises_into_the_loop():
    params, x, y = problem()
    memory = InMemory()
    monitor = Monitor(
        f, train=(x, y), every=1, instruments="kernel", time_share=None, writers=[memory]
    )
    with pytest.warns(RuntimeWarning) as caught:
        assert [monitor(step, {"a": params["a"]}) for step in range(3)] == [None] * 3
    (warning,) = caught
    assert "step 0 could not be measured" in str(warning.message)
    assert "got KeyError: 'b'" in str(warning.message)
    assert monitor(3, params).status == Status.MEASURED
    assert memory.steps == [3]
    assert memory.rows[0]["drift"] == 0.0


def test_inside_jit_it_says_so_and_recovers():
    params, x, _ = problem()
    monitor = Monitor(f, train=(x, None), every=1, instruments="kernel", time_share=None)
    with pytest.warns(RuntimeWarning, match="use ntkdiag.watch inside the compiled step"):
        jax.jit(lambda params: monitor(0, params))(params)
    assert monitor(1, params).drift == 0.0


def test_what_fails_is_within_the_budget(clock):
    params, x, y = problem()
    attempts = []

    def broken(params, x):
        clock.seconds += 1.0
        attempts.append(clock.seconds)
        raise ValueError("broken")

    monitor = Monitor(broken, train=(x, y), every=1, time_share=0.1)
    with pytest.warns(RuntimeWarning, match="could not be measured"):
        monitor(0, params)
    for step in range(30):
        monitor(step, params)
        clock.seconds += 1.0
    assert len(attempts) < 10
    assert monitor.cost.measurements == 0


@pytest.mark.slow
def test_a_call_without_an_update_leaves_out_what_needs_one():
    params, x, y = problem()
    memory = InMemory()
    tx = optax.sgd(0.1)
    options = {"loss": "mse", "optimizer": tx, "instruments": ("economy", "spectral")}
    monitor = Monitor(f, train=(x, y), every=1, time_share=None, writers=memory, **options)
    updates, state = tx.update(params, tx.init(params), params)
    monitor(0, params, state, updates=updates, gradient=params)
    monitor(1, params, state)
    monitor(2, params)
    monitor(3, params, state, updates=updates, gradient=params)
    of_update = {"step_error", "layer_update"}
    assert memory.steps == [0, 1, 2, 3]
    for row, has_update, has_margin in zip(
        memory.rows, (True, False, False, True), (True, True, False, True), strict=True
    ):
        assert (of_update <= row.keys()) == has_update
        assert ("margin" in row) == has_margin
        assert np.isfinite(row["trace"])
    margins = [row["margin"] for row in memory.rows if "margin" in row]
    np.testing.assert_allclose(margins, margins[0], rtol=1e-3)
