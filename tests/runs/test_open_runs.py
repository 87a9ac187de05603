"""Several runs as one dataset."""

import numpy as np
import pytest
from synthetic_run import write_tracked

import ntkdiag
from ntkdiag import errors

STEPS = (0, 1, 10, 100)


def store(root, seed, steps=STEPS, **changed):
    """A run directory, and its kernels."""
    none = np.zeros((len(steps), len(steps)))
    numbers = {"steps": steps, "margins": [0.5] * len(steps), "e1": none}
    return root, write_tracked(root, seed=seed, **numbers, **changed)


def refused(folders):
    with pytest.raises(errors.NtkdiagError) as caught:
        ntkdiag.open_runs(folders)
    return str(caught.value)


def test_numbers_of_all_runs_stand_along_run(tmp_path):
    stored = {f"seed {seed}": store(tmp_path / str(seed), seed) for seed in range(3)}
    folders = {name: root for name, (root, _) in stored.items()}
    runs = ntkdiag.open_runs(folders)
    assert runs["run"].values.tolist() == list(folders)
    assert runs["trace"].dims == ("run", "step")
    for name, (_, kernels) in stored.items():
        traces = [np.trace(kernel) for kernel in kernels]
        np.testing.assert_allclose(runs["trace"].sel(run=name), traces, rtol=1e-6)
    assert runs["leaf_shares"].dims == ("run", "step", "leaf")
    assert runs.attrs["reduction"] == "mean"


def test_a_run_is_nan_at_steps_it_does_not_have(tmp_path):
    paths = [store(tmp_path / "a", 0)[0], store(tmp_path / "b", 1, steps=STEPS[:2])[0]]
    runs = ntkdiag.open_runs(paths)
    assert runs["run"].values.tolist() == [str(path) for path in paths]
    assert np.isnan(runs["trace"].isel(run=1)).values.tolist() == [False, False, True, True]


def test_what_is_refused(tmp_path):
    a, _ = store(tmp_path / "a", 0)
    probes = [{"name": "train", "examples": 12, "x": "ef56", "y": "cd34"}]
    b, _ = store(tmp_path / "b", 1, probes=probes)
    message = refused({"a": a, "b": b})
    assert message.startswith("open_runs(folders): expected runs with the same probes; got ")
    assert "ef56" in message
    assert refused([]).startswith("open_runs(folders): expected a list of run directories")
    assert refused(str(a)).startswith("open_runs(folders): expected a list of run directories")
    with pytest.raises(errors.CheckpointError):
        ntkdiag.open_runs([a, tmp_path / "none"])
