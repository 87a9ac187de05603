"""What the report of a run says: the words of a comparison, all numbers there are, and nothing of what is not known."""

import jax
import numpy as np
import pytest
from internals import RunSubject, answers_of, linear_from, wilson_interval
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
    """A run of these checkpoints, as its report sees it."""
    settings = {"loss": "cross_entropy", "descent": 0.1, **options}
    run = ntkdiag.track(enumerate(checkpoints), model=model, train=(X, Y), **settings)
    return run, RunSubject.of(run, None)


def written(tmp_path, margins, *, watched=(), e1=None):
    """A stored run with these margins."""
    steps = [10 * k for k in range(len(margins))]
    if e1 is None:
        e1 = np.full((len(steps), len(steps)), 0.5)
        np.fill_diagonal(e1, 0.0)
    write_tracked(tmp_path, steps=steps, margins=list(margins), e1=e1)
    if watched:
        write_watched(tmp_path, watched)
    run = ntkdiag.open_run(tmp_path)
    return RunSubject.of(run.tracked, run)


def everything(subject):
    """All sentences."""
    said = answers_of(subject).values()
    return "\n".join(f"{answer.sentence} {answer.trust}" for answer in said)


@pytest.mark.slow
def test_a_dead_run_is_called_that():
    dead = start(b1=np.full(8, -50.0))
    _, subject = tracked(start(), dead, {**dead, "b2": np.ones(C, np.float32)})
    said = answers_of(subject)
    sentence = "The network is dead from step 1 on: no parameter tells two examples apart"
    assert said["training"].sentence.startswith(sentence)
    assert said["regime"].sentence.startswith(sentence)
    for untrue in ("rotated", "could be larger", "–", "nan"):
        assert untrue not in everything(subject)


def test_a_collapsed_run_is_called_that():
    _, subject = tracked(start(), start(w2=np.zeros((8, C))))
    said = everything(subject)
    assert answers_of(subject)["training"].sentence.startswith(
        "The network has collapsed from step 1 on: its outputs are the same for every example"
    )
    assert "could be larger" not in said


def test_a_run_that_is_alive_is_told_neither():
    _, subject = tracked(start(), start(w1=start()["w1"] * 1.1))
    assert "dead" not in everything(subject)
    assert "collapsed" not in everything(subject)


def test_the_headline_rests_on_checkpoints_and_monitor(tmp_path):
    """Between the checkpoints the margin was ten times what it is at any of them."""
    subject = written(tmp_path, [0.045, 0.04, 0.03], watched=(0.1, 0.452, 0.2))
    said = answers_of(subject)["training"]
    # Upper ends are twice the values.
    assert said.sentence.startswith("Training was stable: the margin was at most 0.452 at step 10")
    assert "Of 3 checkpoints" in said.trust
    assert "3 measurements while training" in said.trust
    assert "larger the margin is lower" not in said.trust


def test_nearly_linear_is_said_where_all_later_checkpoints_are(tmp_path):
    e1 = np.full((5, 5), 0.5)
    e1[:, -1] = [0.5, 0.05, 0.4, 0.05, 0.0]
    np.fill_diagonal(e1, 0.0)
    subject = written(tmp_path, [0.6] * 5, e1=e1)
    assert linear_from(subject) == 3
    assert "from step 30 on it is nearly linear" in answers_of(subject)["regime"].sentence


def test_the_interval_of_an_accuracy():
    assert wilson_interval(1.0, 12) == pytest.approx((0.757, 1.0), abs=1e-3)
    assert wilson_interval(0.5, 10) == pytest.approx((0.237, 0.763), abs=1e-3)


def test_twelve_of_twelve_right_are_not_certain():
    centres = np.eye(C, 4, dtype=np.float32)[Y] * 20
    right = start(w1=np.eye(4, 8) * 1.0, w2=np.eye(8, C) * 1.0)
    run = ntkdiag.track(
        enumerate([start(), right]), model=model, train=(centres, Y), loss="cross_entropy"
    )
    trust = answers_of(RunSubject.of(run, None))["generalization"].trust
    assert "an accuracy of 100.0 % a 95 % interval of 75.8 % to 100.0 %" in trust


@pytest.mark.slow
def test_comparison_and_run_say_the_same_of_the_alignment():
    a, b = start(), start(w1=start()["w1"] + 0.3)
    run, subject = tracked(a, b)
    comparison = ntkdiag.compare(a, b, model=model, train=(X, Y), loss="cross_entropy", descent=0.1)
    words = {"grew": "grew", "fell": "fell", "same": "stayed about the same"}
    sentence = answers_of(subject)["generalization"].sentence
    is_at_chance = "is at chance" in sentence
    assert is_at_chance or words[comparison.verdict.task] in sentence
    assert run.names
