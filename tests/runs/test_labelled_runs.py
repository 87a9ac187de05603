"""Runs as tables of pandas and datasets of xarray."""

import json
import sys

import numpy as np
import pytest
from internals import RunWriter

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import JsonLines

RECORD = {
    "reduction": "full",
    "seed": 3,
    "bytes": 2**40,
    "centred": True,
    "loss": None,
    "probe": {"examples": 4},
    "dims": {"kernel": ["example", "example_2"], "share": ["layer"]},
    "coordinates": {"layer": ["Dense_0", "Dense_1"], "seed": [0, 1]},
}
STEPS = (0, 10, 100)


def kernel(step):
    return np.random.default_rng(step).normal(size=(4, 4)).astype(np.float32)


@pytest.fixture
def run(tmp_path):
    with RunWriter.open(tmp_path, RECORD) as writer:
        for step in STEPS:
            row = {"loss": 1 / (1 + step), "status": "ok", "rank": step}
            arrays = {"kernel": kernel(step), "share": np.array([0.25, 0.75])}
            if step > 0:
                row["drift"] = step / 100
                arrays["velocity"] = np.full(2, step + 0.5)
            writer.write(step, row, {**arrays, "top": np.ones(step + 1)})
    lines = JsonLines(tmp_path / "ntk.jsonl")
    lines.start({"call": "watch"})
    for step in (0, 1):
        lines.write(step, {"trace": 2.0 + step, "eigenvalues": [2.0, float(step)]})
    return ntkdiag.open_run(tmp_path)


def test_pandas(run):
    pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert list(frame.index) == list(STEPS)
    assert frame.index.name == "step"
    assert list(frame.columns) == ["loss", "status", "rank", "drift"]
    assert frame["rank"].tolist() == list(STEPS)
    assert np.isnan(frame.loc[0, "drift"])
    assert frame.attrs["record"] == RECORD
    assert run.to_pandas("ntk")["trace"].tolist() == [2.0, 3.0]


def test_xarray(run):
    pytest.importorskip("xarray")
    dataset = run.to_xarray()
    assert dict(dataset.sizes) == {
        "step": 3,
        "example": 4,
        "example_2": 4,
        "layer": 2,
        "velocity_0": 2,
    }
    assert dataset["kernel"].dims == ("step", "example", "example_2")
    np.testing.assert_array_equal(dataset["kernel"].sel(step=10), kernel(10))
    assert dataset["share"].sel(layer="Dense_1").values.tolist() == [0.75] * 3
    np.testing.assert_array_equal(dataset["drift"], [np.nan, 0.1, 1.0])
    np.testing.assert_array_equal(dataset["velocity"][:, 0], [np.nan, 10.5, 100.5])
    assert dataset.attrs["left_out"] == "status, top"
    assert (dataset.attrs["reduction"], dataset.attrs["seed"]) == ("full", 3)
    for name in ("probe", "dims", "centred", "loss", "bytes"):
        assert json.loads(dataset.attrs[name]) == RECORD[name]
    lists = run.to_xarray("ntk")["eigenvalues"]
    assert lists.dims == ("step", "eigenvalues_0")
    assert lists.values.tolist() == [[2.0, 0.0], [2.0, 1.0]]


def test_netcdf_takes_it(run, tmp_path):
    xarray = pytest.importorskip("xarray")
    # SciPy keeps the mode of its file under the name of ours.
    JsonLines(run.root / "watch.jsonl").start({"call": "watch", "mode": "eval"})
    for name in ("track", "watch"):
        dataset = run.to_xarray(name)
        dataset.to_netcdf(tmp_path / f"{name}.nc", engine="scipy")
        with xarray.open_dataset(tmp_path / f"{name}.nc", engine="scipy") as read:
            xarray.testing.assert_equal(read.load(), dataset)
            attributes = dict(read.attrs)
    assert attributes["model_mode"] == "eval"


def test_a_run_without_a_step_yet(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    with RunWriter.open(tmp_path / "run", RECORD):
        run = ntkdiag.open_run(tmp_path / "run")
        assert len(run.to_pandas()) == 0
        assert dict(run.to_xarray().sizes) == {"step": 0}
        assert repr(run) == f"Run({str(tmp_path / 'run')!r}: track 0 steps)"


def test_of_a_step_that_was_measured_twice_the_later_row_holds(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    lines = JsonLines(tmp_path / "watch.jsonl")
    for step, trace in ((0, 1.0), (10, 2.0), (20, 3.0), (10, 2.5)):  # resumed from step 10
        lines.write(step, {"trace": trace})
    run = ntkdiag.open_run(tmp_path)
    dataset = run.to_xarray()
    assert dataset["step"].values.tolist() == [0, 10, 20]
    assert dataset["trace"].values.tolist() == [1.0, 2.5, 3.0]
    # Tables and rows are as they were written.
    assert run.to_pandas().index.tolist() == run.steps() == [0, 10, 20, 10]


def test_a_missing_library_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(errors.MissingDependencyError, match=r'pip install "ntkdiag\[data\]"'):
        run.to_xarray()
