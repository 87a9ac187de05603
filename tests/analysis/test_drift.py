"""Kernel motion: hand oracles, the split into scale and rotation, centring, jit, refusals."""

import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ntkdiag import Kernel
from ntkdiag.analysis import drift
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention

K1, K2 = np.diag([2.0, 1.0]), np.diag([1.0, 2.0])


def _psd(rng, n):
    rows = rng.normal(size=(n, n + 1))
    return rows @ rows.T


@pytest.mark.smoke
def test_hand_oracles():
    moved = drift(K1, K2)
    np.testing.assert_allclose(moved.distance, 0.2, rtol=1e-14)
    np.testing.assert_allclose(moved.relative, np.sqrt(0.4), rtol=1e-14)
    np.testing.assert_allclose(moved.scale, 0.8, rtol=1e-14)
    np.testing.assert_allclose(moved.rotation, np.arccos(0.8), rtol=1e-14)
    np.testing.assert_allclose(moved.distance_centred, 0.0, atol=1e-15)


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.floats(0.01, 100.0))
def test_identities(seed, n, scale):
    rng = np.random.default_rng(seed)
    a, b = _psd(rng, n), _psd(rng, n)
    moved = drift(a, b)
    split = (moved.scale - 1) ** 2 + (moved.scale * np.tan(moved.rotation)) ** 2
    np.testing.assert_allclose(moved.relative**2, split, rtol=1e-8)
    np.testing.assert_allclose(
        moved.distance, 1 - np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b), atol=1e-12
    )
    np.testing.assert_allclose(drift(b, a).distance, moved.distance, rtol=1e-10)
    np.testing.assert_allclose(drift(scale * a, b).distance, moved.distance, rtol=1e-10)
    np.testing.assert_allclose(drift(a, scale * a).scale, scale, rtol=1e-12)
    assert 0 <= moved.distance <= 1
    order = rng.permutation(n)
    shuffled = drift(a[order][:, order], b[order][:, order])
    np.testing.assert_allclose(
        shuffled.distance_centred, moved.distance_centred, rtol=1e-9, atol=1e-14
    )


def test_tiny_rotations_survive_float32():
    a = np.eye(40, dtype=np.float32)
    b = a.copy()
    b[0, 1] = b[1, 0] = 1e-5
    expected = 1 - 1 / np.sqrt(1 + 2e-10 / 40)
    np.testing.assert_allclose(drift(a, b).distance, expected, rtol=1e-3)


def _full(**changes):
    return Kernel(
        np.eye(2), Convention(**{"reduction": "mean", "n_outputs": 3, "mode": "eval", **changes})
    )


def test_messages():
    for first, second, message in [
        (
            _full(),
            _full(reduction="trace"),
            "Recompute one of them: numbers in different conventions cannot be compared.",
        ),
        (_full(probe="aa"), _full(probe="bb"), "got probe='aa' and probe='bb'."),
    ]:
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            drift(first, second)
