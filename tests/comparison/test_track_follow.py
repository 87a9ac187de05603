"""`track` of checkpoints that come one after the other: a training that goes on, a generator."""

import itertools
import sys
import time

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import ntkdiag
from ntkdiag import errors
from ntkdiag.checkpoints import new_steps

RNG = np.random.default_rng(0)
TRAIN = RNG.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3
STEPS = (0, 10, 20, 30)


def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def params_at(step):
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(5, 4)), "v": rng.normal(size=(4, 3))}
    return {name: np.float32(leaf + 0.01 * step) for name, leaf in start.items()}


RUN = {step: params_at(step) for step in STEPS}


def tracked(run, **options):
    return ntkdiag.track(run, **{"model": model, "train": TRAIN, "loss": "mse", **options})


def save(root, *steps):
    """Finished checkpoints of a training."""
    with orbax.CheckpointManager(root) as manager:
        for step in steps:
            manager.save(step, args=orbax.args.StandardSave(params_at(step)), force=True)


def assert_same(result, expected):
    assert result.steps == expected.steps
    np.testing.assert_allclose(result.eigenvalues, expected.eigenvalues, rtol=1e-4, atol=1e-4)
    for name in ("distance", "e1", "overlap"):
        np.testing.assert_allclose(result.matrix(name), expected.matrix(name), rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def expected():
    return tracked(RUN)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(sys.modules[new_steps.__wrapped__.__module__], "POLL_SECONDS", 0.02)


def test_new_steps_come_as_they_are_finished_until_patience_ends(expected, tmp_path):
    root = tmp_path / "run"  # the folder is not there at first
    later = list(STEPS)

    def training():
        for step, path in itertools.chain([(None, None)], new_steps(root, patience=0.5)):
            if step is not None:
                assert path == str(root / str(step))
                yield step, path
            if later:
                save(root, later.pop(0))

    begun = time.monotonic()
    assert_same(tracked(training(), out=tmp_path / "ntk"), expected)
    assert time.monotonic() - begun >= 0.5
    assert ntkdiag.open_run(tmp_path / "ntk").steps() == list(STEPS)


def test_what_a_generator_yielded_before_an_error_stays(expected, tmp_path):
    def failing():
        yield 0, RUN[0]
        yield 10, RUN[10]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        tracked(failing(), out=tmp_path)
    assert ntkdiag.open_run(tmp_path).steps() == [0, 10]
    assert_same(tracked(iter(RUN.items()), out=tmp_path), expected)


def test_a_damaged_step_is_measured_once_more(expected, tmp_path):
    tracked(RUN, out=tmp_path)
    arrays = tmp_path / "arrays" / "track" / "10.npz"
    damaged = bytearray(arrays.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    arrays.write_bytes(damaged)
    assert_same(tracked(RUN, out=tmp_path), expected)
    ntkdiag.open_run(tmp_path).to_xarray()["kernel"]  # as written


@pytest.mark.usefixtures("wrong_types")
def test_what_does_not_go_together_is_refused():
    for source, options, said in (
        (iter(()), {}, "got none. .* A generator that was used up yields nothing"),
        (iter([(0, 1)]), {"steps": [5]}, "got no step 5"),
        (iter([1]), {}, r"expected pairs \(step, checkpoint\), .* got 1"),
        (iter([*RUN.items(), (10, RUN[0])]), {}, "one for each step; got step 10 twice"),
    ):
        with pytest.raises(errors.InvalidInputError, match=said):
            tracked(source, **options)
