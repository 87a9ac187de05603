"""`ntkdiag watch`: what it shows of a run, once and live, and when it ends."""

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import rich.console
from internals import LiveRun, sparkline

import ntkdiag
from ntkdiag.commands import run_view
from ntkdiag.monitor import Finding

pytest_plugins = ["shell"]


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The writer of a log with two measurements, in the working directory."""
    monkeypatch.chdir(tmp_path)
    writer = ntkdiag.JsonLines("logs/watch.jsonl")
    writer.start({"source": "watch", "call": "watch"})
    for step, margin in ((0, 0.25), (10, 0.5)):
        values = {
            "trace": 3.0 + step,
            "margin": margin,
            "margin_lower": margin - 0.125,
            "margin_upper": margin + 0.125,
            "eigenvalues": [2.0, 1.0],
            "note": "words",
        }
        writer.write(step, values)
    return writer


def lines_with(text, name):
    return [line.split() for line in text.splitlines() if line.split()[:1] == [name]]


def test_once(shell, log):
    log.finding(
        Finding(
            id="margin-rises",
            severity="warning",
            quantities=("margin",),
            sentence="Too near.",
            value=0.5,
            threshold=0.4,
            step=10,
            do="Halve the rate.",
        )
    )
    os.utime("logs/watch.jsonl", (time.time() - 90,) * 2)
    status, out, err = shell("show", "logs")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("watch: 2 rows, steps 0 to 10, the last 90 s ago")
    assert lines_with(out, "margin") == [["margin", "0.5", "0.375", "to", "0.625", "▁█"]]
    assert lines_with(out, "trace") == [["trace", "13", "▁█"]]
    # The ends of an interval stand beside their number; words are no number.
    assert lines_with(out, "margin_lower") == lines_with(out, "note") == []
    # What is looked at most stands first.
    assert out.index("margin") < out.index("eigenvalues") < out.index("trace")
    assert "warning step 10 margin-rises: Too near. Halve the rate." in " ".join(out.split())
    # Where there is no terminal, it is printed once in any case.
    assert shell("show", "logs/watch.jsonl") == (0, out, "")


def test_every_stream(shell, log):
    other = ntkdiag.JsonLines("logs/other.jsonl")
    other.start({"source": "watch"})
    _, out, _ = shell("show", "logs")
    assert out.startswith("other: no row yet, begun 0 s ago")
    assert "watch: 2 rows" in out
    other.write(3, {"loss": math.nan})
    _, out, _ = shell("show", "logs", "--stream", "other")
    assert out.startswith("other: 1 row, step 3, the last 0 s ago")
    assert lines_with(out, "loss") == [["loss", "–"]]
    assert "watch:" not in out


def test_json(shell, log):
    log.write(20, {"trace": math.nan})
    status, out, err = shell("show", "logs", "--json")
    assert (status, err) == (0, "")
    content = json.loads(out, parse_constant=pytest.fail)
    assert content["root"] == f"{pathlib.Path('logs').absolute()}"
    (stream,) = content["streams"].values()
    assert stream["last"] == {"step": 20, "trace": None}
    assert (stream["rows"], stream["first_step"], stream["last_step"]) == (3, 0, 20)
    assert stream["seconds_since_last_line"] < 60


def test_a_tracked_run_shows_its_drift(shell, checkpoints):
    _, printed, _ = shell(
        "track", "run", "--case", "net_for_shell.py:case", "--out", "ntk", "--json"
    )
    _, out, _ = shell("show", "ntk")
    assert out.startswith("track: 2 rows")
    assert "probe: " not in out  # which holds the examples
    assert max(map(len, out.splitlines())) <= 80
    drift = json.loads(printed)["checkpoints"][1]["drift"]
    ((_, shown, line),) = lines_with(out, "drift")
    assert float(shown) == pytest.approx(drift, rel=1e-3)
    assert line == "▁█"


def test_a_file_is_read_again_when_it_has_changed(log, monkeypatch):
    reads = []
    read = run_view.rows_of
    monkeypatch.setattr(
        run_view, "rows_of", lambda run, name: reads.append(name) or read(run, name)
    )
    live = LiveRun(ntkdiag.open_run("logs"), None)
    assert [view.steps for view in live.views()] == [[0, 10]]
    live.views()
    assert reads == ["watch"]
    log.write(20, {"trace": 1.0})
    ntkdiag.JsonLines("logs/later.jsonl").write(0, {"loss": 1.0})
    assert [view.steps for view in live.views()] == [[0], [0, 10, 20]]
    assert reads == ["watch", "later", "watch"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (200_000, "2 days"),
    ],
)
def test_how_long_ago(log, seconds, words):
    os.utime("logs/watch.jsonl", (time.time() - seconds,) * 2)
    (view,) = LiveRun(ntkdiag.open_run("logs"), None).views()
    console = rich.console.Console(width=80)
    with console.capture() as captured:
        console.print(view)
    assert f"the last {words} ago" in captured.get()


def test_a_run_that_is_not_there(shell, log):
    status, out, err = shell("show", "nowhere")
    assert (status, out) == (1, "")
    assert "expected a run directory at 'nowhere'; got no such path" in err
    status, out, err = shell("show", "logs", "--stream", "track")
    assert (status, out) == (2, "")
    assert err == (
        "ntkdiag: ntkdiag show logs --stream track: expected a stream of the run: watch; got track. "
        "See: ntkdiag show --help\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_in_a_terminal_it_updates_until_it_is_interrupted(log):
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ntkdiag", "show", "logs", "--follow", "--every", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm"},
    )
    os.close(theirs)
    shown = read_until(ours, "steps 0 to 10")
    log.write(20, {"trace": 7.0})
    shown += read_until(ours, "steps 0 to 20")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    os.close(ours)
    assert process.stderr.read() == b""
    process.stderr.close()
    # Drawn over what was there, not below it.
    assert "\x1b[1A" in shown


def read_until(terminal, words):
    """What a terminal shows up to some words."""
    text = ""
    deadline = time.monotonic() + 60
    while words not in text:
        assert time.monotonic() < deadline, text
        text += os.read(terminal, 4096).decode(errors="replace")
    return text


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 5, ""),
        ([1.0], 5, "▁"),
        ([2.0, 2.0], 5, "▁▁"),
        ([float(step) for step in range(8)], 8, "▁▂▃▄▅▆▇█"),
        ([0.0, 0.0, 7.0, 7.0], 2, "▁█"),
        ([0.0, math.nan, 7.0], 3, "▁ █"),
        ([0.0, math.inf, 7.0], 3, "▁ █"),
        ([math.nan, math.nan], 2, "  "),
        ([math.nan, 3.0, 9.0, 9.0], 2, "▁█"),
    ],
)
def test_sparkline(values, width, line):
    assert sparkline(values, width) == line


def test_a_long_series_has_the_width_that_is_asked_for():
    line = sparkline([float(step) for step in range(1000)], 24)
    assert len(line) == 24
    assert list(line) == sorted(line)
