"""`ntkdiag show`: the last rows of every stream of a run."""

import json
import math
import pathlib

import pytest

import ntkdiag

pytest_plugins = ["shell"]


@pytest.fixture
def log(tmp_path, monkeypatch):
    """The writer of a log with two measurements, in the working directory."""
    monkeypatch.chdir(tmp_path)
    writer = ntkdiag.monitor.RunLog("logs")
    writer.start({"source": "watch", "call": "watch"})
    for step, margin in ((0, 0.25), (10, 0.5)):
        values = {"trace": 3.0 + step, "margin": margin, "eigenvalues": [2.0, 1.0], "note": "words"}
        writer.write(step, values)
    return writer


def line_with(text, name):
    """The words of the line that begins with a name."""
    (line,) = [line.split() for line in text.splitlines() if line.split()[:1] == [name]]
    return line


def test_the_last_rows_of_every_stream(shell, log):
    other = ntkdiag.monitor.RunLog("logs", name="other")
    other.start({"source": "watch"})
    other.write(3, {"loss": math.nan})
    status, out, err = shell("show", "logs")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert line_with(out, "margin") == ["margin", "0.25", "0.5"]
    assert line_with(out, "trace") == ["trace", "3", "13"]
    assert line_with(out, "loss") == ["loss", "–"]
    assert "words" not in out
    assert line_with(shell("show", "logs", "--rows", 1)[1], "margin") == ["margin", "0.5"]


def test_json(shell, log):
    log.write(20, {"trace": math.nan})
    status, out, err = shell("show", "logs", "--rows", 1, "--json")
    assert (status, err) == (0, "")
    content = json.loads(out, parse_constant=pytest.fail)
    assert content["root"] == f"{pathlib.Path('logs').absolute()}"
    assert content["streams"] == {"watch": [{"step": 20, "trace": None}]}
