"""A comparison as a table, as a dataset, in a notebook and in files."""

import json

import numpy as np
import pandas
import pytest
import xarray

import ntkdiag
from ntkdiag import errors


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


def test_the_table(comparison):
    table = comparison.table()
    assert list(table.index) == ["a", "b", "a to b"]
    assert table.loc["b", "trace"] == comparison.b["trace"]
    assert table.loc["a", "margin"] == comparison.a["margin"]
    assert np.isnan(table.loc["a to b", "margin"])
    assert table.loc["a to b", "e1"] == comparison["e1"]
    of_a_section = comparison.table("With labels and a loss")
    assert {"loss", "margin"} < set(of_a_section) < set(table)
    with pytest.raises(errors.InvalidInputError, match="expected one of 'Of one kernel', "):
        comparison.table("loss")


def test_a_notebook_shows_findings_and_numbers(comparison):
    shown = comparison._repr_html_()
    assert all(finding.id in shown for finding in comparison.findings)
    assert "<th>participation_ratio</th>" in shown


def test_the_dataset(comparison, tmp_path):
    dataset = comparison.dataset
    assert dict(dataset.sizes) == {
        "side": 2,
        "mode": 12,
        "example": 6,
        "output": 2,
        "label_mode": 12,
        "leaf": 1,
    }
    np.testing.assert_array_equal(dataset["outputs"].sel(side="b"), comparison.sides[1].outputs)
    np.testing.assert_array_equal(dataset["outputs_linearized"], comparison["outputs_linearized"])
    np.testing.assert_array_equal(
        dataset["eigenvalues"].sel(side="a"), comparison.sides[0].eigenvalues
    )
    np.testing.assert_array_equal(
        dataset["label_power"].sel(side="a"), comparison.sides[0].arrays["label_power"]
    )
    assert dataset["leaf_shares"].dims == ("side", "leaf")
    assert dataset["leaf_moved"].sel(leaf="w") == comparison["leaf_moved"][0]
    assert dataset["drift"] == comparison["drift"]
    assert dataset["label"].values.tolist() == [0, 1] * 3
    assert dataset.attrs["model_mode"] == comparison.facts["mode"]
    assert json.loads(dataset.attrs["verdict"])["name"] == comparison.verdict.name
    path = comparison.save(tmp_path / "comparison.nc")
    with xarray.open_dataset(path, engine="scipy") as read:
        xarray.testing.assert_equal(read.load(), dataset)
    read = pandas.read_csv(comparison.save(tmp_path / "comparison.csv"), index_col=0)
    pandas.testing.assert_frame_equal(read, comparison.table(), rtol=1e-12, check_dtype=False)
