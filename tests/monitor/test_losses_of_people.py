"""Losses as people train them, in every monitor: one margin, that of the dense Gauss-Newton matrix in float64."""

import functools

import numpy as np
import optax
import pytest
from losses_of_people import CASES, curvature_of

import ntkdiag
from ntkdiag.losses import Weighted
from ntkdiag.monitor import InMemory, Monitor


@functools.cache
def half_of_curvature(name):
    """The margin of gradient descent at rate 1."""
    return 0.5 * curvature_of(CASES[name]())


def monitored(case, **options):
    """A row of the parameters, with descent at rate 1."""
    memory = InMemory()
    options = {"instruments": "margin", "optimizer": optax.sgd(1.0), "every": 1} | options
    with Monitor(case.f, train=case.train, loss=case.loss, writers=memory, **options) as monitor:
        monitor(0, case.params, optax.sgd(1.0).init(case.params))
    return memory


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked_tokens", "contrastive"])
def test_the_margin_of_a_monitor(name):
    (row,) = monitored(CASES[name]()).rows
    np.testing.assert_allclose(row["margin"], half_of_curvature(name), rtol=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "weighted_tokens",
        "ignored_tokens",
        "missing_labels",
        pytest.param("actor_critic", marks=pytest.mark.slow),
    ],
)
def test_the_margin_of_the_operator(name):
    case = CASES[name]()
    x, *labels = case.train
    y = Weighted(*labels) if len(labels) == 2 else labels[0]
    operator = ntkdiag.NTKOperator(case.f, case.params, x)
    margin = ntkdiag.analysis.stability_margin(operator, 1.0, loss=case.loss, y=y)
    np.testing.assert_allclose(margin, half_of_curvature(name), rtol=1e-4)


@pytest.mark.slow
def test_the_record_says_what_is_left_out():
    case = CASES["masked_tokens"]()
    memory = monitored(case, instruments=("norms", "kernel"))
    assert memory.record["loss_in_words"].endswith("of the user")
    assert any(note.startswith("The alignment is NaN: ") for note in memory.record["notes"])
    assert np.isnan(memory.rows[0]["alignment"])
    want = case.of_outputs(case.f(case.params, case.train[0]))
    np.testing.assert_allclose(memory.rows[0]["loss"], want, rtol=1e-5)
