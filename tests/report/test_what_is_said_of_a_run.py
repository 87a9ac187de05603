"""What is found in a run: as in a comparison of its ends, all numbers there are, and nothing of what is not known."""

import jax
import numpy as np
import pytest
from internals import linear_from
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


def tracked(*checkpoints, **options):
    """The findings of a run of these checkpoints, by id."""
    settings = {"loss": "cross_entropy", "descent": 0.1, **options}
    run = ntkdiag.track(enumerate(checkpoints), model=model, train=(X, Y), **settings)
    return {finding.id: finding for finding in run.findings}


def written(tmp_path, margins, *, watched=(), e1=None):
    """The findings of a stored run with these margins, by id."""
    steps = [10 * k for k in range(len(margins))]
    if e1 is None:
        e1 = np.full((len(steps), len(steps)), 0.5)
        np.fill_diagonal(e1, 0.0)
    write_tracked(tmp_path, steps=steps, margins=list(margins), e1=e1)
    if watched:
        write_watched(tmp_path, watched)
    return {finding.id: finding for finding in ntkdiag.open_run(tmp_path).findings}


@pytest.mark.slow
def test_a_dead_run_is_called_that():
    dead = start(b1=np.full(8, -50.0))
    found = tracked(start(), dead, {**dead, "b2": np.ones(C, np.float32)})
    assert list(found) == ["dead"]
    sentence = "The network is dead from step 1 on: no parameter tells two examples apart"
    assert found["dead"].sentence.startswith(sentence)


@pytest.mark.slow
def test_a_collapsed_run_is_called_that():
    found = tracked(start(), start(w2=np.zeros((8, C))))
    assert list(found) == ["collapsed"]
    assert found["collapsed"].sentence.startswith(
        "The network has collapsed from step 1 on: its outputs are the same for every example"
    )


def test_the_margin_rests_on_checkpoints_and_monitor(tmp_path):
    """Between the checkpoints the margin was ten times what it is at any of them."""
    found = written(tmp_path, [0.045, 0.04, 0.03], watched=(0.1, 0.452, 0.2))["margin"]
    assert found.sentence == (
        "The stability margin is at most 0.452 (step 10) and ends at 0.03; the edge of stability is "
        "1."
    )
    assert found.trust == "Based on 6 measurements."


def test_nearly_linear_is_said_where_all_later_checkpoints_are(tmp_path):
    e1 = np.full((5, 5), 0.5)
    e1[:, -1] = [0.5, 0.05, 0.4, 0.05, 0.0]
    np.fill_diagonal(e1, 0.0)
    assert linear_from(e1) == 3
    found = written(tmp_path, [0.6] * 5, e1=e1)
    assert found["nonlinear-regime"].do == "Linearize at step 30."


def test_twelve_of_twelve_right_are_not_certain():
    centres = np.eye(C, 4, dtype=np.float32)[Y] * 20
    right = start(w1=np.eye(4, 8) * 1.0, w2=np.eye(8, C) * 1.0)
    run = ntkdiag.track(
        enumerate([start(), right]), model=model, train=(centres, Y), loss="cross_entropy"
    )
    [loss] = [finding for finding in run.findings if finding.id == "loss"]
    assert loss.trust == "An accuracy on 12 examples has a 95 % interval of 75.8 to 100.0 %."


def test_nothing_is_said_of_what_is_not_known():
    found = ntkdiag.track({0: start(), 1: start()}, model=model, held_out=(X, None)).findings
    assert [finding.id for finding in found] == ["unchanged"]


@pytest.mark.slow
def test_comparison_and_run_say_the_same():
    a, b = start(), start(w1=start()["w1"] + 0.3)
    found = tracked(a, b)
    comparison = ntkdiag.compare(a, b, model=model, train=(X, Y), loss="cross_entropy", descent=0.1)
    assert {finding.id for finding in comparison.findings} == set(found)
    for finding in comparison.findings:
        np.testing.assert_allclose(finding.value, found[finding.id].value, rtol=1e-5)
