"""Alignment with labels: hand oracles, both formulas, centring, every form of labels, messages."""

import re

import numpy as np
import pytest

from ntkdiag import Kernel
from ntkdiag.analysis import alignment, modes
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention

N, C = 6, 3
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(N * C, 30)) + 1.0
MATRIX = ROWS @ ROWS.T
FULL = Kernel(MATRIX.reshape(N, C, N, C), Convention(reduction="full", n_outputs=C))
MEAN = Kernel(np.einsum("nomo->nm", FULL.array) / C, Convention(reduction="mean", n_outputs=C))
CLASSES = np.array([0, 1, 2, 0, 1, 1])
ONE_HOT = np.eye(C)[CLASSES]
H = np.eye(N) - 1 / N


def value(kernel, y):
    return alignment(kernel, y).value


@pytest.mark.smoke
def test_full_kernel_against_the_dense_formula():
    projector = np.kron(H, np.eye(C))
    matrix, y = projector @ MATRIX @ projector, projector @ ONE_HOT.ravel()
    expected = y @ matrix @ y / np.linalg.norm(matrix) / (y @ y)
    np.testing.assert_allclose(value(FULL, ONE_HOT), expected, rtol=1e-12)
    np.testing.assert_allclose(value(FULL, ONE_HOT.ravel()), expected, rtol=1e-12)
    np.testing.assert_allclose(value(FULL, CLASSES), expected, rtol=1e-6)
    np.testing.assert_allclose(value(FULL, ONE_HOT.astype(int)), expected, rtol=1e-12)


def test_centring_removes_constant_modes_and_label_offsets():
    shifted = MEAN.array + 1e3
    np.testing.assert_allclose(value(shifted, ONE_HOT), value(MEAN, ONE_HOT), rtol=1e-8)
    np.testing.assert_allclose(value(MEAN, ONE_HOT + 7.0), value(MEAN, ONE_HOT), rtol=1e-10)


def test_label_power_against_eigenvectors():
    vectors = np.linalg.eigh(MEAN.array)[1]
    power = np.sum((vectors.T @ ONE_HOT)[::-1] ** 2, axis=1) / np.sum(ONE_HOT**2)
    np.testing.assert_allclose(modes(MEAN, ONE_HOT).power, power, atol=1e-12)
    np.testing.assert_allclose(modes(MEAN, ONE_HOT).label_power, np.cumsum(power), atol=1e-12)
    assert modes(FULL, ONE_HOT, centred=True).label_power.shape == (N * C,)
    np.testing.assert_allclose(modes(FULL, ONE_HOT).label_power[-1], 1.0, rtol=1e-12)
    np.testing.assert_allclose(modes(FULL, ONE_HOT, centred=True).label_power[-1], 1.0, rtol=1e-12)


def test_messages():
    for kernel, y, message in [
        (
            MEAN.array,
            CLASSES,
            "Pass `jax.nn.one_hot(y, n_classes)`, or `y.astype(float)` if these are targets.",
        ),
        (
            MEAN,
            np.ones(N),
            "Use a probe set that holds several classes or targets.",
        ),
        (
            Kernel(MEAN.array, MEAN.convention, symmetric=False),
            ONE_HOT,
            "Compute it as `ntk(f, params, x)`, without `x2`",
        ),
    ]:
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            alignment(kernel, y)


def test_labels_that_contradict_each_other_on_equal_inputs_have_no_power():
    """No mode of the kernel tells equal inputs apart, however its null space is turned."""
    for dtype, centred in [(np.float32, True), (np.float64, False)]:
        rng = np.random.default_rng(0)
        x = np.tile(rng.normal(size=(4, 6)), (2, 1))
        labels = np.repeat([1.0, -1.0], 4)[:, None].astype(dtype)
        for kernel in (x @ x.T, np.exp(-np.square(x[:, None] - x).sum(-1)), 100.0 + x @ x.T):
            power = modes(kernel.astype(dtype), labels, centred=centred).label_power
            np.testing.assert_allclose(power, 0.0, atol=1e-5)
        # A part that does not contradict itself is what the kernel can fit.
        mixed = labels + np.tile(x[:4, :1], (2, 1)).astype(dtype)
        share = np.square(mixed - labels).sum() / np.square(mixed).sum()
        fitted = modes((x @ x.T).astype(dtype), mixed).label_power[-1]
        np.testing.assert_allclose(fitted, share, rtol=1e-4)
