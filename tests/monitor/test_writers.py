"""Writers: what they write can be read back, and nothing they do reaches the training loop."""

import contextvars
import subprocess
import sys
import threading
import time
import warnings

import pytest
from internals import Sink

import ntkdiag
from ntkdiag.monitor import InMemory, Terminal
from ntkdiag.monitor import sink as sinks

NAN = float("nan")
VALUES = {"trace": 2.5, "eigenvalues": [2.0, NAN], "margin": float("inf")}
RECORD = {"outputs": "full", "n_examples": 3, "notes": ["a", "b"]}


class Failing:
    def __init__(self, method):
        self.method, self.calls = method, 0

    def start(self, record):
        self._call("start")

    def write(self, step, values):
        self._call("write")

    def close(self):
        self._call("close")

    def _call(self, method):
        self.calls += 1
        if method == self.method:
            raise OSError("disk full")


@pytest.mark.smoke
def test_a_failing_writer_is_named_once_and_tried_again():
    for method in ["start", "write"]:
        failing, memory = Failing(method), InMemory()
        sink = Sink([failing, memory])
        with pytest.warns(RuntimeWarning) as caught:  # noqa: PT031
            for step in range(13):
                sink.put(step, VALUES, RECORD)
            sink.close()
        (warning,) = caught
        said = f"the writer Failing.{method}() failed with OSError: disk full. It is called again"
        assert said in str(warning.message)
        assert failing.calls == (14 if method == "start" else 15)  # with `close`
        assert memory.steps == list(range(13))


def test_the_same_measurement_again_is_not_written():
    memory = InMemory()
    sink = Sink([memory])
    for step in (0, 0, 1, 1, 0):
        sink.put(step, dict(VALUES), RECORD)
    sink.put(0, {**VALUES, "trace": 3.5}, RECORD)
    assert memory.steps == [0, 1, 0, 0]


def test_a_terminal_has_one_line_for_a_measurement(capsys):
    margin = {"margin": 0.4213, "margin_lower": 0.3124, "margin_upper": 0.519}
    Terminal().write(550, {"trace": 1.0, "loss": 0.01321, **margin, "learning_rate": 0.001})
    none = {"not_finite_step": NAN, "not_finite_steps": 0.0}
    Terminal().write(3, {"trace": NAN, "layer_trace": [1.0], "eigenvalues": [2.0, 0.5], **none})
    Terminal().write(4, {"loss": 0.5, "not_finite_step": 2.0, "not_finite_steps": 1.0})
    assert capsys.readouterr().out.splitlines() == [
        "step 550  loss 0.0132  margin 0.421 [0.31, 0.52]  learning_rate 0.001",
        "step 3  trace -  eigenvalues [2 0.5]",
        "step 4  loss 0.5",
    ]


class Slow:
    """A writer that waits until it may go on, and notes what it sees."""

    may_go_on = threading.Event()

    def __init__(self):
        self.steps, self.runs = [], []

    def write(self, step, values):
        self.may_go_on.wait(10.0)
        self.steps.append(step)
        self.runs.append(active_run.get())


active_run = contextvars.ContextVar("active_run")


def test_a_slow_writer_holds_training_up_once_and_a_full_queue_drops(monkeypatch):
    monkeypatch.setattr(sinks, "PATIENCE", 0.2)
    monkeypatch.setattr(sinks, "MOST_ROWS", 3)
    slow, memory = Slow(), InMemory()
    sink = Sink([slow, memory])
    active_run.set("mine")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begun = time.perf_counter()
        for step in range(10):
            sink.put(step, VALUES, RECORD)
        assert 0.2 <= time.perf_counter() - begun < 1.0
        sink.close(0.1)
        slow.may_go_on.set()
        sink.close()
    behind, late = (str(warning.message) for warning in caught)
    assert "the writers are 3 rows behind. New rows are dropped" in behind
    assert "the writers still have 4 rows to write 0.1 s after the end" in late
    assert slow.steps == memory.steps == [0, 1, 2, 3]
    assert slow.runs == 4 * ["mine"]  # the context variables of training
    sink.put(10, VALUES, RECORD)  # it waits again
    assert memory.steps[-1] == 10


LEFT = """
import sys, time
from ntkdiag.monitor import RunLog, sink

class Late(RunLog):
    def write(self, step, values):
        time.sleep(0.05)
        super().write(step, values)

sink.PATIENCE = 0.0
late = sink.Sink([Late(sys.argv[1])])
for step in range(10):
    late.put(step, {"trace": 1.0}, {})
"""


@pytest.mark.slow
def test_what_is_queued_is_written_before_the_process_ends(tmp_path):
    subprocess.run([sys.executable, "-c", LEFT, str(tmp_path)], check=True)
    assert ntkdiag.open_run(tmp_path).steps() == list(range(10))
