"""Examples of a probe in a run directory: labels as they came, and thumbnails of images."""

import jax.numpy as jnp
import numpy as np
import pytest
from internals import LONGEST_SIDE, MOST_THUMBNAILS, thumbnails

import ntkdiag
from ntkdiag import errors
from ntkdiag.comparison import Track

X = np.random.default_rng(0).uniform(size=(6, 8, 8)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])


def model(params, x):
    return jnp.tanh(x.reshape(x.shape[0], -1) @ params["first"]) @ params["last"]


def checkpoints():
    rng = np.random.default_rng(1)
    params = {"first": rng.normal(size=(64, 5)) / 8, "last": rng.normal(size=(5, 3))}
    params = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in params.items()}
    return {0: params, 7: {name: 1.1 * leaf for name, leaf in params.items()}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run") / "ntk"


@pytest.fixture(scope="module")
def result(folder):
    return ntkdiag.track(
        checkpoints(), model=model, train=(X, Y), loss="cross_entropy", descent=0.1, out=folder
    )


@pytest.mark.long
def test_examples_are_stored_once(result, folder):
    run = ntkdiag.open_run(folder)
    assert run.rows("probe") == [{"step": 0, "examples": 6}]
    np.testing.assert_array_equal(run.array(0, "labels", name="probe"), Y)
    shown = run.array(0, "thumbnails", name="probe")
    assert shown.dtype == np.uint8
    expected = np.round(255 * (X - X.min()) / (X.max() - X.min()))
    assert np.abs(shown[..., 0] - expected).max() <= 1
    record = run.record("probe")
    assert record["source"] == "probe"
    assert record["kernel_of"] == "train"
    assert record["probes"] == run.record("track")["probes"]

    lines = (folder / "probe.jsonl").read_bytes()
    again = ntkdiag.track(
        checkpoints(), model=model, train=(X, Y), loss="cross_entropy", descent=0.1, out=folder
    )
    assert again.steps == [0, 7]
    assert (folder / "probe.jsonl").read_bytes() == lines


def test_other_examples_are_refused_in_the_words_of_track(result, folder):
    with pytest.raises(errors.InvalidInputError, match="probes"):
        ntkdiag.track(
            checkpoints(),
            model=model,
            train=(X + 1, Y),
            loss="cross_entropy",
            descent=0.1,
            out=folder,
        )
    np.testing.assert_array_equal(ntkdiag.open_run(folder).array(0, "labels", name="probe"), Y)


def test_a_track_is_read_back_without_the_model(result, folder):
    read = Track.of_run(ntkdiag.open_run(folder))
    assert read.steps == result.steps
    assert read.names == result.names
    for name in result.names:
        np.testing.assert_array_equal(read.series(name), result.series(name))
    for name, matrix in result.matrices.items():
        np.testing.assert_array_equal(read.matrix(name), matrix)
    np.testing.assert_array_equal(read.eigenvalues, result.eigenvalues)
    np.testing.assert_array_equal(read.outputs, result.outputs)
    assert read.record == result.record
    assert ntkdiag.open_run(folder).tracked.steps == [0, 7]


def test_a_folder_without_checkpoints_is_no_track(tmp_path):
    (tmp_path / "track.jsonl").write_text('{"record": {"source": "track"}}\n')
    run = ntkdiag.open_run(tmp_path)
    with pytest.raises(errors.InvalidInputError) as refused:
        Track.of_run(run)
    assert str(refused.value) == (
        "Track.of_run(run): expected a run directory with a finished checkpoint; got "
        f"{run!r}. Track it: ntkdiag.track(..., out=...)."
    )
    assert run.tracked is None


def test_large_images_are_averaged():
    images = np.zeros((2, 100, 120, 3))
    images[:, :, 60:] = 2.0
    small = thumbnails(images)
    # Blocks of three by three pixels.
    assert small.shape == (2, 33, 40, 3)
    assert max(small.shape[1:3]) <= LONGEST_SIDE
    assert (small[:, :, :20] == 0).all()
    assert (small[:, :, 20:] == 255).all()


def test_of_many_images_the_first_are_shown():
    assert len(thumbnails(np.zeros((MOST_THUMBNAILS + 5, 8, 8, 1)))) == MOST_THUMBNAILS


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((4, 64)),
        np.zeros((4, 8, 8, 2)),
        np.zeros((4, 3, 8, 8)),
        np.zeros((4, 100, 8)),
        np.zeros((4, 2, 2)),
        {"a": np.zeros((4, 8, 8)), "b": np.zeros((4, 8, 8))},
    ],
    ids=["features", "two channels", "channels first", "sequence", "too small", "two arrays"],
)
def test_other_examples_have_no_thumbnails(x):
    assert thumbnails(x) is None
