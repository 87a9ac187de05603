"""`ntkdiag check`: findings of a run, and the status they end with."""

import json
import pathlib
import re

import numpy as np
from synthetic_run import write_tracked, write_watched

from ntkdiag import judging
from ntkdiag.monitor import RunLog

pytest_plugins = ["shell"]
FINDINGS = pathlib.Path(__file__).parents[2] / "docs" / "findings.md"


def write(folder, margins, watched=()):
    """A run with these margins at its checkpoints, and of its monitor."""
    e1 = np.full((len(margins), len(margins)), 0.05)
    np.fill_diagonal(e1, 0.0)
    write_tracked(folder, steps=[10 * k for k in range(len(margins))], margins=margins, e1=e1)
    if watched:
        write_watched(folder, watched)


def test_margins(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = [
        ([0.6, 0.6, 0.7], (), 0, []),
        ([0.6, 1.0, 1.1, 1.0], (), 0, ["margin-at-edge"]),
        ([0.6, 4.0, 0.7], (), 1, ["margin-beyond-edge"]),
        ([0.6, 0.6, 0.6], (2.0, 2.0, 2.0), 0, ["margin-at-edge"]),  # the lower ends are 1
        ([0.6, 0.6, 0.6], (4.0, 4.0, 4.0), 1, ["margin-beyond-edge"]),
    ]
    for number, (margins, watched, status, found) in enumerate(cases):
        write(tmp_path / f"run{number}", margins, watched)
        ended, out, _ = shell("check", f"run{number}")
        assert ended == status
        told = [line.split(":")[0].split()[-1] for line in out.splitlines()]
        assert [name for name in told if name.startswith("margin-")] == found
        assert "loss" in told


def test_an_error_and_its_json(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_watched(tmp_path / "run", (0.5, 0.6))
    row = {"step": 20, "status": 2, "loss": None, "margin": None}
    with (tmp_path / "run" / "watch.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    status, out, _ = shell("check", "run", "--json")
    content = json.loads(out)
    assert status == 2
    assert content["format"] == "ntkdiag findings 1"
    finding = content["findings"][0]
    assert finding["id"] == "not-finite"
    assert finding["severity"] == "error"
    assert finding["step"] == 20
    assert finding["value"] is None


def test_what_cannot_be_judged_is_said(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = RunLog(tmp_path / "run")
    writer.start({"call": "watch"})
    writer.write(0, {"trace": 1.0, "status": 1})
    status, out, _ = shell("check", "run")
    assert status == 3
    assert out.startswith("info unknown: Nothing can be judged")
    assert shell("check", "nowhere")[0] == 4


def test_every_id_has_a_paragraph():
    room = pathlib.Path(judging.__file__).parent
    sources = [path.read_text() for path in room.glob("*.py")]
    ids = {found for text in sources for found in re.findall(r'\bid="([a-z-]+)"', text)}
    # Those that a function chooses between.
    ids |= {"dead", "collapsed", "linear-regime", "between-regimes", "nonlinear-regime"}
    ids |= {"unchanged", "regime-unknown", "alignment-grew", "alignment-same", "alignment-fell"}
    ids |= {"batch-below-noise", "batch-above-noise"}
    headings = set(re.findall(r"^### `([a-z-]+)`$", FINDINGS.read_text(), re.MULTILINE))
    assert headings == ids
