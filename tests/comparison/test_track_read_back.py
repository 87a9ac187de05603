"""A run directory of `track`, read back without the model."""

import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.mark.slow
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


@pytest.mark.slow
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
