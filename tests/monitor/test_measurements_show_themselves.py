"""Measurements as tables, figures and plain values."""

import json

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from monitor_problem import f, problem

from ntkdiag.monitor.hook import Monitor


@pytest.fixture
def measurement():
    params, x, y = problem()
    return Monitor(f, train=(x, y), top_k=3)(0, params)


def test_plain_values(measurement):
    stored = json.loads(json.dumps(measurement.to_dict(), allow_nan=False))
    assert (stored["step"], stored["status"]) == (0, "MEASURED")
    assert stored["trace"] == float(measurement.trace)
    assert stored["eigenvalues"] == measurement.eigenvalues.tolist()
    assert stored["margin"] is None
    assert stored["alignment_reduction"] == "full"


def test_in_a_notebook(measurement):
    page = measurement._repr_html_()
    assert "Kernel at step 0" in page
    assert f"<td>{float(measurement.trace):.4g}</td><td>sum of all eigenvalues</td>" in page
    assert "alignment with the labels, full kernel" in page
    assert f"<td>{float(measurement.alignment_chance):.4g}</td>" in page
    assert "the largest 3; NaN below the noise floor" in page


def test_plot(measurement):
    figure, axes = plt.subplots()
    assert measurement.plot(axes) is axes
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_ydata(), measurement.eigenvalues)
    assert (axes.get_yscale(), axes.get_title()) == ("log", "Largest eigenvalues at step 0")
    plt.close(figure)
    plt.close(measurement.plot().figure)


def test_what_could_not_be_measured():
    params, x, y = problem()
    broken = Monitor(f, train=(x, y))(0, jax.tree.map(lambda leaf: leaf * jnp.nan, params))
    stored = broken.to_dict()
    assert (stored["status"], stored["trace"]) == ("NON_FINITE", None)
    assert stored["eigenvalues"] == [None] * 5
    axes = broken.plot()
    assert axes.get_yscale() == "linear"
    plt.close(axes.figure)
