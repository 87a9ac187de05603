"""Comparisons as tables of a notebook and as figures."""

import json

import numpy as np
import pytest

import ntkdiag


def f(params, x):
    return np.tanh(1.0) * x @ params["w"]


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3)).astype(np.float32)
    a = {"w": rng.normal(size=(3, 2)).astype(np.float32)}
    b = {"w": a["w"] + 1}
    return ntkdiag.compare(
        a,
        b,
        model=f,
        train=(x, np.arange(6) % 2),
        loss="mse",
        descent=0.1,
    )


def test_pandas(comparison):
    pytest.importorskip("pandas")
    frame = comparison.to_pandas()
    assert list(frame.index) == ["a", "b"]
    assert frame["label"].tolist() == ["A", "B"]
    assert frame.loc["b", "trace"] == comparison.b["trace"]
    assert frame.loc["a", "margin"] == comparison.a["margin"]
    assert frame.loc["a", "loss"] == comparison.a["loss"]
    assert frame.attrs["between"]["e1"] == comparison["e1"]
    assert frame.attrs["between"]["drift_distance"] == float(comparison["drift_distance"])
    assert frame.attrs["verdict"] == comparison.verdict.to_dict()
    assert frame.attrs["reduction"] == "full"


def test_xarray(comparison, tmp_path):
    xarray = pytest.importorskip("xarray")
    dataset = comparison.to_xarray()
    assert dict(dataset.sizes) == {
        "side": 2,
        "mode": 12,
        "example": 6,
        "output": 2,
        "label_mode": 12,
        "leaf": 1,
    }
    np.testing.assert_array_equal(dataset["outputs"].sel(side="b"), comparison.b.outputs)
    np.testing.assert_array_equal(dataset["outputs_linearized"], comparison["outputs_linearized"])
    np.testing.assert_array_equal(
        dataset["eigenvalues"].sel(side="a"), comparison.a.spectrum.eigenvalues
    )
    np.testing.assert_array_equal(dataset["label_power"].sel(side="a"), comparison.a["label_power"])
    assert dataset["leaf_shares"].dims == ("side", "leaf")
    assert dataset["leaf_moved"].sel(leaf="w") == comparison.movement[0].moved
    assert dataset["drift"] == float(comparison["drift"])
    assert dataset["label"].values.tolist() == [0, 1] * 3
    assert dataset.attrs["model_mode"] == comparison.facts["mode"]
    assert json.loads(dataset.attrs["verdict"])["name"] == comparison.verdict.name
    dataset.to_netcdf(tmp_path / "comparison.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "comparison.nc", engine="scipy") as read:
        xarray.testing.assert_equal(read.load(), dataset)
