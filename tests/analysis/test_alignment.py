"""Alignment with labels: hand oracles, both formulas, centring, every form of labels, messages."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import Kernel, spectrum
from ntkdiag.analysis import alignment, drift, modes
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention

K1 = np.diag([2.0, 1.0])
Y1 = np.array([1.0, -1.0])
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
    np.testing.assert_allclose(value(MATRIX, ONE_HOT), expected, rtol=1e-12)
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


@pytest.mark.usefixtures("x64")
def test_jit_and_vmap():
    kernel = Kernel(jnp.asarray(FULL.array), FULL.convention)
    eager = value(kernel, ONE_HOT)
    np.testing.assert_allclose(jax.jit(value)(kernel, ONE_HOT), eager, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(value)(kernel, jnp.asarray(CLASSES)), eager, rtol=1e-12)
    batch = jax.vmap(value, in_axes=(None, 0))(kernel, np.stack([ONE_HOT, 2 * ONE_HOT]))
    np.testing.assert_allclose(batch, [eager, eager], rtol=1e-12)
    np.testing.assert_allclose(
        jax.jit(modes)(kernel, ONE_HOT).label_power, modes(kernel, ONE_HOT).label_power, atol=1e-12
    )
    assert np.isnan(jax.jit(value)(kernel, np.ones((N, C))))


def test_layouts_that_are_not_what_they_are_said_to_be():
    flat = Kernel(K1, Convention(reduction="full", n_outputs=1))
    with pytest.raises(InvalidInputError, match=r"shape \(2, 2\) with reduction='full'"):
        alignment(flat, Y1)
    theirs = FULL.array.transpose(0, 2, 1, 3)  # [n m o p]
    for call in (
        lambda: drift(theirs, theirs),
        lambda: alignment(theirs, ONE_HOT),
        lambda: spectrum(theirs),
    ):
        with pytest.raises(
            InvalidInputError, match=r"neural-tangents\. Pass `(kernel|a)\.transpose\(0, 2, 1, 3\)`"
        ):
            call()


def test_messages():
    for kernel, y, message in [
        (
            MEAN,
            np.ones((N + 1, C)),
            "Labels go row by row with the probe examples of the kernel.",
        ),
        (
            MEAN.array,
            CLASSES,
            "Pass `jax.nn.one_hot(y, n_classes)`, or `y.astype(float)` if these are targets.",
        ),
        (
            MEAN,
            CLASSES + 1,
            "Number the classes from 0; pass floating point targets if these are no classes.",
        ),
        (
            MEAN,
            np.full(N, np.nan),
            "Drop the examples without a label everywhere.",
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


def test_one_wrong_entry_of_a_large_kernel_is_refused():
    """It hardly moves the norm: 1e-3 of the largest entry is 7e-5 of the norm here."""
    kernel = np.eye(400)
    kernel[0, 1] = 1e-3
    with pytest.raises(InvalidInputError, match="expected a symmetric kernel"):
        alignment(kernel, np.arange(400.0))
