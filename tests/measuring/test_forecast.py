"""What `track` and `compare` say before they begin: what they do, and how long it takes about."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from internals import Forecast, ForwardPass, ProbedFunction, duration, read_settings

import ntkdiag
from ntkdiag.measuring import forecast

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
TRAIN = X, np.arange(12) % 3


def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def params_at(step):
    rng = np.random.default_rng(step)
    return {
        "w": rng.normal(size=(5, 4)).astype(np.float32),
        "v": rng.normal(size=(4, 3)).astype(np.float32),
    }


RUN = {step: params_at(step) for step in (0, 1, 2)}


@pytest.fixture
def talkative(monkeypatch):
    monkeypatch.setattr(forecast, "WORTH_SAYING", 0.0)


@pytest.mark.usefixtures("talkative")
def test_a_log_without_a_terminal_is_told_before_the_work(capsys, tmp_path):
    ntkdiag.track(dict(list(RUN.items())[:1]), model=model, train=TRAIN, out=tmp_path / "ntk")
    _, err = capsys.readouterr()
    words = "tracking 1 checkpoint, full kernels of 12 examples with 3 outputs: about "
    assert err.startswith(words)
    # What is stored does not take anything.
    ntkdiag.track(RUN, model=model, train=TRAIN, out=tmp_path / "ntk")
    assert capsys.readouterr().err.startswith("tracking 2 checkpoints, full kernels of")
    ntkdiag.track(RUN, model=model, train=TRAIN, out=tmp_path / "ntk")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("talkative")
def test_compare_says_it_too(capsys):
    ntkdiag.compare(RUN[0], RUN[1], model=model, train=TRAIN, loss="cross_entropy")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"comparing two checkpoints, full kernels of 12 examples with 3 outputs: ", err)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("call", ["track", "compare"])
def test_it_can_be_switched_off(capsys, call):
    sources = (RUN,) if call == "track" else (RUN[0], RUN[1])
    getattr(ntkdiag, call)(*sources, model=model, train=TRAIN, progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("talkative")
def test_a_generator_has_no_end_that_could_be_told(capsys):
    ntkdiag.track(iter(RUN.items()), model=model, train=TRAIN)
    assert capsys.readouterr().err == ""


def test_short_work_says_nothing(capsys):
    ntkdiag.track(RUN, model=model, train=TRAIN)
    assert capsys.readouterr().err == ""


def test_the_line_adds_up():
    said = Forecast(
        "tracking 12 checkpoints, mean kernels of 4 examples with 70 outputs", 3.0, 12, 24.0, 30.0
    )
    assert said.seconds == 90.0
    assert str(said) == (
        "tracking 12 checkpoints, mean kernels of 4 examples with 70 outputs: about 90 s "
        "(3 s a checkpoint, 24 s for all pairs, 30 s to compile)"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "under 1 s"), (1.4, "1.4 s"), (99.0, "99 s"), (480.0, "8 min"), (9000.0, "2.5 h")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_operations_are_counted_by_those_of_the_forward_pass():
    settings = read_settings(TRAIN, None, "auto", None, None, None)
    function = ProbedFunction.of(model, RUN[0], {}, settings, (3,))
    passed = ForwardPass.timed(function, RUN[0], {})
    assert passed.flops == 2 * 12 * (5 * 4 + 4 * 3)
    assert passed.seconds_of(10 * passed.flops) == pytest.approx(10 * passed.seconds)
    assert ForwardPass(1.0, 0.0, 0.0).seconds_of(5.0) == 0.0  # no products: nothing can be said
