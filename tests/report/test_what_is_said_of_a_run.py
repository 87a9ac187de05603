"""What is found in a run: as in a comparison of its ends, all numbers there are, and nothing of what is not known."""

import jax
import numpy as np
import pytest
from synthetic_run import write_tracked, write_watched

import ntkdiag

N, C = 12, 3
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % C


def model(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def start(**changed):
    rng = np.random.default_rng(1)
    params = {
        "w1": rng.normal(size=(4, 8)) / 2,
        "b1": np.zeros(8),
        "w2": rng.normal(size=(8, C)) / 3,
        "b2": np.zeros(C),
    }
    return {name: value.astype(np.float32) for name, value in {**params, **changed}.items()}


@pytest.mark.slow
def test_a_collapsed_run_is_called_that(tmp_path):
    checkpoints = [start(), start(w2=np.zeros((8, C)))]
    options = {"loss": "cross_entropy", "descent": 0.1}
    run = ntkdiag.track(enumerate(checkpoints), model=model, train=(X, Y), **options)
    found = {finding.id: finding for finding in run.findings}
    assert list(found) == ["collapsed"]
    with ntkdiag.Monitor(
        model, train=(X, Y), loss="cross_entropy", kernel=True, every=1, out=tmp_path
    ) as monitor:
        for step, params in enumerate(checkpoints):
            monitor(step, params)
    assert "collapsed" in {finding.id for finding in ntkdiag.open_run(tmp_path).findings}
    assert found["collapsed"].sentence.startswith(
        "The network has collapsed from step 1 on: its outputs are the same for every example"
    )


def test_the_margin_rests_on_checkpoints_and_monitor(tmp_path):
    """Between the checkpoints the margin was ten times what it is at any of them."""
    write_tracked(tmp_path, steps=[0, 10, 20], margins=[0.045, 0.04, 0.03], e1=np.full((3, 3), 0.5))
    write_watched(tmp_path, (0.1, 0.452, 0.2))
    (found,) = [one for one in ntkdiag.open_run(tmp_path).findings if one.id == "margin"]
    assert found.sentence == (
        "The stability margin is at most 0.452 (step 10) and ends at 0.03; the edge of stability is "
        "1."
    )
    assert found.trust == "Based on the 6 of 6 measurements that are not flagged."


def test_nothing_is_said_of_what_is_not_known():
    found = ntkdiag.track({0: start(), 1: start()}, model=model, held_out=(X, None)).findings
    assert [finding.id for finding in found] == ["unchanged"]
