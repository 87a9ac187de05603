"""Progress: nothing for short work or files, a bar on a terminal, and no trace of it afterwards."""

import io
import sys
import time

import pytest
from internals import under_way

from ntkdiag import progress

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
    """Wait until something is drawn, by the thread of rich; at most ten seconds."""
    for _ in range(1000):
        if text in screen.getvalue():
            return
        time.sleep(0.01)
    raise AssertionError(f"{text!r} is not in {screen.getvalue()!r}")


@pytest.mark.usefixtures("impatient")
def test_long_work_shows_a_bar_and_takes_it_away(open_terminal):
    terminal = open_terminal()
    with under_way("comparing", steps=4) as work:
        work.advance()
        wait_for("comparing", terminal)
        wait_for("25%", terminal)
        with under_way("kernel", steps=2) as inner:  # fills a step of the outer work
            inner.advance()
        wait_for("38%", terminal)
    assert terminal.getvalue().endswith(CLEAN)


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
