"""`ntkdiag check`: findings of a run, and the status they end with."""

import dataclasses
import json
import pathlib
import re

import numpy as np
from synthetic_run import write_tracked, write_watched

import ntkdiag
from ntkdiag import judging, report
from ntkdiag.monitor import Finding, JsonLines, live_findings

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
        ([0.6, 0.6, 0.9], (), 0, ["margin-at-edge"]),
        ([0.6, 1.3, 0.7], (), 1, ["margin-was-beyond-edge"]),
        ([0.6, 0.7, 1.4], (), 1, ["margin-beyond-edge"]),
        ([0.1, 0.1, 0.1], (0.1, 0.2, 0.1), 0, ["rate-could-be-larger"]),
        ([0.1, 0.1, 0.1], (0.1, 0.4, 0.1), 0, []),
    ]
    for number, (margins, watched, status, found) in enumerate(cases):
        write(tmp_path / f"run{number}", margins, watched)
        ended, out, _ = shell("check", f"run{number}")
        assert ended == status
        assert [line.split(":")[0].split()[-1] for line in out.splitlines()] == found


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
    [finding] = content["findings"]
    assert finding["id"] == "not-finite"
    assert finding["severity"] == "error"
    assert finding["step"] == 20
    assert finding["value"] is None


def test_live_findings_are_there_and_the_least_severity_is_an_option(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run", [0.6, 0.6, 0.9])
    writer = JsonLines(tmp_path / "run" / "watch.jsonl")
    writer.start({"call": "watch"})
    told = Finding(
        id="dead-layer",
        severity="warning",
        quantities=("layer_trace",),
        sentence="It is dead.",
        value=0.0,
        threshold=1e-9,
        layer="a",
        trust="Of 2 measurements while it trained.",
        do="Look.",
        verify="It lives.",
    )
    for step, layer in ((5, "a"), (6, "b"), (7, "a")):
        writer.finding(dataclasses.replace(told, step=step, layer=layer))
    status, out, _ = shell("check", "run")
    assert status == 1
    assert out.splitlines() == [
        "warning step 5 dead-layer: It is dead. Look.",
        "warning step 6 dead-layer: It is dead. Look.",
        "info step 20 margin-at-edge: Training ends at the edge of stability, with a margin of 0.9.",
    ]
    assert shell("check", "run", "--severity", "warning")[1].splitlines() == out.splitlines()[:2]
    # Of each id and layer the first one, as it was told.
    [first, second, _] = ntkdiag.open_run("run").findings
    assert first == dataclasses.replace(told, step=5)
    assert (second.step, second.layer) == (6, "b")


def test_what_cannot_be_judged_is_said(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = JsonLines(tmp_path / "run" / "watch.jsonl")
    writer.start({"call": "watch"})
    writer.write(0, {"trace": 1.0, "status": 1})
    status, out, _ = shell("check", "run")
    assert status == 3
    assert out.startswith("info unknown: Nothing can be judged")


def test_every_id_has_a_paragraph():
    rooms = [pathlib.Path(room.__file__).parent for room in (judging, report, live_findings)]
    paths = [path for room in rooms for path in room.glob("*.py")]
    sources = [path.read_text() for path in paths]
    ids = {found for text in sources for found in re.findall(r'\bid="([a-z-]+)"', text)}
    # Those that a file chooses among: names with a hyphen are nothing else there.
    for path in rooms[0].glob("*_finding.py"):
        ids |= set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', path.read_text()))
    ids |= {"dead", "collapsed"}
    headings = set(re.findall(r"^## `([a-z-]+)`$", FINDINGS.read_text(), re.MULTILINE))
    assert headings == ids
