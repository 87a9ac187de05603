"""`every="auto"`: which steps are measured, by the clock, and what is said of it once."""

import importlib
import itertools

import pytest
from internals import Cost
from monitor_problem import f, problem

from ntkdiag.monitor import InMemory, Monitor


@pytest.fixture
def pace_clock(monkeypatch):
    """A clock that a test sets."""

    class Clock:
        seconds = 0.0

        def perf_counter(self):
            return self.seconds

    clock = Clock()
    monkeypatch.setattr(importlib.import_module("ntkdiag.monitor.schedule"), "time", clock)
    return clock


def test_the_clock_decides(pace_clock):
    cost = Cost()

    def steps_to_next(step, *, began, took):
        pace_clock.seconds = began + took
        cost.add(step, began)
        return cost.steps_to_next()

    assert steps_to_next(0, began=0.0, took=50.0) == 33  # no step is known
    # 10 steps in 1 s, and 0.8 s of measuring: 800 steps for one per cent, a third of them at first.
    assert steps_to_next(10, began=51.0, took=0.8) == 266
    assert steps_to_next(20, began=52.8, took=0.8) == 266
    assert steps_to_next(30, began=54.6, took=0.8) == 800
    # One that falls into a pause is not believed.
    assert steps_to_next(40, began=56.4, took=80.0) == 800


def test_a_monitor_goes_by_the_clock(pace_clock):
    params, x, y = problem()
    memory = InMemory()
    monitor = Monitor(f, train=(x, y), instruments="norms", writers=memory)

    def timed(step):
        pace_clock.seconds += 0.1
        before = len(memory.steps)
        monitor(step, params)
        assert monitor.last is not None  # waits
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

    def measured(step):
        monitor(step, params)
        return monitor.last  # waits

    with pytest.warns(RuntimeWarning, match="broken"):
        assert [measured(step) for step in range(250)] == [None] * 250
    assert len(attempts) == 3  # at 0, 100 and 200
