"""Writers: what they write can be read back, and nothing they do reaches the training loop."""

import io
import json
import logging
import shutil
import warnings

import jax
import numpy as np
import pytest
from internals import Dispatcher, warn
from rich.console import Console

from ntkdiag import JsonLines, errors
from ntkdiag.monitor import InMemory, Terminal, Writer, read_json_lines

VALUES = {"trace": 2.5, "eigenvalues": [2.0, float("nan")], "margin": float("inf")}
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


@pytest.mark.parametrize(
    "make", [lambda path: JsonLines(path / "a.jsonl"), lambda _: InMemory(), lambda _: Terminal()]
)
def test_writers_follow_the_protocol(make, tmp_path):
    assert isinstance(make(tmp_path), Writer)


def test_memory():
    memory = InMemory()
    memory.start(RECORD)
    memory.write(0, VALUES)
    memory.write(5, {**VALUES, "trace": 3.5})
    assert memory.record == RECORD
    assert memory.steps == [0, 5]
    assert memory.series("trace") == [2.5, 3.5]
    assert memory.rows[1]["step"] == 5


@pytest.mark.smoke
def test_json_lines_round_trip(tmp_path):
    path = tmp_path / "folder" / "run.jsonl"
    writer = JsonLines(path)
    assert not path.parent.exists()  # opened at the first line, not before
    writer.start(RECORD)
    writer.write(0, VALUES)
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"record": RECORD},
        {"step": 0, "trace": 2.5, "eigenvalues": [2.0, None], "margin": None},
    ]
    writer.write(7, VALUES)
    records, rows = read_json_lines(path)
    assert records == [RECORD]
    assert [row["step"] for row in rows] == [0, 7]


def test_json_lines_never_overwrites(tmp_path):
    path = tmp_path / "run.jsonl"
    for step in range(3):
        writer = JsonLines(path)
        writer.start({"session": step})
        writer.write(step, VALUES)
    records, rows = read_json_lines(path)
    assert records == [{"session": 0}, {"session": 1}, {"session": 2}]
    assert [row["step"] for row in rows] == [0, 1, 2]


def test_json_lines_after_a_killed_run(tmp_path):
    path = tmp_path / "run.jsonl"
    torn = '{"step": 0, "trace": 1.0}\n{"step": 1, "tr'
    path.write_text(torn)
    writer = JsonLines(path)
    writer.write(2, VALUES)
    writer.write(3, VALUES)
    assert [row["step"] for row in read_json_lines(path)[1]] == [0, 2, 3]
    assert path.read_text().startswith(torn + "\n{")


def test_terminal_prints_one_line():
    numbers = {**VALUES, "drift": 0.123456, "status": 1}
    assert printed(Terminal(digits=3, names=None), 12, numbers) == (
        "step 12  trace 2.5  eigenvalues [2 -]  margin -  drift 0.123  status 1\n"
    )


def test_by_default_a_line_has_what_is_looked_at_most():
    numbers = {
        "trace": 3193.0,
        "learning_rate": 3e-4,
        "margin": 0.4213,
        "margin_lower": 0.3127,
        "margin_upper": 0.5211,
        "drift": 0.21417,
        "loss": 1.23456e-3,
    }
    assert printed(Terminal(), 12_345, numbers) == (
        "step 12345  loss 0.00123  margin 0.421 [0.31, 0.52]  learning_rate 0.0003  drift 0.214\n"
    )


def printed(terminal, step, numbers):
    """What a terminal prints of one measurement."""
    text = io.StringIO()
    terminal.console = Console(width=40, file=text)
    terminal.write(step, numbers)
    return text.getvalue()


def test_terminal_prints_to_the_default_console(capsys):
    Terminal().write(1, {"trace": 1.0})
    assert capsys.readouterr().out == "step 1  trace 1\n"


def test_dispatcher_starts_each_writer_once():
    memory = InMemory()
    dispatcher = Dispatcher([memory])
    dispatcher.send(0, VALUES, RECORD)
    dispatcher.send(np.int32(1), VALUES, {"other": 1})
    assert memory.record == RECORD
    assert memory.steps == [0, 1]
    dispatcher.close()  # InMemory has no close


@pytest.mark.parametrize("method", ["start", "write"])
def test_a_failing_writer_is_named_once_and_tried_again(method):
    failing, memory = Failing(method), InMemory()
    dispatcher = Dispatcher([failing, memory])

    def run():
        for step in range(13):
            dispatcher.send(step, VALUES, RECORD)
        dispatcher.close()

    with pytest.warns(RuntimeWarning) as caught:
        run()
    assert [str(warning.message) for warning in caught] == [
        f"ntkdiag: the writer Failing failed in {method}() with OSError: disk full. This is said once, and it is tried "
        "again at the next one; training goes on."
    ]
    assert failing.calls == (14 if method == "start" else 15)  # with `close`
    assert memory.steps == list(range(13))


def test_a_log_goes_on_after_a_failure(tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    dispatcher = Dispatcher([JsonLines(path)])
    dispatcher.send(0, VALUES, RECORD)
    shutil.rmtree(tmp_path / "logs")
    (tmp_path / "logs").write_text("in the way")
    with pytest.warns(RuntimeWarning, match=r"failed in write\(\)"):
        dispatcher.send(3, VALUES, RECORD)
    (tmp_path / "logs").unlink()
    dispatcher.send(4, VALUES, RECORD)
    assert [row["step"] for row in read_json_lines(path)[1]] == [4]


def test_a_writer_that_exits_does_not_end_training():
    class Exiting:
        def write(self, step, values):
            raise SystemExit(1)

    with pytest.warns(RuntimeWarning, match="the writer Exiting failed"):
        Dispatcher([Exiting()]).send(0, VALUES, RECORD)


def test_the_same_measurement_again_is_not_written():
    memory = InMemory()
    dispatcher = Dispatcher([memory])
    for step in (0, 0, 1, 1, 0):
        dispatcher.send(step, dict(VALUES), RECORD)
    dispatcher.send(0, {**VALUES, "trace": 3.5}, RECORD)
    assert memory.steps == [0, 1, 0, 0]


def test_failing_close_warns():
    dispatcher = Dispatcher([Failing("close")])
    with pytest.warns(
        RuntimeWarning,
        match=r"ntkdiag: the writer Failing failed in close\(\) with OSError: disk full",
    ):
        dispatcher.close()


def test_warn_does_not_raise_where_warnings_are_errors(caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, logger="ntkdiag"):
        warnings.simplefilter("error")
        warn("a writer failed")
    assert caplog.messages == ["a writer failed"]


def test_json_lines_stay_where_they_were_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    writers = JsonLines("~/home.jsonl"), JsonLines("here.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for writer in writers:
        writer.write(0, {"a": 1.0, "b": float("nan"), "c": [1.0, float("nan")]})
    for name in ("home", "here"):
        _, [row] = read_json_lines(tmp_path / f"{name}.jsonl")
        assert row["a"] == 1.0
        assert np.isnan([row["b"], row["c"][1]]).all()
    with pytest.raises(errors.InvalidInputError, match="expected a file; got a folder"):
        JsonLines(tmp_path)


def test_one_of_several_processes_writes(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    for process in (1, 0, 2):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        writer = JsonLines(path)
        writer.start({"name": str(process)})
        writer.write(0, {"trace": float(process)})
        writer.close()
    records, rows = read_json_lines(path)
    assert records == [{"name": "0"}]
    assert rows == [{"step": 0, "trace": 0.0}]
