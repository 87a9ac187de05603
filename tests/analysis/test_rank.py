"""Effective ranks: hand oracles, the order of the Renyi family, jit, messages."""

import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag.analysis.rank import (
    effective_dimension,
    entropy_rank,
    participation_ratio,
    stable_rank,
)
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel.decomposition import spectrum

K1 = np.diag([2.0, 1.0])


def test_hand_oracles():
    np.testing.assert_allclose(participation_ratio(K1), 1.8, rtol=1e-14)
    np.testing.assert_allclose(entropy_rank(K1), 1.889881574842, rtol=1e-12)
    np.testing.assert_allclose(stable_rank(K1), 1.5, rtol=1e-14)
    np.testing.assert_allclose(effective_dimension(K1, 1.0), 7 / 6, rtol=1e-14)


def test_eigenvalues_instead_of_a_kernel():
    np.testing.assert_allclose(entropy_rank(eigenvalues=np.array([2.0, 1.0])), 1.8898816, rtol=1e-6)
    np.testing.assert_allclose(stable_rank(eigenvalues=np.array([2.0, 1.0])), 1.5, rtol=1e-6)
    np.testing.assert_allclose(
        effective_dimension(gamma=1.0, eigenvalues=np.array([2.0, 1.0])), 7 / 6, rtol=1e-6
    )


def test_zero_eigenvalues_count_nothing_and_stay_differentiable():
    np.testing.assert_allclose(entropy_rank(np.diag([1.0, 1.0, 0.0])), 2.0, rtol=1e-12)
    slope = jax.grad(lambda v: entropy_rank(eigenvalues=v))(jnp.array([1.0, 1.0, 0.0]))
    assert np.isfinite(np.asarray(slope)).all()


def test_scale_does_not_matter():
    for function in (participation_ratio, entropy_rank, stable_rank):
        np.testing.assert_allclose(function(1e-250 * K1), function(K1), rtol=1e-12)
        np.testing.assert_allclose(
            function((1e30 * K1).astype(np.float32)), function(K1), rtol=1e-5
        )


def test_zero_kernel_has_no_rank():
    for function in (participation_ratio, entropy_rank, stable_rank):
        assert np.isnan(function(np.zeros((2, 2))))


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.floats(-30.0, 30.0),
    st.integers(0, 2**32 - 1),
)
def test_renyi_order(values, exponent, seed):
    hypothesis.assume(max(values) > 0)
    values = np.array(values) ** 3 * 10.0**exponent
    hypothesis.assume(values.max() > 0)
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    found = spectrum(basis * values @ basis.T)
    slack = 1 + 1e-9
    assert found.status == "ok"
    assert found.stable_rank * slack >= 1
    assert found.stable_rank <= found.participation_ratio * slack
    assert found.participation_ratio <= found.entropy_rank * slack
    assert found.entropy_rank <= found.rank * slack


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_functions_agree_with_the_spectrum_eagerly_and_under_jit():
    rows = np.random.default_rng(0).normal(size=(6, 9))
    matrix = jnp.asarray(rows @ rows.T)
    found = spectrum(matrix)
    for function, expected in (
        (participation_ratio, found.participation_ratio),
        (entropy_rank, found.entropy_rank),
        (stable_rank, found.stable_rank),
        (
            lambda k: effective_dimension(k, 2.0),
            np.sum(found.eigenvalues / (found.eigenvalues + 2.0)),
        ),
    ):
        np.testing.assert_allclose(function(matrix), expected, rtol=1e-11)
        np.testing.assert_allclose(jax.jit(function)(matrix), expected, rtol=1e-11)
        np.testing.assert_allclose(
            jax.vmap(function)(jnp.stack([matrix, 2 * matrix]))[0], expected, rtol=1e-11
        )


def test_float64_kernels_stay_float64_with_x64_off():
    assert participation_ratio(K1).dtype == np.float64
    assert participation_ratio(K1.astype(np.float32)).dtype == np.float32


def test_indefinite_kernels_are_refused_eagerly_and_nan_under_jit():
    matrix = np.diag([2.0, -1.0]).astype(np.float32)
    message = (
        "entropy_rank(kernel): expected a kernel J J^T, which has no negative eigenvalues; got 1 eigenvalues below the "
        "noise floor -1.9e-06. Compute all rows in one call and one batch size; see `health(kernel)`."
    )
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        entropy_rank(matrix)
    assert np.isnan(jax.jit(entropy_rank)(matrix))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            entropy_rank,
            "entropy_rank(kernel): expected a kernel or `eigenvalues=`; got neither. Pass exactly one of the two.",
        ),
        (
            lambda: stable_rank(K1, eigenvalues=np.ones(2)),
            "stable_rank(kernel): expected a kernel or `eigenvalues=`; got both. Pass exactly one of the two.",
        ),
        (
            lambda: entropy_rank(eigenvalues=np.ones((2, 2))),
            "entropy_rank(kernel): expected `eigenvalues` of shape [k]; got shape (2, 2). Pass one spectrum at a time.",
        ),
        (
            lambda: stable_rank(eigenvalues=np.array([1.0, np.nan])),
            "stable_rank(kernel): expected finite `eigenvalues`; got NaN or Inf. See `spectrum(kernel).status`.",
        ),
        (
            lambda: effective_dimension(K1, 0.0),
            "effective_dimension(kernel, gamma): expected a positive `gamma`; got 0.0. Its units stand in the "
            "docstring.",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()


def test_a_spectrum_knows_its_noise_floor():
    rows = np.random.default_rng(0).normal(size=(24, 8))
    kernel = (rows @ rows.T).astype(np.float32)
    found = spectrum(kernel)
    np.testing.assert_allclose(entropy_rank(eigenvalues=found), entropy_rank(kernel), rtol=1e-4)
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(24, 24)))[0]
    wide = (basis * 10.0 ** -np.linspace(0, 10, 24)) @ basis.T
    wide = 0.5 * (wide + wide.T)
    expected = effective_dimension(wide, 1e-9)
    np.testing.assert_allclose(
        effective_dimension(eigenvalues=spectrum(wide), gamma=1e-9), expected, rtol=1e-6
    )
    np.testing.assert_allclose(
        effective_dimension(eigenvalues=spectrum(wide).eigenvalues, gamma=1e-9), expected, rtol=1e-6
    )


@pytest.mark.parametrize("gamma", [np.array([1.0, 2.0]), lambda step: 1.0, "1"])
def test_one_number_is_wanted(gamma):
    with pytest.raises(InvalidInputError, match=r"expected one number `gamma`"):
        effective_dimension(K1, gamma)
