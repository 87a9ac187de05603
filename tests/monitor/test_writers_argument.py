"""What `writers=` takes: writers, loggers of other libraries, names."""

import contextvars
import logging

import jax
import numpy as np
import pytest
from internals import read_writers

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import (
    InMemory,
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


def test_loggers_are_taken_as_they_are():
    for make in (ClockWriter, TrackerRun, Events):
        logger = make()
        [writer] = read_writers(logger)
        writer.start(RECORD)
        writer.write(7, VALUES)
        assert logger.calls == [(7, IN_TRACKER)]


def test_names():
    terminal, jax_monitoring = read_writers(["terminal", "jax_monitoring"])
    assert isinstance(terminal, Terminal)
    heard = []
    listener = lambda name, number, **of: heard.append((name, number, of))
    jax.monitoring.register_scalar_listener(listener)
    jax_monitoring.write(3, {"trace": 2.5})
    jax.monitoring.unregister_scalar_listener(listener)
    assert heard == [("ntkdiag/trace", 2.5, {"step": 3})]
    with pytest.raises(errors.InvalidInputError, match=r"A file is JsonLines\(path\)"):
        read_writers([InMemory(), "run.jsonl"])


@pytest.mark.usefixtures("wrong_types")
def test_not_a_writer():
    for writers, got in [
        ([InMemory], "the class InMemory"),
        ([TrackerRun], "the class TrackerRun"),
        ([None], "a NoneType"),
        (logging.getLogger("ntkdiag"), "a Logger"),
    ]:
        with pytest.raises(
            errors.InvalidInputError, match=r"a method write\(step, values\)"
        ) as caught:
            read_writers(writers)
        assert f"got {got}. " in str(caught.value)


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
