"""Measurements as plain values."""

import json

import jax
import jax.numpy as jnp
import optax
import pytest
from monitor_problem import f, problem

from ntkdiag import Monitor


def test_what_could_not_be_measured():
    params, x, y = problem()
    monitor = Monitor(f, train=(x, y), instruments="kernel")
    broken = monitor(0, jax.tree.map(lambda leaf: leaf * jnp.nan, params))
    stored = broken.to_dict()
    assert (stored["status"], stored["trace"]) == ("NON_FINITE", None)
    assert stored["eigenvalues"] == [None] * 5


@pytest.fixture(scope="module")
def estimated():
    """A measurement of the tiers whose numbers have intervals."""
    params, x, y = problem()
    tx = optax.sgd(0.1)
    options = {"loss": "mse", "optimizer": tx, "instruments": ("economy", "spectral")}
    return Monitor(f, train=(x, y), time_share=None, **options)(0, params, tx.init(params))


@pytest.mark.slow
def test_intervals_in_plain_values(estimated):
    stored = json.loads(json.dumps(estimated.to_dict(), allow_nan=False))
    margin = estimated["margin"]
    assert stored["margin_lower"] == float(margin.lower)
    assert stored["margin_upper"] == float(margin.upper)
    assert "loss_lower" not in stored  # it is computed, not estimated
