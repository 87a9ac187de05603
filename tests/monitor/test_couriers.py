"""Writers on a thread beside training: nothing a writer does holds up the run, and nothing is lost in silence."""

import subprocess
import sys
import textwrap
import threading

import pytest
from internals import Dispatcher

from ntkdiag.monitor import InMemory, read_json_lines
from ntkdiag.monitor import dispatcher as dispatchers

RECORD = {"reduction": "full"}


class Stuck:
    """A writer that hangs in its first `write` until it is released."""

    def __init__(self):
        self.released, self.steps = threading.Event(), []

    def write(self, step, values):
        self.released.wait()
        self.steps.append(step)


def send(dispatcher, steps):
    for step in steps:
        dispatcher.send(step, {"trace": float(step)}, RECORD)


def run(script, *args):
    """Run a script of its own; what it printed."""
    script = "from ntkdiag.monitor.dispatcher import Dispatcher\n" + textwrap.dedent(script)
    ended = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)], capture_output=True, text=True, timeout=60
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_no_exception_of_a_writer_ends_training():
    class Raising:
        def write(self, step, values):
            raise KeyboardInterrupt("stop")

    memory = InMemory()
    with pytest.warns(RuntimeWarning, match="Raising failed in write.. with KeyboardInterrupt"):
        send(Dispatcher([Raising(), memory]), [0, 1])
    assert memory.steps == [0, 1]


def test_what_does_not_fit_into_the_queue_is_counted_and_said_once(monkeypatch):
    monkeypatch.setattr(dispatchers, "MOST_WAITING", 3)
    monkeypatch.setattr(dispatchers, "PATIENCE", 0.05)
    stuck = Stuck()
    dispatcher = Dispatcher([stuck])
    with pytest.warns(RuntimeWarning) as caught:
        send(dispatcher, range(10))
    (warning,) = caught
    assert "the writers are 3 records behind" in str(warning.message)
    stuck.released.set()
    with pytest.warns(RuntimeWarning) as caught:
        dispatcher.close()
    (warning,) = caught
    assert "6 records were dropped" in str(warning.message)
    assert stuck.steps == [0, 1, 2, 3]  # one in its hands, three in the queue
    dispatcher.close()  # and says nothing more


@pytest.mark.slow
def test_the_end_of_the_interpreter_waits_for_what_was_sent(tmp_path):
    path = tmp_path / "run.jsonl"
    code, _, said = run(
        """
        import atexit, sys, time
        from ntkdiag.monitor import JsonLines

        class Slow(JsonLines):
            def write(self, step, values):
                time.sleep(1.5 if step == 0 else 0.0)
                super().write(step, values)

        dispatcher = Dispatcher([Slow(sys.argv[1])])
        for step in range(20):
            dispatcher.send(step, {}, {})
        """,
        path,
    )
    assert (code, said) == (0, "")
    assert [row["step"] for row in read_json_lines(path)[1]] == list(range(20))
