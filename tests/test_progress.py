"""Progress: nothing for short work or files, a bar with the time left elsewhere, and no trace of it afterwards."""

import io
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import under_way

import ntkdiag
from ntkdiag import progress
from ntkdiag.baselines import gap_over_training, linear_baseline

CLEAN = "\x1b[?25h\r\x1b[1A\x1b[2K"  # the cursor is back, and the line of the bar is erased


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def open_terminal(monkeypatch):
    """Makes standard error a terminal; called in the test, as pytest sets it anew before that."""

    def open_it():
        screen = Terminal()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return open_it


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)


def wait_for(text, screen):
    """Wait until something is drawn, by a thread of its own; at most ten seconds."""
    for _ in range(1000):
        if text in screen.getvalue():
            return
        time.sleep(0.01)
    raise AssertionError(f"{text!r} is not in {screen.getvalue()!r}")


def test_short_work_shows_nothing(open_terminal):
    terminal = open_terminal()
    assert progress.PATIENCE == 2.0
    with under_way("comparing", steps=3) as work:
        for _ in range(3):
            work.advance()
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_long_work_shows_a_bar_with_the_time_left_and_takes_it_away(open_terminal):
    terminal = open_terminal()
    with under_way("comparing", steps=4) as work:
        wait_for("comparing", terminal)
        work.advance()
        wait_for("25%", terminal)
        work.advance()
        wait_for("0:00 left", terminal)
    assert terminal.getvalue().endswith(CLEAN)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.usefixtures("impatient")
def test_an_error_leaves_the_terminal_clean(open_terminal, error):
    terminal = open_terminal()
    stderr = sys.stderr
    with pytest.raises(error), under_way("comparing", steps=4):  # noqa: PT012
        wait_for("comparing", terminal)
        raise error
    assert terminal.getvalue().endswith(CLEAN)
    assert sys.stderr is stderr
    with under_way("again", steps=1) as work:  # and is not inside the work that failed
        wait_for("again", terminal)
        work.advance()


def test_the_time_left_is_that_of_the_part_that_is_done(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    with under_way("comparing", steps=4) as work:
        assert work.left() == ""
        now[0] += 30.0
        work.advance()
        assert work.left() == ""  # the first step compiled
        now[0] += 15.0
        # A part of the step under way counts: 15 seconds for half a step, of which five are left.
        with under_way("kernel", steps=2) as inner:
            inner.advance()
        assert work.left() == "1:15 left"


@pytest.mark.usefixtures("impatient")
def test_what_is_no_terminal_gets_nothing_unless_asked(capsys):
    with under_way("comparing", steps=2) as work:
        time.sleep(0.02)
        work.advance()
    assert capsys.readouterr() == ("", "")
    with under_way("comparing", steps=2, show=True) as work:
        time.sleep(0.02)
        work.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert "comparing: 50% after 0:00\n" in err


def test_a_log_that_did_not_ask_is_told_of_long_work_alone(capsys, monkeypatch):
    assert progress.QUIET <= 30.0
    with under_way("comparing", steps=2) as work:
        work.advance()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "QUIET", 0.05)
    with under_way("comparing", steps=2) as work:
        work.advance()
        time.sleep(0.5)
    out, err = capsys.readouterr()
    assert out == ""
    # Nothing was done in that time, and still there are lines.
    assert err.count("comparing: 50% after 0:00\n") > 2


def test_a_log_is_told_although_the_first_step_is_not_done(capsys, monkeypatch):
    monkeypatch.setattr(progress, "QUIET", 0.05)
    with under_way("tracking, step 7", steps=np.inf):
        time.sleep(0.3)
    assert "tracking, step 7: 0% after 0:00\n" in capsys.readouterr().err


def test_no_line_comes_after_the_work(capsys, monkeypatch):
    monkeypatch.setattr(progress, "QUIET", 0.02)
    with pytest.raises(ValueError, match="ends"), under_way("comparing", steps=2):
        raise ValueError("it ends")
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_what_takes_long_is_announced_unless_it_is_switched_off(capsys):
    progress.announce("comparing: about 8 min")
    assert capsys.readouterr() == ("", "comparing: about 8 min\n")
    progress.announce("comparing: about 8 min", show=False)
    with under_way("a sweep", steps=2):
        progress.announce("comparing: about 8 min")
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_it_can_be_switched_off(open_terminal):
    terminal = open_terminal()
    with under_way("comparing", steps=2, show=False), under_way("kernel", steps=2) as work:
        time.sleep(0.05)
        work.advance()
    assert terminal.getvalue() == ""


class Notebook:
    """A stand-in for the display of IPython: what is shown under the cell, in order."""

    def __init__(self):
        self.shown = []

    def display(self, data, *, raw, display_id):
        assert raw
        assert display_id
        self.shown.append(data["text/html"])
        return types.SimpleNamespace(update=lambda data, raw: self.shown.append(data["text/html"]))


@pytest.mark.usefixtures("impatient")
def test_in_a_notebook_inner_work_fills_the_steps_of_the_outer_one(monkeypatch):
    notebook = Notebook()
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    display = types.ModuleType("IPython.display")
    display.display = notebook.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with under_way("comparing <two>", steps=4) as work:
        while not notebook.shown:
            time.sleep(0.01)
        for steps in (2, 4):  # a kernel of four tiles
            with under_way("kernel", steps=steps) as inner:
                for _ in range(steps):
                    inner.advance()
        work.advance()
    pages = notebook.shown
    assert any(page.startswith("<progress></progress> comparing &lt;two&gt; 0%") for page in pages)
    assert any('<progress value="0.1250"></progress>' in page for page in pages)
    shares = [float(page.split('"')[1]) for page in pages if "value" in page]
    assert shares == sorted(shares)  # never back
    assert shares[-1] == 0.25
    assert pages[-1] == ""


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


RNG = np.random.default_rng(0)
PARAMS = {
    "a": np.full((3, 4), 1 / 3, np.float32),
    "b": RNG.normal(size=(4, 2)).astype(np.float32),
}
X = RNG.normal(size=(8, 3)).astype(np.float32)
Y = np.arange(8) % 2


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_the_long_calls_show_it(capsys):
    data = (X, Y, X, Y)
    later = jax.tree.map(lambda leaf: leaf + 0.1, PARAMS)
    optimizer = optax.sgd(0.1)
    calls = {
        "kernel": lambda show: ntkdiag.ntk(f, PARAMS, X, memory=3_000, progress=show),
        "comparing": lambda show: ntkdiag.compare(
            PARAMS, later, model=f, train=(X, Y), progress=show
        ),
        "selfcheck": lambda show: ntkdiag.selfcheck(f, PARAMS, X, progress=show),
        "training": lambda show: gap_over_training(
            f, PARAMS, data, optimizer, loss="cross_entropy", steps=20, progress=show
        ),
        "linear baseline": lambda show: linear_baseline(
            f, data, optimizer, variables=PARAMS, loss="cross_entropy", steps=20, progress=show
        ),
    }
    for text, call in calls.items():
        call(True)
        assert f"{text}: " in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_the_first_measurement_of_a_monitor_shows_it_and_no_other_does(open_terminal):
    monitor = ntkdiag.Monitor(f, train=(X, Y), every=1, time_share=None)
    terminal = open_terminal()
    assert monitor(0, PARAMS) is not None
    assert "first measurement" in terminal.getvalue()
    assert "50%" in terminal.getvalue()
    assert terminal.getvalue().endswith(CLEAN)
    terminal = open_terminal()
    assert monitor(1, PARAMS) is not None
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_inside_jit_there_is_none(open_terminal):
    terminal = open_terminal()
    jax.jit(lambda params, x: ntkdiag.ntk(f, params, x, progress=True).array)(PARAMS, X)
    assert terminal.getvalue() == ""
