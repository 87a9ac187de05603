"""Losses as objects: values, labels, curvature factors against automatic differentiation, messages."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import CustomLoss, as_loss

from ntkdiag.errors import InvalidInputError
from ntkdiag.losses import MSE, CrossEntropy, SigmoidCrossEntropy

N, T, V = 4, 2, 3
RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(size=(N, T, V))
CLASSES = RNG.integers(0, V, (N, T))
ONE_HOT = np.eye(V)[CLASSES]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        pytest.param(
            MSE(), lambda f: 0.5 * np.sum((f - ONE_HOT) ** 2) / N, marks=pytest.mark.smoke
        ),
        (
            CrossEntropy(denominator=N),
            lambda f: optax.softmax_cross_entropy_with_integer_labels(f, CLASSES).sum() / N,
        ),
        (
            SigmoidCrossEntropy(),
            lambda f: optax.sigmoid_binary_cross_entropy(f, ONE_HOT).sum() / N,
        ),
    ],
)
def test_values(loss, expected):
    for labels in (CLASSES, CLASSES[..., None], ONE_HOT):
        y = loss.read(labels, OUTPUTS.shape)
        np.testing.assert_allclose(loss(jnp.asarray(OUTPUTS), y), expected(OUTPUTS), rtol=1e-12)
        total = loss.per_example(jnp.asarray(OUTPUTS), y).sum()
        np.testing.assert_allclose(total / loss.denominator_for(OUTPUTS.shape), expected(OUTPUTS))


def quartic(outputs, y):
    return jnp.mean(jnp.sum((outputs - y) ** 4, axis=(1, 2)))


def coupled(outputs, y):
    return quartic(outputs, y) + 0.2 * jnp.mean(outputs) ** 2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "loss", [CrossEntropy(), pytest.param(CustomLoss(coupled), marks=pytest.mark.slow)]
)
def test_factors_are_those_of_the_hessian(loss):
    """L L^T = D d^2 L / d f^2, and L^T K L by products from the left and the right."""
    y = ONE_HOT if isinstance(loss, CustomLoss) else loss.read(CLASSES, OUTPUTS.shape)
    flat = jnp.asarray(OUTPUTS.reshape(-1))
    hessian = jax.hessian(lambda f: loss(f.reshape(OUTPUTS.shape), y))(flat)
    expected = loss.denominator_for(OUTPUTS.shape) * np.asarray(hessian)
    factor = loss.curvature(OUTPUTS, y)
    matrix = np.asarray(factor.times(jnp.eye(flat.size)))
    np.testing.assert_allclose(matrix @ matrix.T, expected, atol=1e-12)
    np.testing.assert_allclose(factor.transposed_times(jnp.eye(flat.size)), matrix.T, atol=1e-14)
    kernel = RNG.normal(size=(flat.size, 5))
    kernel = kernel @ kernel.T
    np.testing.assert_allclose(factor.around(kernel), matrix.T @ kernel @ matrix, atol=1e-10)
    v = RNG.normal(size=flat.size)
    host = factor.on_host()
    np.testing.assert_allclose(host.times(v), matrix @ v, atol=1e-12)
    np.testing.assert_allclose(host.transposed_times(v), matrix.T @ v, atol=1e-12)
    assert isinstance(host.times(v), np.ndarray)


def saddle(outputs, y):
    """Neither convex nor concave, and coupled: as a contrastive loss is."""
    similarities = outputs.reshape(N, -1) @ outputs.reshape(N, -1).T
    return jnp.mean(jax.nn.logsumexp(similarities, axis=1) - jnp.diagonal(similarities) * y)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_loss_that_is_not_convex_keeps_its_signs():
    """Eigenvalues of R^T S R with R R^T = L^T K L are those of Sigma K, beside zeros."""
    flat = jnp.asarray(OUTPUTS.reshape(-1))
    y = np.array([1.0, 0.5, 2.0, 1.0])
    hessian = N * np.asarray(jax.hessian(lambda f: saddle(f.reshape(OUTPUTS.shape), y))(flat))
    half = RNG.normal(size=(flat.size, 7))
    kernel = half @ half.T
    want = np.linalg.eigvals(hessian @ kernel).real
    factor = CustomLoss(saddle).curvature(OUTPUTS, y)
    matrix = np.asarray(factor.times(jnp.eye(flat.size)))
    np.testing.assert_allclose(matrix @ np.diag(factor.signs) @ matrix.T, hessian, atol=1e-12)
    for around in (
        factor.around,
        jax.jit(lambda k: CustomLoss(saddle).curvature(OUTPUTS, y).around(k)),
    ):
        found = np.linalg.eigvalsh(np.asarray(around(kernel)))
        np.testing.assert_allclose(np.sort(found), np.sort(want), atol=1e-6 * abs(want).max())


def test_messages():
    for call, message in [
        (
            lambda: CrossEntropy().read(np.array([0, 2]), (2, 2)),
            "Number the classes from 0; pass floating point targets if these are not classes.",
        ),
        (
            lambda: as_loss(MSE),
            'expected `loss` as "mse", "cross_entropy", "sigmoid_cross_entropy", an object of',
        ),
    ]:
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            call()


def test_a_loss_called_by_hand_settles_shapes_and_labels():
    for loss, outputs, labels, expected in [
        # [N 1] beside [N], both ways: N numbers, not N x N pairs.
        (MSE(), [[1.0], [2.0]], [0.0, 4.0], (0.5 + 2.0) / 2),
        (SigmoidCrossEntropy(), [[0.0], [0.0]], [0, 1], np.log(2)),
        (CrossEntropy(), [[0.0, 0.0], [0.0, 0.0]], [[0], [1]], np.log(2)),
        # Class numbers beside several outputs are one-hot rows.
        (MSE(), [[1.0, 0.0], [1.0, 0.0]], [0, 1], 0.5),
        (SigmoidCrossEntropy(), [[0.0, 0.0]], [1], 2 * np.log(2)),
    ]:
        for of in (np.asarray, jnp.asarray, list):
            np.testing.assert_allclose(loss(of(outputs), of(labels)), expected, rtol=1e-6)
        compiled = jax.jit(loss)(jnp.asarray(outputs), jnp.asarray(labels))
        np.testing.assert_allclose(compiled, expected, rtol=1e-6)
        per_example = loss.per_example(outputs, labels)
        assert per_example.shape == (len(outputs),)
        np.testing.assert_allclose(per_example.mean(), expected, rtol=1e-6)


def test_a_class_that_there_is_not_is_nan_inside_jit():
    outputs = jnp.zeros((3, 2))
    for wrong in (-1, 2):
        labels = jnp.array([0, 1, wrong])
        per_example = jax.jit(CrossEntropy().per_example)(outputs, labels)
        np.testing.assert_array_equal(np.isnan(per_example), [False, False, True])
        assert np.isnan(jax.jit(CrossEntropy())(outputs, labels))
