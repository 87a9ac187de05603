"""`ntkdiag report`: the page of a run directory, where it goes, and what it cannot be made of."""

import pytest

pytest_plugins = ["shell"]
TRACK = ("track", "run", "--case", "net_for_shell.py:case", "--out", "tracked")


@pytest.mark.slow
def test_a_page(shell, checkpoints):
    shell(*TRACK)
    status, out, err = shell("report", "tracked")
    assert (status, out, err) == (0, "report: tracked/report.html\n", "")
    page = (checkpoints.parent / "tracked" / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    status, out, _ = shell("report", "tracked", "--out", "pages/other.html")
    assert (status, out) == (0, "report: pages/other.html\n")
    assert (checkpoints.parent / "pages" / "other.html").exists()
