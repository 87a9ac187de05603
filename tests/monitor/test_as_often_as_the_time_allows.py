"""`every="auto"`: which steps are measured, by the clock, and what is said of it once."""

import importlib
import itertools
import re

import jax
import numpy as np
import optax
import pytest
from internals import Pace
from monitor_problem import f, problem

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.monitor import InMemory, Monitor

get = optax.tree_utils.tree_get


@pytest.fixture
def pace_clock(monkeypatch):
    """A clock that a test sets."""

    class Clock:
        seconds = 0.0

        def perf_counter(self):
            return self.seconds

    clock = Clock()
    monkeypatch.setattr(importlib.import_module("ntkdiag.monitor.pace"), "time", clock)
    return clock


def measured(pace, clock, step, *, until, took):
    """The answer of a pace to a measurement that began at a time and took some seconds."""
    clock.seconds = until
    pace.begin()
    clock.seconds = until + took
    return pace.end(step)


def test_the_clock_decides(pace_clock):
    pace = Pace(time_share=0.01)
    assert measured(pace, pace_clock, 0, until=0.0, took=50.0) == 0  # no step is known
    # 10 steps in 1 s, and 0.8 s of measuring: 800 steps for one per cent, a third of them at first.
    assert measured(pace, pace_clock, 10, until=51.0, took=0.8) == 266
    assert measured(pace, pace_clock, 20, until=52.8, took=0.8) == 266
    assert measured(pace, pace_clock, 30, until=54.6, took=0.8) == 800
    # One that falls into a pause is not believed.
    assert measured(pace, pace_clock, 40, until=56.4, took=80.0) == 800


def trained(steps, **options):
    """A training under jit of plain descent, and its last state."""
    params, x, y = problem()
    tx = ntkdiag.watch(optax.sgd(0.01), f, train=(x, y), loss="mse", **options)
    state = tx.init(params)
    step = jax.jit(tx.update)
    for _ in range(steps):
        _, state = step(params, state, params)
    return jax.block_until_ready(state)


@pytest.mark.slow
def test_without_writers_there_is_no_clock():
    state = trained(3)
    assert (int(state.ntk_measurements), int(state.ntk_step)) == (1, 0)
    assert int(state.ntk_next) == 1000 // 3  # the first intervals are a third as long
    for name in ("margin", "learning_rate", "loss"):
        assert np.isfinite(get(state, f"ntk_{name}"))
    assert np.isfinite(state.ntk_numbers["ntk_eigenvalues"]).all()
    assert get(state, "ntk_learning_rate") == pytest.approx(0.01)


def test_a_share_of_ones_own_thins_a_schedule_out():
    options = {"every": 1, "instruments": "layer_norms"}
    assert int(trained(5, time_share=1e-9, writers=InMemory(), **options).ntk_measurements) == 2
    assert int(trained(5, **options).ntk_measurements) == 5


@pytest.mark.slow
def test_a_monitor_goes_by_the_clock(pace_clock):
    params, x, y = problem()
    memory = InMemory()
    monitor = Monitor(f, train=(x, y), loss="mse", writers=memory)

    def timed(step):
        pace_clock.seconds += 0.1
        before = len(memory.steps)
        monitor(step, params)
        return len(memory.steps) > before

    assert timed(0)
    second = next(step for step in itertools.count(1) if timed(step))
    assert 1 < second < 2000
    # The second took no time of this clock: the next may come at once.
    assert timed(second + 1)


def test_what_fails_is_not_tried_at_every_step():
    params, x, y = problem()
    attempts = []

    def broken(params, x):
        attempts.append(1)
        raise ValueError("broken")

    monitor = Monitor(broken, train=(x, y))
    with pytest.warns(RuntimeWarning, match="broken"):
        assert [monitor(step, params) for step in range(250)] == [None] * 250
    assert len(attempts) == 3  # at 0, 100 and 200


# What is said at the start, and of the first measurements.


def test_what_a_dear_schedule_costs_is_said_once(caplog):
    params, x, y = problem()
    with Monitor(f, train=(x, y), every=1, instruments="trace") as monitor:
        for step in range(3):
            monitor(step, params)
    texts = [record.getMessage() for record in caplog.records]
    [said] = [text for text in texts if "a measurement took" in text]
    assert re.search(r"every=1 is \S+ % of the time; every=\d+ would be 1 %\.", said)


@pytest.mark.slow
def test_why_there_is_no_margin_is_said_once(caplog):
    params, x, y = problem()
    memory = InMemory()
    tx = ntkdiag.watch(
        optax.lion(0.1), f, train=(x, y), loss="mse", every=1, writers=memory, instruments="margin"
    )
    state = tx.init(params)
    step = jax.jit(tx.update)
    for _ in range(3):
        _, state = step(params, state, params)
    jax.block_until_ready(state)
    assert np.isnan(memory.series("margin")).all()
    said = [record.getMessage() for record in caplog.records if "no margin" in record.getMessage()]
    assert len(said) == 1
    assert "does not shrink with the gradient, as that of sign descent" in said[0]


@pytest.mark.slow
def test_an_error_of_ours_costs_the_margin_alone(monkeypatch):
    """Under tests it fails the measurement; elsewhere it is a status, with its text in the record."""

    def failing(*args, **kwargs):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(
        importlib.import_module("ntkdiag.monitor.optimizer_reader"), "read_arrays", failing
    )
    with pytest.warns(RuntimeWarning, match="could not be measured: ZeroDivisionError: of ours"):
        trained(1, every=1, writers=InMemory())
    monkeypatch.setenv("NTKDIAG_RAISE", "0")
    memory = InMemory()
    with pytest.warns(RuntimeWarning, match="The optimizer could not be read.*This is an error"):
        state = trained(1, every=1, writers=memory)
    assert int(get(state, "ntk_optimizer_status")) == 11
    assert np.isnan(get(state, "ntk_margin"))
    assert np.isfinite(get(state, "ntk_trace"))
    failure = "The optimizer could not be read: ZeroDivisionError: of ours"
    assert failure in memory.record["notes"]


# Arguments.


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("share", [0, "1%"])
def test_a_share_that_is_none_is_refused(share):
    _, x, y = problem()
    with pytest.raises(InvalidInputError, match="expected a positive share of the wall time"):
        ntkdiag.watch(optax.sgd(0.1), f, train=(x, y), time_share=share)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("n_train", [1, 2.5])
def test_fewer_examples_than_the_probe_has_are_no_training_set(n_train):
    _, x, y = problem()
    with pytest.raises(InvalidInputError, match="Leave it out where it is not known"):
        ntkdiag.watch(optax.sgd(0.1), f, train=(x, y), n_train=n_train)


@pytest.mark.slow
def test_of_a_whole_training_set_the_margin_is_exact():
    _, x, _ = problem()
    widths = []
    for n_train in (None, 10 * len(x), len(x)):
        instrument = ntkdiag.monitor.TopCurvatures(tolerance=1e-6)
        state = trained(1, every=1, instruments=instrument, n_train=n_train)
        lower, upper = get(state, "ntk_margin_lower"), get(state, "ntk_margin_upper")
        widths.append(float((upper - lower) / get(state, "ntk_margin")))
    assert widths[0] > widths[1] > 0.1
    assert widths[2] < 1e-3  # of what float32 resolves
