"""Leave-one-out and GCV: hand oracles, explicit refits, a theory value, messages."""

import re

import numpy as np
import pytest

from ntkdiag import Kernel
from ntkdiag.analysis import leave_one_out
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention

K1 = np.diag([2.0, 1.0])


def test_hand_oracles():
    found = leave_one_out(K1, np.ones(2), 1.0)
    np.testing.assert_allclose(found.residuals, np.ones((2, 1)), rtol=1e-14)
    np.testing.assert_allclose(found.mse, 1.0, rtol=1e-14)
    assert found.resolved
    np.testing.assert_allclose(found.gcv, 1.04, rtol=1e-14)
    np.testing.assert_allclose(found.disagreement, 0.04, rtol=1e-12)


def _refit(matrix, y, ridge, groups):
    """Leave each group of rows out, fit kernel ridge regression on the others, predict the group."""
    residuals = np.zeros_like(y)
    for left in groups:
        kept = np.setdiff1d(np.arange(len(matrix)), left)
        alpha = np.linalg.solve(matrix[np.ix_(kept, kept)] + ridge * np.eye(len(kept)), y[kept])
        residuals[left] = y[left] - matrix[np.ix_(left, kept)] @ alpha
    return residuals


def test_reduced_kernel_against_refits():
    for ridge in [0.0, 0.3]:
        rng = np.random.default_rng(0)
        rows, y = rng.normal(size=(7, 12)), rng.normal(size=(7, 3))
        matrix = rows @ rows.T
        expected = _refit(matrix, y, ridge, np.arange(7)[:, None])
        found = leave_one_out(matrix, y, ridge)
        np.testing.assert_allclose(found.residuals, expected, rtol=1e-9)
        np.testing.assert_allclose(found.mse, np.sum(expected**2) / 7, rtol=1e-9)


def test_full_kernel_leaves_out_whole_examples():
    for ridge in [0.0, 0.3]:
        rng = np.random.default_rng(1)
        n, c = 5, 3
        rows, y = rng.normal(size=(n * c, 20)), rng.normal(size=(n, c))
        matrix = rows @ rows.T
        groups = np.arange(n * c).reshape(n, c)
        expected = _refit(matrix, y.reshape(-1, 1), ridge, groups).reshape(n, c)
        found = leave_one_out(Kernel(matrix.reshape(n, c, n, c), Convention("full", c)), y, ridge)
        np.testing.assert_allclose(found.residuals, expected, rtol=1e-8)


def test_singular_kernels_are_not_resolved():
    singular = np.ones((3, 3), np.float32)
    found = leave_one_out(singular, np.arange(3.0), 0.0)
    assert not found.resolved
    assert np.isnan(found.mse)
    assert np.isnan(found.gcv)
    assert np.isfinite(leave_one_out(singular, np.arange(3.0), 0.1).mse)


def test_messages():
    message = "The docstring states its units."
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        leave_one_out(K1, np.ones(2), -1.0)
    message = "Labels have one row for each probe example of the kernel."
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        leave_one_out(K1, np.ones(3), 1.0)


def test_whether_examples_were_trained_on_is_said():
    assert "whose labels the kernel knows" in repr(leave_one_out(K1, np.ones(2), trained_on=True))
    assert "pass trained_on=" in repr(leave_one_out(K1, np.ones(2)))
