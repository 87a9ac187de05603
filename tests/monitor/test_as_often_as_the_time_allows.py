"""`every="auto"`: which steps are measured, by the clock, and what is said of it once."""

import importlib
import itertools

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


# Arguments.


@pytest.mark.usefixtures("wrong_types")
def test_fewer_examples_than_the_probe_has_are_no_training_set():
    for n_train in [1, 2.5]:
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
