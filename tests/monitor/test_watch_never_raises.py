"""`watch` outside of jit, on several devices, and where warnings are errors: the training goes on."""

import asyncio
import importlib
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import jax
import pytest
from monitor_problem import f, problem

from ntkdiag.monitor import InMemory, JsonLines, Monitor, watch
from ntkdiag.monitor.measurement import Status

ONCE = "This is said once; training goes on."


def steps(tx, count):
    """Steps outside of jit: each update comes back as it went in."""
    params, _, _ = problem()
    state = tx.init(params)
    for _ in range(count):
        updates, state = tx.update(params, state, params)
        assert updates is params
    return state


def failing(schedule_error):
    def every(step):
        raise schedule_error

    return every


class Breaking:
    """A model that runs while it is built, and then no more."""

    def __init__(self, error):
        self.error, self.is_broken = error, False

    def __call__(self, params, x):
        if self.is_broken:
            raise self.error
        return f(params, x)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory": 8}, "MemoryBudgetError: "),
        (
            {"every": failing(ZeroDivisionError("division by zero"))},
            "ZeroDivisionError: division by zero. ",
        ),
        ({"every": failing(asyncio.CancelledError("gone"))}, "CancelledError: gone. "),
    ],
    ids=["budget", "schedule", "cancelled"],
)
def test_outside_jit_nothing_is_raised_into_the_loop(options, text):
    _, x, y = problem()
    with pytest.warns(RuntimeWarning) as caught:
        state = steps(watch(f, train=(x, y), **{"every": 1, **options}), 3)
    (warning,) = caught
    assert str(warning.message).startswith(f"watch(f): step 0 could not be measured: {text}")
    assert str(warning.message).endswith(ONCE)
    assert int(state.ntk_count) == 3
    assert int(state.ntk_status) == Status.UNMEASURED


def test_outside_jit_a_function_that_breaks_is_said_once():
    params, x, y = problem()
    model, memory = Breaking(ValueError("broken")), InMemory()
    tx = watch(model, train=(x, y), every=1, writers=memory)
    state = tx.init(params)

    def three_updates(state):
        for _ in range(3):
            _, state = tx.update(params, state, params)
        return state

    model.is_broken = True
    with pytest.warns(RuntimeWarning, match=f"step 0 could not be .*broken.*{ONCE}") as caught:
        state = three_updates(state)
    assert len(caught) == 1
    model.is_broken = False
    three_updates(state)
    assert memory.steps == [3, 4, 5]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_ends_the_run_ends_it(error):
    params, x, y = problem()
    model = Breaking(error())
    monitor, tx = Monitor(model, train=(x, y)), watch(model, train=(x, y))
    state = tx.init(params)
    model.is_broken = True
    with pytest.raises(error):
        monitor(0, params)
    with pytest.raises(error):
        tx.update(params, state, params)


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_exceptions_beside_the_usual_ones_do_not_end_the_loop_of_a_monitor(error):
    params, x, y = problem()
    model = Breaking(error("gone"))
    monitor = Monitor(model, train=(x, y))
    model.is_broken = True
    with pytest.warns(RuntimeWarning, match="gone"):
        assert monitor(0, params) is None


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_warnings_turned_into_errors_do_not_end_training(compiled, monkeypatch):
    params, x, y = problem()

    def warning(params, x):
        if watched:
            warnings.warn("of the model", UserWarning, stacklevel=1)
        return f(params, x)

    def untrusted(reduces):
        warnings.warn("of the compiler", RuntimeWarning, stacklevel=1)

    monkeypatch.setattr(
        importlib.import_module("ntkdiag.monitor.watch"), "warn_if_untrusted_jit", untrusted
    )
    watched = False
    tx = watch(warning, train=(x, y))
    monitor = Monitor(warning, train=(x, y))
    state = tx.init(params)
    watched = True
    update = jax.jit(tx.update) if compiled else tx.update
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        before = list(warnings.filters)
        _, state = update(params, state, params)
        assert monitor(0, params).status == Status.MEASURED
        assert warnings.filters == before
        with pytest.raises(UserWarning):  # they still are for everybody else
            warnings.warn("of the user", UserWarning, stacklevel=1)
    assert int(state.ntk_status) == Status.MEASURED
    assert "of the model" in {str(warning.message) for warning in shown}


def test_a_pipe_that_nobody_reads_does_not_hold_up_a_compiled_loop(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    params, x, y = problem()
    memory = InMemory()
    tx = watch(f, train=(x, y), every=1, writers=[JsonLines(tmp_path / "pipe"), memory])
    counts = []

    @jax.jit
    def loop(state):
        return jax.lax.scan(
            lambda state, _: (tx.update(params, state, params)[1], None), state, length=5
        )

    def train():
        state, _ = loop(tx.init(params))
        jax.effects_barrier()
        counts.append(int(state.ntk_count))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    thread.join(60)
    assert counts == [5]
    assert memory.steps == list(range(5))
    # Somebody reads in the end, or the end of Python would wait for it.
    rows = []
    while len(rows) < 6:
        rows += (tmp_path / "pipe").read_text().splitlines()
    assert len(rows) == 6  # the record, and five measurements


@pytest.mark.slow
def test_on_several_devices_each_measurement_is_written_once_and_in_order():
    script = """
    import jax, numpy as np, optax
    from monitor_problem import f, loss, problem
    from ntkdiag.monitor import InMemory, watch

    params, x, y = problem()
    memory = InMemory()
    tx = optax.chain(optax.sgd(0.1), watch(f, train=(x, y), every=2, writers=memory))

    def step(params, state):
        grads = jax.lax.pmean(jax.grad(loss)(params, x, y), "devices")
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    step = jax.pmap(step, axis_name="devices")
    spread = lambda tree: jax.tree.map(lambda leaf: np.stack([leaf] * 2), tree)
    params, state = spread(params), spread(tx.init(params))
    for _ in range(9):
        params, state = step(params, state)
    jax.effects_barrier()
    print(memory.steps)
    """
    two_devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **two_devices, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout == "[0, 2, 4, 6, 8]\n", ended.stderr
