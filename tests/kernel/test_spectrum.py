"""Eigenvalues, their noise floor, and what is shown of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import Kernel, spectrum
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention, Spectrum


def _kernel(rng, n, features):
    rows = rng.normal(size=(n, features))
    return rows @ rows.T


@pytest.mark.smoke
def test_hand_oracle():
    found = spectrum(np.diag([1.0, 2.0]))
    np.testing.assert_array_equal(found.eigenvalues, [2.0, 1.0])
    assert found.participation_ratio == pytest.approx(1.8, rel=1e-14)
    assert found.entropy_rank == pytest.approx(1.889881574842, rel=1e-12)
    assert found.stable_rank == pytest.approx(1.5, rel=1e-14)
    assert found.condition_number == pytest.approx(2.0, rel=1e-14)
    assert found.resolved_condition_number == pytest.approx(2.0, rel=1e-14)
    assert (found.rank, found.negative, found.status, found.size, found.largest) == (
        2,
        0,
        "ok",
        2,
        2.0,
    )
    assert found.noise_floor == pytest.approx(np.finfo(np.float64).eps * 8 * 2.0)


@pytest.mark.smoke
def test_vectors_reconstruct_the_kernel():
    matrix = _kernel(np.random.default_rng(0), 7, 9)
    found = spectrum(matrix, vectors=True)
    np.testing.assert_allclose(
        found.vectors * found.eigenvalues @ found.vectors.T, matrix, atol=1e-12
    )
    assert spectrum(matrix).vectors is None


def test_float32_duplicates_are_unresolved_not_numbers():
    rows = np.random.default_rng(2).normal(size=(8, 20)).astype(np.float32)
    rows = np.concatenate([rows, rows])
    found = spectrum(rows @ rows.T)
    assert found.rank == 8
    assert found.status == "ok"
    assert found.condition_number is None
    assert found.eigenvalues.dtype == np.float64
    text = repr(found)
    assert "8 unresolved" in text
    assert "condition number rank-deficient: 8 eigenvalues below floor" in text
    for value in found.eigenvalues[8:]:
        assert f"{value:.4g}" not in text


def test_floor_follows_what_the_kernel_was_computed_in():
    rounded = Convention(unit_roundoff=2.0**-8)
    assert spectrum(Kernel(np.diag([1.0, 1e-3]), rounded)).rank == 1
    coarse_model = Convention(model_roundoff=2.0**-8)
    assert spectrum(Kernel(np.diag([1.0, 5e-3, 3e-3]), coarse_model)).rank == 2
    assert spectrum(Kernel(np.diag([1.0, 1e-3]), Convention())).rank == 2


@pytest.mark.smoke
def test_ranks_are_over_resolved_eigenvalues_only():
    found = spectrum(np.diag([1.0, 1e-8, 1e-8, 1e-8]).astype(np.float32))
    assert found.participation_ratio == found.entropy_rank == found.stable_rank == found.rank == 1


def test_indefinite_and_nonfinite_are_data():
    indefinite = spectrum(np.diag([2.0, -0.5]))
    assert (indefinite.status, indefinite.negative, indefinite.rank) == ("indefinite", 1, 1)
    assert "1 eigenvalues below minus the floor" in repr(indefinite)
    of_positive_part = spectrum(np.diag([2.0, 1.0, -1.0]))
    assert of_positive_part.participation_ratio == pytest.approx(1.8)
    broken = spectrum(np.array([[1.0, np.nan], [np.nan, 1.0]]), vectors=True)
    assert broken.status == "nonfinite"
    assert np.isnan(broken.eigenvalues).all()
    assert np.isnan(broken.vectors).all()
    assert np.isnan(broken.participation_ratio)
    assert "NaN or Inf" in repr(broken)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_jit_and_vmap_agree_with_the_host():
    rng = np.random.default_rng(3)
    stack = np.stack([_kernel(rng, 5, 3), _kernel(rng, 5, 7)])
    batch = jax.vmap(lambda k: spectrum(k, vectors=True))(jnp.asarray(stack))
    assert repr(batch) == "Spectrum(5 eigenvalues, traced or batched)"
    names = ["rank", "negative", "participation_ratio", "entropy_rank", "stable_rank"]
    names += ["condition_number", "resolved_condition_number"]
    mapped = jax.vmap(lambda k: {name: getattr(spectrum(k), name) for name in names})
    numbers = mapped(jnp.asarray(stack))
    np.testing.assert_array_equal(numbers["rank"], [3, 5])
    np.testing.assert_array_equal(numbers["negative"], [0, 0])
    for index, matrix in enumerate(stack):
        host = spectrum(matrix)
        np.testing.assert_allclose(batch.eigenvalues[index], host.eigenvalues, atol=1e-12)
        for name in names[2:5] + names[6:]:
            np.testing.assert_allclose(numbers[name][index], getattr(host, name), rtol=1e-9)
    assert np.isnan(numbers["condition_number"][0])
    traced = jax.jit(spectrum)(jnp.asarray(stack[1]))
    assert isinstance(traced, Spectrum)
    assert traced.condition_number == pytest.approx(spectrum(stack[1]).condition_number, rel=1e-9)
    assert np.isnan(jax.jit(lambda k: spectrum(k).condition_number)(jnp.asarray(stack[0])))


def test_refuses_what_has_no_eigenvalues():
    for kernel, got in [
        (np.ones((2, 3)), "shape (2, 3)"),
        (Kernel(np.eye(2), Convention(), symmetric=False), "shape (2, 2) of a cross kernel"),
    ]:
        message = (
            f"spectrum(kernel): expected a square kernel [n n] or [n o n o] of examples with themselves; got {got}. "
            "Compute it as `ntk(f, params, x)`, without `x2`; index a diagonal kernel by output."
        )
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            spectrum(kernel)


def test_refuses_a_matrix_that_is_not_symmetric():
    message = "spectrum(kernel): expected a symmetric kernel, ||K - K^T|| <= 1e-04 ||K||; got K -"
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        spectrum(np.array([[1.0, 1.0], [0.0, 1.0]]))
