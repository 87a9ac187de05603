"""Writers on a thread beside training: nothing a writer does holds up the run, and nothing is lost in silence."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from internals import Dispatcher, described

from ntkdiag import JsonLines
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


def within(seconds, call, *args):
    """Make a call that may hang for ever; whether it came back in time."""
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def run(script, *args):
    """Run a script of its own; what it printed."""
    script = "from ntkdiag.monitor.dispatcher import Dispatcher\n" + textwrap.dedent(script)
    ended = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)], capture_output=True, text=True, timeout=60
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_a_writer_may_close_its_monitor():
    closed = []

    class Closing:
        def write(self, step, values):
            dispatcher.close()

        def close(self):
            closed.append(True)

    dispatcher = Dispatcher([Closing()])
    assert within(20, send, dispatcher, [0])
    dispatcher.close()
    assert closed == [True, True]


def test_a_signal_handler_may_close_the_monitor():
    code, printed, _ = run(
        """
        import os, signal, sys, time

        class Slow:
            def write(self, step, values):
                if step == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(0.2)
                print("wrote", step)
            def close(self):
                print("closed")

        def end(*_):
            dispatcher.close()
            print("handled")
            sys.exit(0)

        signal.signal(signal.SIGTERM, end)
        dispatcher = Dispatcher([Slow()])
        for step in range(100):
            dispatcher.send(step, {}, {})
        """
    )
    assert code == 0
    assert printed.split("\n")[:4] == ["wrote 0", "wrote 1", "closed", "handled"]


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt])
def test_no_exception_of_a_writer_ends_training(error):
    class Raising:
        def write(self, step, values):
            raise error("stop")

    memory = InMemory()
    with pytest.warns(
        RuntimeWarning, match=f"the writer Raising failed in write.. with {error.__name__}: stop"
    ):
        send(Dispatcher([Raising(), memory]), [0, 1])
    assert memory.steps == [0, 1]


def test_an_exception_without_words_and_a_writer_that_changes_its_methods():
    class Wordless(Exception):
        def __str__(self):
            raise ValueError("no words")

    class Odd:
        write = InMemory().write

        @property
        def start(self):
            raise Wordless

    memory = InMemory()
    dispatcher = Dispatcher([Odd(), memory])
    with pytest.warns(RuntimeWarning, match=r"the writer Odd failed in start\(\) with Wordless\. "):
        send(dispatcher, [0])
    send(dispatcher, [1])
    assert memory.steps == [0, 1]


def test_what_does_not_fit_into_the_queue_is_counted_and_said_once(monkeypatch):
    monkeypatch.setattr(dispatchers, "MOST_WAITING", 3)
    monkeypatch.setattr(dispatchers, "PATIENCE", 0.05)
    stuck = Stuck()
    dispatcher = Dispatcher([stuck])
    with pytest.warns(RuntimeWarning) as caught:
        send(dispatcher, range(10))
    said = (
        "ntkdiag: the writers are 3 records behind. What comes is dropped until they have caught up; close() says "
        "how much. Training goes on."
    )
    assert [str(warning.message) for warning in caught] == [said]
    stuck.released.set()
    with pytest.warns(RuntimeWarning) as caught:
        dispatcher.close()
    said = "ntkdiag: 6 records were dropped because the writers were 3 records behind."
    assert [str(warning.message) for warning in caught] == [said]
    assert stuck.steps == [0, 1, 2, 3]  # one in its hands, three in the queue
    dispatcher.close()  # and says nothing more


def test_a_writer_that_caught_up_is_waited_for_again(monkeypatch):
    monkeypatch.setattr(dispatchers, "PATIENCE", 0.05)
    stuck = Stuck()
    dispatcher = Dispatcher([stuck])
    send(dispatcher, [0])
    stuck.released.set()
    dispatcher.close()
    monkeypatch.setattr(dispatchers, "PATIENCE", 10.0)
    for step in range(1, 200):
        send(dispatcher, [step])
        assert stuck.steps[-1] == step
    assert stuck.steps == list(range(200))


def test_steps_stay_in_order_whoever_sends():
    """Callbacks of a compiled step come on threads of XLA, one after the other but not on the same one."""
    memory = InMemory()
    dispatcher = Dispatcher([memory])
    for step in range(100):
        assert within(20, send, dispatcher, [step])
    assert memory.steps == list(range(100))
    # The last thread ends by itself, now that there is nothing to write.
    for thread in threading.enumerate():
        if thread.name == "ntkdiag writers":
            thread.join(20)
            assert not thread.is_alive()


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


def test_what_is_closed_is_on_the_disk(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def noted(descriptor):
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "run.jsonl"
    dispatcher = Dispatcher([JsonLines(path)])
    send(dispatcher, range(5))
    dispatcher.close()
    assert synced == [path.stat().st_ino]
    assert len(read_json_lines(path)[1]) == 5
    Dispatcher(
        [JsonLines(tmp_path / "never.jsonl")]
    ).close()  # nothing was written: nothing to sync
    assert len(synced) == 1


def test_an_exception_without_a_text_is_its_name_alone():
    assert described(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert described(ValueError("full")) == "ValueError: full"
