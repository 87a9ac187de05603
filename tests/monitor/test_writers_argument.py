"""What `writers=` takes: writers, loggers of other libraries, names."""

import contextvars
import logging
import types

import jax
import numpy as np
import optax
import pytest
from internals import read_writers

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import (
    InMemory,
    JaxMonitoring,
    RunLog,
    Terminal,
    scalars_of,
)

NAN = float("nan")
RECORD = {
    "call": "watch",
    "dims": {"layer_trace": ["layer"], "eigenvalues": ["mode"]},
    "coordinates": {"layer": ["a/kernel", "a/bias"]},
}
VALUES = {
    "trace": 2.5,
    "status": 1,
    "margin": NAN,
    "eigenvalues": [2.0, NAN, 0.5],
    "layer_trace": [2.0, 0.5],
}
FLAT = {
    "trace": 2.5,
    "status": 1,
    "eigenvalues/0": 2.0,
    "eigenvalues/2": 0.5,
    "layer_trace/a/kernel": 2.0,
    "layer_trace/a/bias": 0.5,
}
IN_TRACKER = {f"ntkdiag/{name}": value for name, value in FLAT.items()}


def f(params, x):
    return jax.numpy.tanh(x @ params["w"])


PARAMS = {"w": np.ones((3, 2), np.float32)}
X = np.eye(3, dtype=np.float32)


def test_scalars_of():
    assert scalars_of(VALUES, RECORD) == FLAT
    assert scalars_of({"layer_trace": [2.0, 0.5]}) == {
        "layer_trace/0": 2.0,
        "layer_trace/1": 0.5,
    }


class ClockWriter:
    """The interface of clu's metric writers."""

    def __init__(self):
        self.calls = []

    def write_scalars(self, step, scalars):
        self.calls.append((step, dict(scalars)))


class TrackerRun:
    """The interface of the runs of many trackers."""

    def __init__(self):
        self.calls = []

    def log(self, data, step=None, commit=True):
        self.calls.append((step, dict(data)))


class Events:
    """The interface of the SummaryWriter of tensorboardX and PyTorch."""

    def __init__(self):
        self.calls = []

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.numbers = {**getattr(self, "numbers", {}), tag: scalar_value}
        self.step = global_step

    def flush(self):
        self.calls.append((self.step, self.numbers))


@pytest.mark.parametrize("make", [ClockWriter, TrackerRun, Events])
def test_loggers_are_taken_as_they_are(make):
    logger = make()
    [writer] = read_writers(logger)
    writer.start(RECORD)
    writer.write(7, VALUES)
    assert logger.calls == [(7, IN_TRACKER)]


@pytest.mark.slow
def test_a_module_with_log():
    run = TrackerRun()
    module = types.ModuleType("tracker")
    module.log = run.log
    with ntkdiag.Monitor(f, train=(X, None), instruments="kernel", writers=[module]) as monitor:
        monitor(0, PARAMS)
    [(step, scalars)] = run.calls
    assert step == 0
    assert scalars["ntkdiag/trace"] == monitor.last.trace


@pytest.mark.slow
def test_jax_monitoring():
    heard = {}

    def listener(event, value, **facts):
        heard[event, facts.get("step")] = value

    jax.monitoring.register_scalar_listener(listener)
    try:
        optimizer = ntkdiag.watch(
            optax.sgd(0.1), f, train=(X, [0, 1, 0]), loss="mse", every=1, writers="jax_monitoring"
        )
        state = optimizer.init(PARAMS)
        optimizer.update(PARAMS, state, PARAMS)
        jax.effects_barrier()
    finally:
        jax.monitoring.unregister_scalar_listener(listener)
    assert heard["ntkdiag/trace", 0] > 0
    assert heard["ntkdiag/layer_parameter/w", 0] == pytest.approx(6**0.5)


def test_names():
    terminal, jax_monitoring = read_writers(["terminal", "jax_monitoring"])
    assert (type(terminal), type(jax_monitoring)) == (Terminal, JaxMonitoring)


def test_a_name_of_no_writer():
    with pytest.raises(errors.InvalidInputError) as caught:
        read_writers([InMemory(), "run.jsonl"])
    assert str(caught.value) == (
        "writers=...: expected the name of a writer (jax_monitoring, mlflow, tensorboard, terminal, "
        "trackio, wandb), or a writer; got 'run.jsonl'. A file is JsonLines(path), a run directory "
        "out=."
    )


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("writers", "got"),
    [
        ([InMemory], "the class InMemory"),
        ([TrackerRun], "the class TrackerRun"),
        ([None], "a NoneType"),
        (logging.getLogger("ntkdiag"), "a Logger"),
    ],
)
def test_not_a_writer(writers, got):
    with pytest.raises(errors.InvalidInputError) as caught:
        read_writers(writers)
    assert str(caught.value) == (
        "writers=...: expected names of writers, or objects with a method write(step, values), "
        f"write_scalars(step, scalars), log(scalars, step=...) or add_scalar(name, number, step); got {got}. "
        "ntkdiag.monitor has JsonLines(path), Terminal() and InMemory()."
    )


def test_a_writer_sees_the_context_variables_of_training():
    current = contextvars.ContextVar("current")
    seen = []

    class Looking(InMemory):
        def write(self, step, values):
            seen.append(current.get("nothing"))

    with ntkdiag.Monitor(f, train=(X, None), instruments="kernel", writers=Looking()) as monitor:
        current.set("the run of the script")
        monitor(0, PARAMS)
    assert seen == ["the run of the script"]


def test_the_log_of_out_comes_last(tmp_path):
    run_log = RunLog(tmp_path)
    assert read_writers("terminal", run_log)[1:] == (run_log,)
    assert read_writers(()) == ()
