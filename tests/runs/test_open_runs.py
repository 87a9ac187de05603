"""Several runs as one dataset."""

import numpy as np
import pytest
from stored_runs import STEPS, N, kernels, store

import ntkdiag
from ntkdiag import errors


def refused(folders):
    with pytest.raises(errors.NtkdiagError) as caught:
        ntkdiag.open_runs(folders)
    return str(caught.value)


def test_numbers_of_all_runs_stand_along_run(tmp_path):
    folders = {f"seed {seed}": store(tmp_path / str(seed), seed) for seed in range(3)}
    runs = ntkdiag.open_runs(folders)
    assert runs["run"].values.tolist() == list(folders)
    assert runs["trace"].dims == ("run", "step")
    for seed in range(3):
        traces = [np.trace(kernel) for kernel in kernels(seed)]
        np.testing.assert_allclose(runs["trace"].sel(run=f"seed {seed}"), traces)
    assert runs["leaf_shares"].dims == ("run", "step", "leaf")
    assert runs.attrs["reduction"] == "full"


def test_a_run_is_nan_at_steps_it_does_not_have(tmp_path):
    paths = [store(tmp_path / "a", 0), store(tmp_path / "b", 1, steps=STEPS[:2])]
    runs = ntkdiag.open_runs(paths)
    assert runs["run"].values.tolist() == [str(path) for path in paths]
    assert np.isnan(runs["trace"].isel(run=1)).values.tolist() == [False, False, True, True]


def test_what_is_refused(tmp_path):
    a = store(tmp_path / "a", 0)
    probes = [{"name": "train", "examples": N, "x": "ef56", "y": "cd34"}]
    b = store(tmp_path / "b", 1, probes=probes)
    message = refused({"a": a, "b": b})
    assert message.startswith("open_runs(folders): expected runs with the same probes; got ")
    assert "ef56" in message
    assert refused([]).startswith("open_runs(folders): expected a list of run directories")
    assert refused(str(a)).startswith("open_runs(folders): expected a list of run directories")
    with pytest.raises(errors.CheckpointError):
        ntkdiag.open_runs([a, tmp_path / "none"])
