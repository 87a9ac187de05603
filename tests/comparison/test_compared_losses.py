"""Losses as people train them, in `compare` and `track`: margins of dense matrices, losses, what is left out."""

import jax
import numpy as np
import optax
import pytest
from losses_of_people import CASES, curvature_of

import ntkdiag

pytestmark = pytest.mark.slow
RATE_ONE = 1.0
NAMES = ("weighted_tokens", "contrastive")


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
        np.testing.assert_allclose(comparison.a["margin"], want, rtol=1e-4)
        np.testing.assert_allclose(comparison.a["loss"], loss, rtol=1e-5)
        assert not {"alignment", "accuracy"} & set(comparison.a)
        assert any("alignment, label power, leave-one-out" in note for note in comparison.notes)


def test_a_loss_of_the_user_beside_more_outputs_than_a_hessian_may_have_rows():
    n, t, v = 2, 30, 70  # 2100 outputs of an example
    params = {"embedding": 0.3 * np.random.default_rng(0).normal(size=(v, v)).astype("f")}

    def f(params, x):
        return jax.numpy.tanh(params["embedding"])[x]

    def loss(outputs, y):
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

    x = np.arange(n * t).reshape(n, t) % v
    y = (x + 1) % v
    comparison = ntkdiag.compare(
        params, moved(params), model=f, train=(x, y), loss=loss, descent=RATE_ONE
    )
    # Every token occurs once: one block of the Hessian of the loss for each.
    outputs = np.tanh(params["embedding"].astype(np.float64))[x.ravel()]
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    slopes = 1.0 - outputs**2
    curvatures = []
    for p, slope in zip(probabilities, slopes, strict=True):
        hessian = (np.diag(p) - np.outer(p, p)) * np.outer(slope, slope)
        curvatures.append(np.linalg.eigvalsh(hessian)[-1] / x.size)
    # Sixty blocks of nearly the same curvature: 16 products resolve it to some thousandths.
    np.testing.assert_allclose(comparison.a["margin"], 0.5 * max(curvatures), rtol=1e-2)
    loss_by_hand = -np.log(probabilities[np.arange(x.size), y.ravel()]).mean()
    np.testing.assert_allclose(comparison.a["loss"], loss_by_hand, rtol=1e-5)
