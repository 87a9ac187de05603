"""What `writers=` takes: writers, loggers of other libraries, names; and what trackers get."""

import contextvars
import importlib.metadata
import json
import logging
import subprocess
import sys
import types
import warnings
from typing import ClassVar

import jax
import numpy as np
import optax
import pytest
from internals import read_writers

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import (
    Finding,
    InMemory,
    JaxMonitoring,
    RunLog,
    Terminal,
    TrackerWriter,
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


@pytest.mark.parametrize("make", [ClockWriter, TrackerRun])
def test_loggers_are_taken_as_they_are(make):
    logger = make()
    [writer] = read_writers(logger)
    writer.start(RECORD)
    writer.write(7, VALUES)
    assert logger.calls == [(7, IN_TRACKER)]


@pytest.mark.long
def test_a_module_with_log():
    run = TrackerRun()
    module = types.ModuleType("tracker")
    module.log = run.log
    with ntkdiag.Monitor(f, train=(X, None), instruments="kernel", writers=[module]) as monitor:
        monitor(0, PARAMS)
    [(step, scalars)] = run.calls
    assert step == 0
    assert scalars["ntkdiag/trace"] == monitor.last.trace


@pytest.mark.long
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


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution with a writer `dial`, and another one that does not import."""
    info = tmp_path / "ntkdiag_dial-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ntkdiag-dial\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[ntkdiag.writers]\ndial = ntkdiag_dial:DialWriter\nbroken = ntkdiag_dial_lost:Writer\n"
    )
    (tmp_path / "ntkdiag_dial.py").write_text(
        "class DialWriter:\n    def write(self, step, values):\n        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("ntkdiag_dial", None)


@pytest.mark.usefixtures("installed")
def test_names_of_installed_distributions():
    assert "ntkdiag_dial" not in sys.modules
    [writer] = read_writers("dial")
    assert type(writer).__name__ == "DialWriter"
    with pytest.raises(errors.MissingDependencyError) as caught:
        ntkdiag.Monitor(f, train=(X, None), writers="broken")
    assert str(caught.value) == (
        "Monitor(f): expected ntkdiag_dial_lost:Writer to import; got ModuleNotFoundError: No "
        "module named 'ntkdiag_dial_lost'. Install what it needs, or reinstall the distribution it "
        "is from."
    )


def test_a_tracker_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    with pytest.raises(errors.MissingDependencyError) as caught:
        ntkdiag.Monitor(f, train=(X, None), writers=[InMemory(), "wandb"])
    assert str(caught.value) == (
        "Monitor(f, writers=...): expected an installed writer to wandb; got no such writer. Install "
        'ntkdiag-wandb: in a clone of ntkdiag, run "pip install ./integrations/wandb".'
    )


def test_a_name_of_no_writer(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
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
        f"write_scalars(step, scalars) or log(scalars, step=...); got {got}. "
        "ntkdiag.monitor has JsonLines(path), Terminal() and InMemory()."
    )


class Dial(TrackerWriter):
    """A tracker that is a dictionary: id of a run -> what was logged to it."""

    tracker = "dial"
    runs: ClassVar[dict] = {}

    def open_run(self, run_id, record):
        self.run_id = run_id if run_id in self.runs else f"run{len(self.runs)}"
        self.runs.setdefault(self.run_id, []).append(record["call"])
        return self.run_id

    def log_scalars(self, step, scalars):
        self.runs[self.run_id].append((step, scalars))

    def log_record(self, record):
        pass

    def log_finding(self, finding):
        self.runs[self.run_id].append(finding.id)

    def close_run(self):
        self.runs[self.run_id].append("closed")


@pytest.fixture(autouse=True)
def no_runs(monkeypatch):
    monkeypatch.setattr(Dial, "runs", {})


def test_a_tracker_gets_scalars():
    writer = Dial()
    writer.close()  # nothing was opened
    assert Dial.runs == {}
    writer.start(RECORD)
    writer.write(0, VALUES)
    writer.close()
    writer.write(1, {"trace": 1.0})  # goes on with the same run
    assert Dial.runs == {
        "run0": ["watch", (0, IN_TRACKER), "closed", "watch", (1, {"ntkdiag/trace": 1.0})]
    }
    writer.close()  # not at the end of the process, where there is no `runs` any more


def test_a_tracker_gets_the_record_and_findings():
    class Noting(Dial):
        def log_record(self, record):
            self.runs[self.run_id].append(record["probe"])

    writer = Noting()
    writer.start({**RECORD, "probe": "sha"})
    writer.finding(Finding("loss-above", "warning", ("loss",), "The loss rose."))
    assert Dial.runs == {"run0": ["watch", "sha", "loss-above"]}
    writer.close()


def test_a_tracker_warns_where_warnings_are_errors(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dial().warn("the run is lost")
    assert caplog.messages == ["Dial: the run is lost"]


AT_EXIT = """
import atexit
import time

import numpy as np

import ntkdiag

class Slow(ntkdiag.monitor.TrackerWriter):
    tracker = "slow"

    def open_run(self, run_id, record):
        atexit.register(print, "the library ends")
        return "run0"

    def log_scalars(self, step, scalars):
        time.sleep(1.5)  # training does not wait for so long
        print("step", step)

    def log_record(self, record):
        pass

    log_finding = log_record

    def close_run(self):
        print("closed")
        raise OSError("no space")

def f(params, x):
    return x @ params["w"]

x = np.eye(2, dtype=np.float32)
monitor = ntkdiag.Monitor(
    f, train=(x, None), every=1, time_share=None, instruments="kernel", top_k=1, writers=Slow()
)
for step in range(3):
    monitor(step, {"w": np.ones((2, 1), np.float32)})
print("the script ends")
"""


@pytest.mark.slow
def test_at_the_end_of_the_process_all_is_written_then_closed_then_the_library_ends():
    run = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    # Where no thread can be started any more, the rest is written at the end of the script.
    lines = run.stdout.splitlines()
    assert lines[lines.index("the script ends") :][-2:] == ["closed", "the library ends"]
    assert [line for line in lines if line.startswith("step")] == ["step 0", "step 1", "step 2"]
    assert "Slow: the run was not closed: OSError: no space" in run.stderr


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


def train(folder, steps, tracker):
    options = {"train": (X, None), "instruments": "kernel", "time_share": None}
    with ntkdiag.Monitor(f, every=1, out=folder, writers=tracker, **options) as monitor:
        for step in steps:
            monitor(step, PARAMS)


def test_a_training_that_is_resumed_goes_on_in_the_same_run(tmp_path):
    train(tmp_path / "a", [0, 1], Dial())
    train(tmp_path / "b", [0], Dial())
    train(tmp_path / "a", [2], Dial())
    steps = {name: [row[0] for row in run if len(row) == 2] for name, run in Dial.runs.items()}
    assert steps == {"run0": [0, 1, 2], "run1": [0]}
    assert json.loads((tmp_path / "a" / "dial_run.json").read_text()) == {"run_id": "run0"}
    assert ntkdiag.open_run(tmp_path / "a").steps("watch") == [0, 1, 2]


def test_a_run_that_the_tracker_lost_or_whose_file_is_damaged_begins_anew(tmp_path):
    (tmp_path / "dial_run.json").write_text('{"run_id": "ru')
    train(tmp_path, [0], Dial())
    assert list(Dial.runs) == ["run0"]
    (tmp_path / "dial_run.json").write_text('{"run_id": "lost"}')
    train(tmp_path, [1], Dial())
    assert list(Dial.runs) == ["run0", "run1"]
    assert json.loads((tmp_path / "dial_run.json").read_text()) == {"run_id": "run1"}


def test_a_dead_tracker_is_named_once_and_hurts_nothing(tmp_path):
    class Dead(Dial):
        def open_run(self, run_id, record):
            raise ConnectionError("no route to host")

    memory = InMemory()
    with pytest.warns(
        RuntimeWarning, match=r"Dead failed in start\(\) with ConnectionError"
    ) as caught:
        train(tmp_path, range(3), [Dead(), memory])
    assert len(caught) == 1
    assert memory.steps == [0, 1, 2]
    assert not (tmp_path / "dial_run.json").exists()


def test_one_process_writes(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    writer = Dial()
    writer.start(RECORD)
    writer.write(0, VALUES)
    writer.close()
    assert Dial.runs == {}


def test_the_log_of_out_comes_last(tmp_path):
    run_log = RunLog(tmp_path)
    assert read_writers("terminal", run_log)[1:] == (run_log,)
    assert read_writers(()) == ()
