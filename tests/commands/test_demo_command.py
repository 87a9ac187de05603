"""`ntkdiag demo`: the run it makes, the data it takes, and the settings it refuses."""

import os

import jax
import numpy as np
import pytest
from internals import first_of_each_class, load_digits

import ntkdiag
from ntkdiag import demo, load_params

pytest_plugins = ["shell"]


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A demo of a second: one probe example per class, two narrow layers, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "PROBE_PER_CLASS", 1)
    monkeypatch.setattr(demo, "WIDTHS", (2, 3))
    monkeypatch.setattr(demo, "EVERY", 2)


@pytest.mark.slow
def test_demo(shell, tiny, tmp_path):
    status, out, err = shell("demo", "--steps", 3)
    root = tmp_path / "runs" / "digits"
    assert (status, err) == (0, "")
    assert "step 2  loss" in out
    *_, report, folder = out.strip().splitlines()
    assert report == "report: runs/digits/report.html"
    assert folder == (f"checkpoints and measurements, too, are in runs/digits{os.sep}")
    assert "report of a run" in (root / "report.html").read_text(encoding="utf-8")
    assert sorted(int(path.name) for path in (root / "checkpoints").iterdir()) == [0, 1, 2, 3]
    run = ntkdiag.open_run(root)
    assert run.names == ["track", "watch"]
    watched, tracked = run.rows("watch"), run.rows("track")
    assert [row["step"] for row in watched] == [1, 2]
    assert [row["step"] for row in tracked] == [0, 1, 2, 3]
    assert run.record("watch")["loss"] == "cross_entropy"
    # What watch measured at a step is what track measures of its checkpoint.
    np.testing.assert_allclose(watched[1]["loss"], tracked[2]["loss"], rtol=1e-5)
    assert len(jax.tree.leaves(load_params(root / "checkpoints", 3))) == 6


def test_demo_never_writes_into_an_existing_folder(shell, tiny, tmp_path):
    (tmp_path / "mine").mkdir()
    status, _, err = shell("demo", "--out", "mine")
    assert status == 4
    assert (
        "ntkdiag demo --out mine: expected a folder that does not exist yet; got FileExistsError"
        in err
    )
    assert "a run is never overwritten" in err


def test_the_probes_are_stratified_and_what_their_names_say():
    digits = load_digits(0)
    trained = {image.tobytes() for image in digits.x_train}
    train, held_out = (digits.x_train, digits.y_train), (digits.x_test, digits.y_test)
    for images, is_trained in ((train, True), (held_out, False)):
        x, y = first_of_each_class(*images, 6)
        assert x.shape == (60, 8, 8, 1)
        assert list(np.bincount(y)) == [6] * 10
        assert {image.tobytes() in trained for image in x} == {is_trained}
