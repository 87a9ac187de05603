"""The page of a run: its sentences have the numbers, it loads nothing, and what users wrote is only text."""

import json
import math
import re

import numpy as np
import pytest
from internals import (
    FIGURES,
    RunSubject,
    RunWriter,
)
from synthetic_run import HOSTILE, write_tracked, write_watched
from test_report import Tags

import ntkdiag
from ntkdiag import errors

STEPS = [0, 3, 10, 40]
MARGINS = [0.2, 0.61, 0.93, 0.72]
E1 = np.array(
    [
        [math.nan, 0.31, 0.52, 0.87],
        [0.4, math.nan, 0.33, 0.64],
        [0.5, 0.3, math.nan, 0.043],
        [0.9, 0.6, 0.2, math.nan],
    ]
).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", "")
    root.mkdir()
    write_tracked(root, steps=STEPS, margins=MARGINS, e1=E1)
    write_watched(root, [0.3, 0.5, 0.7, 0.6])
    return root


@pytest.fixture(scope="module")
def run(folder):
    return ntkdiag.open_run(folder)


@pytest.fixture(scope="module")
def subject(run):
    return RunSubject.of(run.tracked, run)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    assert run.save(path) == path
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


def words_of(page):
    return " ".join(Tags(page).text.split())


def test_the_page_has_all_findings(page, run):
    words = words_of(page)
    assert len(run.findings) >= 3
    for finding in run.findings:
        for said in (finding.sentence, finding.do, finding.trust):
            assert " ".join(said.split()) in words


def test_the_page_loads_nothing(page):
    found = Tags(page)
    for tag, attributes in found.tags:
        assert tag not in (
            "script",
            "link",
            "iframe",
            "object",
            "embed",
            "audio",
            "video",
            "base",
            "form",
        ), tag
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            address = attributes.get(name) or "#"
            assert address.startswith(("#", "data:image/png;base64,")), (tag, address)
    styles = re.findall(r"<style.*?</style>", page, flags=re.DOTALL)
    for target in re.findall(r"url\(([^)]*)\)", page):
        assert target.strip("\"'").startswith("#"), target
    assert styles
    assert "@import" not in page
    assert not re.findall(r"https?://", page)
    policies = [item["content"] for tag, item in found.tags if "http-equiv" in item]
    assert policies == [
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    ]
    assert not [item for _, item in found.tags for name in item if name.startswith("on")]


def test_what_users_wrote_is_text(page, folder):
    assert HOSTILE not in page
    assert HOSTILE in Tags(page).text  # as text: a leaf, a layer, a note
    assert f"of {HOSTILE}" in Tags(page).text
    assert folder.name in Tags(page).text


def test_every_figure_that_has_its_numbers_is_on_the_page(page, subject):
    found = Tags(page)
    ids = {item.get("id") for _, item in found.tags}
    there = {name for name, what in FIGURES.items() if what.is_there(subject.dataset)}
    assert len(there) >= 12
    assert {f"figure-{name}" for name in there} == {
        item for item in ids if str(item).startswith("figure-")
    }
    labels = [item["aria-label"] for _, item in found.tags if item.get("role") == "img"]
    assert len(labels) == len(there)
    assert all(len(label) > 20 for label in labels)
    drawn = {FIGURES[name].section for name in there}
    assert {f"page-{name}" for name in (*drawn, "conditions")} <= ids


def test_tables_in_the_page_are_those_of_the_run(page, run):
    for name in ("e1", "margin"):
        (table,) = re.findall(rf'id="figure-{name}".*?<table>(.*?)</table>', page, re.DOTALL)
        cells = re.findall(r'<td class="n">(.*?)</td>', table)
        expected = run.tracked.matrix("e1").ravel() if name == "e1" else MARGINS
        shown = [f"{value:.4g}" for value in expected if np.isfinite(value)]
        assert set(shown) <= set(cells)


@pytest.mark.slow
def test_a_long_run_of_many_leaves_is_a_page_of_less_than_2_mb(tmp_path):
    steps = list(range(0, 1000, 100))
    e1 = np.random.default_rng(0).uniform(0, 1, (10, 10)).tolist()
    margins = np.linspace(0.1, 1.0, 10).tolist()
    leaves = [f"layer_{k}/kernel" for k in range(60)]
    options = {"n": 40, "n_outputs": 10, "leaves": leaves}
    write_tracked(tmp_path / "run", steps=steps, margins=margins, e1=e1, **options)
    write_watched(tmp_path / "run", np.linspace(0.1, 1.0, 5000).tolist())
    path = ntkdiag.open_run(tmp_path / "run").save(tmp_path / "report.html")
    assert 100_000 < path.stat().st_size < 2_000_000


def test_a_log_of_watch_alone_is_a_report(tmp_path):
    write_watched(tmp_path / "run", [0.3, 0.5, 1.6])
    run = ntkdiag.open_run(tmp_path / "run")
    assert run.tracked is None
    words = words_of(run.save(tmp_path / "report.html").read_text())
    assert "The stability margin is at most 1.6 (step 20) and ends at 1.6;" in words


def flip_a_bit_of(run, step, key):
    path = run.root / "arrays" / "track" / f"{step}.npz"
    content = bytearray(path.read_bytes())
    numbers = run.array(step, key).tobytes()
    content[content.index(numbers)] ^= 1
    path.write_bytes(content)


def test_damaged_eigenvalues_are_named_and_no_kernel_is_read(tmp_path):
    write_tracked(tmp_path / "run", steps=STEPS, margins=MARGINS, e1=E1)
    run = ntkdiag.open_run(tmp_path / "run")
    flip_a_bit_of(run, STEPS[0], "kernel")
    run.save(tmp_path / "before.html")
    flip_a_bit_of(run, STEPS[0], "eigenvalues")
    with pytest.raises(errors.CheckpointError, match="eigenvalues"):
        run.save(tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_several_monitors_are_told_apart(tmp_path):
    write_watched(tmp_path, [0.3, 0.5])
    (tmp_path / "watch.jsonl").rename(tmp_path / "first.jsonl")
    write_watched(tmp_path, [0.9])
    subject = RunSubject.of(None, ntkdiag.open_run(tmp_path))
    assert subject.dataset["watch_margin"].values.tolist() == [0.3, 0.5]
    assert subject.left_out == ["the measurements of watch.jsonl"]


def test_numbers_as_json(run, tmp_path):
    content = json.loads(run.save(tmp_path / "run.json").read_text())
    assert content["streams"].keys() == {"track", "watch"}
    assert [row["margin"] for row in content["streams"]["track"]["rows"]] == MARGINS
    assert content["matrices"]["e1"][0] == [None, 0.31, 0.52, 0.87]
    of_track = json.loads(run.tracked.save(tmp_path / "track.json").read_text())
    assert [row["step"] for row in of_track["checkpoints"]] == STEPS


def test_paths_that_cannot_be_written_are_refused_first(run, tmp_path, monkeypatch):
    monkeypatch.setattr("ntkdiag.report.run_page.RunSubject.of", None)  # nothing is read
    with pytest.raises(errors.InvalidInputError, match=r"Write run\.save\(\"report\.html\"\)"):
        run.save(tmp_path / "report.pdf")
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(errors.InvalidInputError, match=r"got a folder\. Choose another path\."):
        run.tracked.save(tmp_path / "taken.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.InvalidInputError, match="which cannot"):
        run.save(tmp_path / "file" / "report.html")


def test_a_run_without_numbers_of_ours_has_no_report(tmp_path):
    with RunWriter(tmp_path / "run", {"source": "mine"}, name="own") as writer:
        writer.write(0, {"number": 1}, {})
    with pytest.raises(errors.InvalidInputError) as refused:
        ntkdiag.open_run(tmp_path / "run").save(tmp_path / "report.html")
    assert "expected checkpoints of ntkdiag.track, or measurements of ntkdiag.watch" in str(
        refused.value
    )
    assert "Track the checkpoints into it: ntkdiag.track(..., out=...)." in str(refused.value)
    assert not (tmp_path / "report.html").exists()
