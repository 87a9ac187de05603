"""Losses as people train them, in `compare` and `track`: margins of dense matrices, losses, what is left out."""

import jax
import numpy as np
import optax
import pytest
from losses_of_people import CASES, curvature_of

import ntkdiag

pytestmark = pytest.mark.slow
RATE_ONE = 1.0
NAMES = ("weighted_tokens", "contrastive", "actor_critic", "two_terms")


def moved(params):
    return jax.tree.map(lambda leaf: 1.1 * leaf, params)


@pytest.mark.parametrize("name", NAMES)
def test_margins_and_losses_of_both_sides(name):
    """By the full kernel, by products beside a reduced one, and by the state of the optimizer."""
    case = CASES[name]()
    want = 0.5 * curvature_of(case)
    loss = case.of_outputs(case.f(case.params, case.train[0]))
    state = optax.sgd(RATE_ONE).init(case.params)
    plain = case.params, moved(case.params)
    stored = tuple({"params": params, "opt_state": state} for params in plain)
    ways = [
        (plain, {"descent": RATE_ONE}),
        (plain, {"descent": RATE_ONE, "reduction": "mean"}),
        (stored, {"optimizer": optax.sgd(RATE_ONE)}),
    ]
    for sides, options in ways:
        comparison = ntkdiag.compare(
            *sides, model=case.f, train=case.train, loss=case.loss, **options
        )
        np.testing.assert_allclose(comparison.a.margin, want, rtol=1e-4)
        np.testing.assert_allclose(comparison.a.loss, loss, rtol=1e-5)
        assert comparison.a.alignment is None
        assert comparison.a.accuracy is None
        assert any("alignment, label power, leave-one-out" in note for note in comparison.notes)


def test_labels_that_all_have_weight_are_aligned_with():
    case = CASES["weighted_regression"]()
    comparison = ntkdiag.compare(
        case.params, moved(case.params), model=case.f, train=case.train, loss=case.loss
    )
    x, y, _ = case.train
    plain = ntkdiag.compare(
        case.params, moved(case.params), model=case.f, train=(x, y), loss=case.loss
    )
    np.testing.assert_allclose(comparison.a.alignment.value, plain.a.alignment.value)
    assert comparison.a.loss != pytest.approx(plain.a.loss, rel=1e-3)
    assert comparison.facts["loss"] == (
        "1/2 squared error, summed over outputs, mean over examples, with weights"
    )
