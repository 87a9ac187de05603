"""Weights and ignored positions against a sum written by hand, and labels that no kernel can be aligned with."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import NO_LABELS, CustomLoss, alignable_targets, why_not_alignable

from ntkdiag.errors import InvalidInputError
from ntkdiag.losses import MSE, CrossEntropy, SigmoidCrossEntropy, Weighted

N, T, V = 5, 2, 3
RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(size=(N, T, V))
CLASSES = RNG.integers(0, V, (N, T))
TARGETS = RNG.normal(size=(N, T, V))
BINARY = RNG.integers(0, 2, (N, T, V)).astype(float)
BY_EXAMPLE = np.array([0.0, 2.0, 1.0, 0.5, 3.0])
BY_POSITION = RNG.random((N, T)) * (RNG.random((N, T)) < 0.7)


def token_loss(outputs):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, CLASSES)


def mean_of(each, weights):
    return jnp.sum(each * weights) / jnp.sum(weights)


CASES = [
    (CrossEntropy(), CLASSES, BY_POSITION, lambda f: mean_of(token_loss(f), BY_POSITION)),
    (
        SigmoidCrossEntropy(denominator=4.0),
        BINARY,
        BINARY == 1,
        lambda f: jnp.sum(optax.sigmoid_binary_cross_entropy(f, BINARY) * (BINARY == 1)) / 4.0,
    ),
]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_value_and_curvature_with_weights():
    for loss, labels, weights, by_hand in CASES:
        y = loss.read(Weighted(labels, weights), OUTPUTS.shape)
        np.testing.assert_allclose(loss(OUTPUTS, y), by_hand(OUTPUTS), rtol=1e-12)
        gradient = jax.grad(by_hand)(OUTPUTS)
        np.testing.assert_allclose(jax.grad(loss)(OUTPUTS, y), gradient, atol=1e-14)
        flat = OUTPUTS.reshape(-1)
        hessian = jax.hessian(lambda f, by_hand=by_hand: by_hand(f.reshape(OUTPUTS.shape)))(flat)
        want = loss.denominator_for(OUTPUTS.shape) * np.asarray(hessian)
        matrix = np.asarray(loss.curvature(OUTPUTS, y).times(jnp.eye(flat.size)))
        np.testing.assert_allclose(matrix @ matrix.T, want, atol=1e-12)
        # What is read already stays as it is, and is read alike inside of a program.
        again = loss.read(y, OUTPUTS.shape)
        traced = jax.jit(
            lambda w, loss=loss, labels=labels: loss(
                OUTPUTS, loss.read(Weighted(labels, w), OUTPUTS.shape)
            )
        )(weights)
        np.testing.assert_allclose(loss(OUTPUTS, again), by_hand(OUTPUTS), rtol=1e-12)
        np.testing.assert_allclose(traced, by_hand(OUTPUTS), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_what_is_ignored_has_no_loss_and_no_curvature():
    """-100 as PyTorch has it, -1 as Optax users do, and a padding token that is one of the classes."""
    for ignore in [-100, 2]:
        labels = np.where(RNG.random((N, T)) < 0.4, ignore, CLASSES)
        counts = labels != ignore
        each = optax.softmax_cross_entropy_with_integer_labels(OUTPUTS, np.where(counts, labels, 0))
        loss = CrossEntropy(ignore=ignore)
        for shaped in (labels, labels[..., None], labels.tolist()):
            y = loss.read(shaped, OUTPUTS.shape)
            np.testing.assert_allclose(loss(OUTPUTS, y), mean_of(each, counts), rtol=1e-12)
            again = loss.read(y, OUTPUTS.shape)
            np.testing.assert_allclose(loss(OUTPUTS, again), mean_of(each, counts), rtol=1e-12)
        matrix = np.asarray(loss.curvature(OUTPUTS, labels).times(jnp.eye(OUTPUTS.size)))
        diagonal = (matrix @ matrix.T).diagonal().reshape(N, T, V)
        assert (diagonal[~counts] == 0).all()
        assert (diagonal[counts] > 0).all()
        weighted = loss.read(Weighted(labels, BY_EXAMPLE), OUTPUTS.shape)
        both = counts * BY_EXAMPLE[:, None]
        np.testing.assert_allclose(loss(OUTPUTS, weighted), mean_of(each, both), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_what_stands_where_there_is_no_weight_does_not_matter():
    """Labels of -100 below a mask of padding, rows of zeros, numbers that are missing."""
    has_weight = BY_POSITION > 0
    marked = np.where(has_weight, CLASSES, -100)
    rows_of_zeros = np.eye(V)[CLASSES] * has_weight[..., None]
    for labels in (marked, marked[..., None], rows_of_zeros, rows_of_zeros.astype(int)):
        y = CrossEntropy().read(Weighted(labels, BY_POSITION), OUTPUTS.shape)
        want = mean_of(token_loss(OUTPUTS), BY_POSITION)
        np.testing.assert_allclose(CrossEntropy()(OUTPUTS, y), want, rtol=1e-12)
    missing = np.where(has_weight[..., None], TARGETS, np.nan)
    y = MSE(denominator=3.0).read(Weighted(missing, has_weight), OUTPUTS.shape)
    want = np.nansum(0.5 * (OUTPUTS - missing) ** 2) / 3.0
    np.testing.assert_allclose(MSE(denominator=3.0)(OUTPUTS, y), want, rtol=1e-12)


def concordance(outputs, y):
    return jnp.mean(outputs)


def test_why_a_kernel_cannot_be_aligned_with_labels():
    for y, loss, reason in [
        (None, CustomLoss(concordance), NO_LABELS),
        (
            {"tokens": CLASSES},
            CustomLoss(concordance),
            "the labels are a dict, in which the targets",
        ),
        (
            np.eye(N, 7),
            CustomLoss(concordance),
            "labels of shape (5, 7) beside outputs of (5, 2, 3)",
        ),
        (np.zeros((N, T, V)), MSE(), "the labels are the same for every example"),
        (
            np.where(CLASSES == 1, -100, CLASSES),
            CrossEntropy(ignore=-100),
            "some labels are ignored",
        ),
        (Weighted(CLASSES, BY_EXAMPLE), CrossEntropy(), "not all labels have weight"),
        (CLASSES, CrossEntropy(ignore=-100), ""),
        (CLASSES, CustomLoss(concordance), ""),
    ]:
        found = why_not_alignable(y, OUTPUTS.shape, loss)
        assert found.startswith(reason)
        assert bool(found) == bool(reason)
        targets = alignable_targets(y, OUTPUTS.shape, loss)
        assert (targets is None) == bool(reason)
        if targets is not None:
            assert targets.shape == OUTPUTS.shape


@pytest.mark.usefixtures("wrong_types")
def test_messages():
    for call, message in [
        (
            lambda: CrossEntropy().read(CLASSES - 1, OUTPUTS.shape),
            "Pass loss=ntkdiag.losses.CrossEntropy(ignore=-1) where -1 marks positions without a",
        ),
        (
            lambda: MSE().read(Weighted(TARGETS, -BY_EXAMPLE), OUTPUTS.shape),
            "Weights below 0, such as advantages, need a loss of your own: loss(outputs, y) with y",
        ),
        (
            lambda: CustomLoss(concordance).read(Weighted(CLASSES, BY_EXAMPLE), OUTPUTS.shape),
            'Pass y={"labels": ..., "weights": ...}, which the loss receives unchanged.',
        ),
    ]:
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            call()
