"""Measurements as tables, figures and plain values."""

import json

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from monitor_problem import f, problem

from ntkdiag import Monitor


@pytest.fixture
def measurement():
    params, x, y = problem()
    return Monitor(f, train=(x, y), loss="mse", instruments="kernel", top_k=3)(0, params)


def test_in_a_notebook(measurement):
    page = measurement._repr_html_()
    assert "Step 0" in page
    meaning = "Sum of the eigenvalues: the overall speed of learning."
    assert f"<td>{float(measurement.trace):.4g}</td><td>{meaning}</td>" in page
    assert "Centred alignment of the full kernel with the labels" in page
    assert f"<td>{float(measurement.alignment_chance):.4g}</td>" in page
    assert "Descending; those below the noise floor are NaN." in page


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
    monitor = Monitor(f, train=(x, y), instruments="kernel")
    broken = monitor(0, jax.tree.map(lambda leaf: leaf * jnp.nan, params))
    stored = broken.to_dict()
    assert (stored["status"], stored["trace"]) == ("NON_FINITE", None)
    assert stored["eigenvalues"] == [None] * 5
    axes = broken.plot()
    assert axes.get_yscale() == "linear"
    plt.close(axes.figure)


@pytest.fixture(scope="module")
def estimated():
    """A measurement of the tiers whose numbers have intervals."""
    params, x, y = problem()
    tx = optax.sgd(0.1)
    options = {"loss": "mse", "optimizer": tx, "instruments": ("economy", "spectral")}
    return Monitor(f, train=(x, y), time_share=None, **options)(0, params, tx.init(params))


@pytest.mark.slow
def test_intervals_in_plain_values_and_notebooks(estimated):
    stored = json.loads(json.dumps(estimated.to_dict(), allow_nan=False))
    margin = estimated["margin"]
    assert stored["margin_lower"] == float(margin.lower)
    assert stored["margin_upper"] == float(margin.upper)
    assert "loss_lower" not in stored  # it is computed, not estimated
    shown = f"{float(margin.value):.4g}  [{float(margin.lower):.3g}, {float(margin.upper):.3g}]"
    assert f"<td>{shown}</td>" in estimated._repr_html_()
