"""`track` of checkpoints that come one after the other: a training that goes on, a generator."""

import itertools
import shutil
import signal
import threading
import time

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import ntkdiag
from ntkdiag import errors
from ntkdiag.comparison import checkpoint_stream

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
    monkeypatch.setattr(checkpoint_stream, "POLL_SECONDS", 0.02)


class Training:
    """Saves a checkpoint whenever it is looked for new ones, and ends after the last."""

    def __init__(self, root, *steps, keep=None):
        self.root, self.steps, self.keep = root, list(steps), keep
        self.looks = 0

    def __call__(self):
        self.looks += 1
        if self.steps:
            save(self.root, self.steps.pop(0))
        return bool(self.steps)


@pytest.mark.long
def test_new_checkpoints_are_measured_until_training_says_that_it_ended(expected, tmp_path):
    training = Training(tmp_path / "run", *STEPS)  # the folder is not there at first
    assert_same(tracked(tmp_path / "run", follow=training, out=tmp_path / "ntk"), expected)
    assert training.looks >= len(STEPS)
    assert ntkdiag.open_run(tmp_path / "ntk").steps() == list(STEPS)


def test_steps_in_any_order_and_named_ones_are_enough(expected, tmp_path):
    training = Training(tmp_path, 30, 0, 20, 10, 40)
    assert_same(tracked(tmp_path, follow=training, steps=STEPS), expected)
    assert training.steps == [40]  # all that was asked for had come


def test_patience_ends_it(tmp_path):
    save(tmp_path / "run", 0, 10)
    begun = time.monotonic()
    assert tracked(tmp_path / "run", follow=True, patience=0.3).steps == [0, 10]
    assert time.monotonic() - begun >= 0.3
    with pytest.raises(errors.CheckpointError) as caught:
        tracked(tmp_path / "empty", follow=True, patience=0.1)
    assert str(caught.value) == (
        f"track(run): expected a finished checkpoint in {str(tmp_path / 'empty')!r}; got none "
        "until the end of patience=, or of follow=. Wait longer, or check that training saves there."
    )


def test_interrupted_it_returns_what_there_is(tmp_path):
    save(tmp_path, 0, 10)
    looks = itertools.count()

    def interrupted():
        if next(looks) == 2:  # both were measured
            signal.raise_signal(signal.SIGINT)
        return True

    assert tracked(tmp_path, follow=interrupted).steps == [0, 10]
    looks = itertools.count(2)
    with pytest.raises(KeyboardInterrupt):  # there is nothing yet
        tracked(tmp_path / "empty", follow=interrupted)


def test_saves_under_way_do_not_count(tmp_path):
    save(tmp_path, 0)
    shutil.copytree(tmp_path / "0", tmp_path / "10.orbax-checkpoint-tmp-0")
    assert tracked(tmp_path, follow=True, patience=0.1).steps == [0]


def test_a_checkpoint_that_is_removed_before_it_is_read_is_left_out(tmp_path, monkeypatch):
    save(tmp_path, *STEPS)
    read = ntkdiag.comparison.track.read_side

    def removed(source, *arguments, **options):
        if source.value.endswith("10"):
            shutil.rmtree(source.value)
        return read(source, *arguments, **options)

    monkeypatch.setattr(ntkdiag.comparison.track, "read_side", removed)
    assert tracked(tmp_path, follow=True, patience=0.1).steps == [0, 20, 30]
    with pytest.raises(errors.CheckpointError):
        tracked([tmp_path / "20", tmp_path / "10"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ((step, RUN[step]) for step in STEPS),
        lambda: ((np.int64(step), RUN[step]) for step in reversed(STEPS)),
        lambda: iter(RUN.items()),
    ],
)
def test_generators_of_pairs(make, expected):
    assert_same(tracked(make()), expected)


def test_generators_of_checkpoints_are_numbered(expected):
    result = tracked(RUN[step] for step in STEPS)
    assert result.steps == [0, 1, 2, 3]
    np.testing.assert_allclose(result.matrix("e1"), expected.matrix("e1"), rtol=1e-4)


def test_a_generator_is_asked_for_one_after_the_other(tmp_path):
    out, n_stored = tmp_path / "ntk", []

    def generated():
        for step in STEPS:
            stored = (out / "track.jsonl").exists()
            n_stored.append(len(ntkdiag.open_run(out).steps()) if stored else 0)
            yield step, RUN[step]

    assert tracked(generated(), out=out, steps=[0, 10, 20]).steps == [0, 10, 20]
    assert n_stored == [0, 1, 2]  # and not after the last one that was asked for


def test_a_generator_is_traced_once():
    traces = []

    def counted(params, x):
        traces.append(1)
        return model(params, x)

    counts = []
    for count in (2, 4):
        traces.clear()
        ntkdiag.clear_caches()
        tracked(((step, RUN[step]) for step in STEPS[:count]), model=counted)
        counts.append(len(traces))
    assert counts[0] == counts[1]


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
    kernel = tmp_path / "arrays" / "track" / "10" / "kernel.npy"
    damaged = bytearray(kernel.read_bytes())
    damaged[-7] ^= 1
    kernel.write_bytes(damaged)
    assert_same(tracked(RUN, out=tmp_path), expected)
    ntkdiag.open_run(tmp_path).arrays("kernel")  # as written


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (iter(()), {}, "got no item. A generator that was used up yields nothing"),
        (iter([1]), {"steps": [5]}, "got none of the steps that steps= asks for"),
        (iter([1]), {"last": 2}, "expected checkpoints that are all there; got a generator"),
        ("run", {"last": 2, "follow": True}, "got a training that is followed. Which are the last"),
        ([1], {"follow": True}, "expected the root of a CheckpointManager to follow; got a list"),
        ("run", {"follow": 3}, "expected True, or a function without arguments .* got 3"),
        ("run", {"patience": 3}, "beside follow=True; got no follow"),
        ("run", {"patience": 0, "follow": True}, "seconds to wait .* got 0. Write follow=True"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_what_does_not_go_together_is_refused(source, options, said):
    with pytest.raises(errors.InvalidInputError, match=said):
        tracked(source, **options)


def test_a_step_that_comes_twice_is_refused():
    with pytest.raises(errors.InvalidInputError, match="one for each step; got step 10 twice"):
        tracked([*RUN.items(), (10, RUN[0])].__iter__())


def test_what_can_become_no_root_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CheckpointError, match="a file of no format that is known"):
        tracked(tmp_path / "file", follow=True)
    save(tmp_path / "run", 0)
    with pytest.raises(errors.CheckpointError, match="no finished numbered step in it"):
        tracked(tmp_path / "run" / "0", follow=True)


def test_two_that_track_into_one_directory(tmp_path):
    """The second is refused while the first one waits, and goes on when it has ended."""
    save(tmp_path / "run", 0, 10)
    ends, results = threading.Event(), []

    def first():
        options = {"follow": lambda: not ends.is_set(), "out": tmp_path / "ntk"}
        results.append(tracked(tmp_path / "run", **options))

    thread = threading.Thread(target=first)
    thread.start()
    try:
        while not (tmp_path / "ntk" / "track.jsonl").exists():
            time.sleep(0.01)
        with pytest.raises(errors.InvalidInputError) as caught:
            tracked(tmp_path / "run", out=tmp_path / "ntk")
    finally:
        ends.set()
        thread.join()
    path = tmp_path / "ntk" / "track.jsonl"
    assert str(caught.value) == (
        f"track(run): expected a stream {str(path)!r} that nobody writes to; got one that is being "
        "written. Wait for its writer, or choose another folder; reading needs no lock: "
        "ntkdiag.open_run(path)."
    )
    assert results[0].steps == tracked(tmp_path / "run", out=tmp_path / "ntk").steps == [0, 10]


def test_progress_without_an_end(capsys, monkeypatch):
    monkeypatch.setattr("ntkdiag.progress.PATIENCE", 1e-6)

    tracked(iter(RUN.items()), progress=True)
    assert "tracking, step 20: 0%" in capsys.readouterr().err
