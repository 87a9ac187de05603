"""The largest eigenvalues from products: against dense float64 algebra, on spectra that Lanczos methods get wrong."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import two_layers

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention
from ntkdiag.matrix_free import lanczos

RNG = np.random.default_rng(0)
N, C = 90, 3
X = RNG.normal(size=(N, 4)).astype(np.float32)
PARAMS = [RNG.normal(size=s).astype(np.float32) / s[0] ** 0.5 for s in ((4, 16), (16, C))]


def net(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]


@functools.cache
def shared_operator():
    return ntkdiag.NTKOperator(net, PARAMS, X, batch_size=40)


@functools.cache
def jacobian():
    return np.concatenate(two_layers.jacobian(*PARAMS, X), axis=2).reshape(N * C, -1)


@functools.cache
def truth():
    return np.linalg.eigvalsh(jacobian() @ jacobian().T)[::-1]


def _random_spectrum(rng, n):
    """Eigenvalues as kernels have them and as they are hard to find: repeated, decaying, many zeros, a flat bulk."""
    kind = rng.integers(5)
    if kind == 0:
        values = rng.random(n) ** rng.integers(1, 8)
    elif kind == 1:
        values = np.repeat(np.arange(1.0, n + 1) ** -rng.uniform(0.3, 3), rng.integers(1, 12))[:n]
    elif kind == 2:
        values = np.zeros(n)
        values[: rng.integers(1, 30)] = rng.integers(1, 4)
    elif kind == 3:
        values = np.exp(-np.arange(n) * rng.uniform(0.01, 2))
    else:
        values = np.concatenate([np.full(rng.integers(1, 20), 3.0), np.full(n, 1.0)])[:n]
    return np.sort(values)[::-1] * 10.0 ** rng.uniform(-6, 6)


@pytest.mark.parametrize(
    ("seed", "dtype"), [*[(seed, np.float32) for seed in range(5)], (5, np.float64)]
)
def test_no_eigenvalue_is_missed(seed, dtype):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(60, 200)), int(rng.integers(1, 21))
    values = _random_spectrum(rng, n)
    basis = np.linalg.qr(rng.normal(size=(n, n)))[0]
    matrix = ((basis * values) @ basis.T).astype(dtype)
    found = ntkdiag.top_spectrum(matrix, k)
    np.testing.assert_allclose(found.eigenvalues, values[:k], atol=2e-6 * values[0], rtol=0)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-5)
    again = matrix.astype(np.float64) @ found.vectors - found.vectors * found.eigenvalues
    np.testing.assert_allclose(
        np.linalg.norm(again, axis=0), found.residuals, atol=1e-6 * values[0]
    )
    # The promise: tolerance=1e-6, which is above the 8 unit roundoffs of float32 that are the least.
    assert found.tolerance == 1e-6
    assert found.converged.all()
    assert found.residuals.max() <= 1e-6 * found.largest


def test_products_are_few_and_counted():
    calls = []
    matrix = np.diag(1.0 / np.arange(1, 2001) ** 1.5)
    product = lambda v: calls.append(0) or matrix @ v
    found = lanczos.largest(product, 2000, 10, 1e-6, 0)
    np.testing.assert_allclose(found.values, np.diag(matrix)[:10], rtol=1e-9)
    assert found.products == len(calls) < 120


def _rounded_to_half_precision():
    """A product that is known to 3 digits, and its exact eigenvalues."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(200, 200)))[0]
    values = 1.0 / np.arange(1, 201)
    matrix = (basis * values) @ basis.T

    def product(v):
        return (matrix @ v).astype(np.float16).astype(np.float64)

    return product, values


def test_pairs_that_products_are_too_coarse_for_are_marked():
    product, values = _rounded_to_half_precision()
    found = lanczos.largest(product, 200, 8, 1e-6, 0)
    assert not found.converged.all()
    np.testing.assert_array_equal(found.converged, found.residuals <= 1e-6 * found.values[0])
    np.testing.assert_allclose(found.values, values[:8], atol=1e-3)
    roundoff = float(np.finfo(np.float16).eps)
    known = lanczos.largest(product, 200, 8, 1e-6, 0, roundoff=roundoff)
    assert known.converged.all()
    assert known.products < found.products


@pytest.mark.smoke
def test_an_operator_without_its_kernel():
    found = ntkdiag.top_spectrum(shared_operator(), 8)
    np.testing.assert_allclose(found.eigenvalues, truth()[:8], rtol=2e-6)
    assert (found.size, found.rank, found.largest) == (N * C, 8, found.eigenvalues[0])
    assert found.noise_floor == pytest.approx(np.finfo(np.float32).eps * found.largest)
    assert found.convention == Convention(
        reduction="full",
        n_outputs=C,
        model_roundoff=float(np.finfo(np.float32).eps),
        mode="unspecified",
    )
    wide = [a.astype(np.float64) for a in PARAMS]
    with jax.enable_x64(True):
        exact = ntkdiag.top_spectrum(
            ntkdiag.NTKOperator(net, wide, X.astype(np.float64)), 8, tolerance=1e-12
        )
    np.testing.assert_allclose(exact.eigenvalues, truth()[:8], rtol=1e-12)


def test_the_largest_eigenvalues_stand_for_no_operator():
    found = ntkdiag.top_spectrum(shared_operator(), 3)
    assert "3 of 270 eigenvalues" in repr(found)
    assert np.isnan(found.participation_ratio)
    assert found.condition_number is None
    message = "expected `kernel` in memory, or the spectrum of one; got the largest eigenvalues of an operator."
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        ntkdiag.spectrum(found)
    matrix = np.diag([3.0, 2.0, 1.0])
    largest = ntkdiag.top_spectrum(matrix, 1)
    np.testing.assert_array_equal(ntkdiag.spectrum(largest).eigenvalues, [3.0, 2.0, 1.0])


def test_eigenvalues_beyond_the_rank_are_unresolved():
    rank = np.linalg.matrix_rank(jacobian())
    found = ntkdiag.top_spectrum(shared_operator(), rank + 5)
    assert found.rank <= rank
    assert found.rank > rank - 20
    np.testing.assert_allclose(found.eigenvalues[: found.rank], truth()[: found.rank], rtol=0.1)
    assert f"{rank + 5 - found.rank} unresolved" in repr(found)


@pytest.mark.slow
def test_trace_with_its_error():
    found = ntkdiag.top_spectrum(shared_operator(), 5, trace_probes=20)
    assert abs(found.trace - truth().sum()) < 4 * found.trace_error < 0.4 * truth().sum()
    assert ntkdiag.top_spectrum(shared_operator(), 5).trace is None
    share = found.eigenvalues.sum() / found.trace
    text = f"trace {found.trace:.4g} +- {found.trace_error:.2g}, of which {share:.3g} in these"
    assert text in repr(found)
    errors = [
        ntkdiag.top_spectrum(shared_operator(), 5, trace_probes=8, seed=seed) for seed in range(60)
    ]
    z = np.array([(e.trace - truth().sum()) / e.trace_error for e in errors])
    assert abs(z.mean()) < 0.6
    assert 0.7 < z.std() < 2.0  # Student's t of seven degrees of freedom: 1.2


@pytest.mark.parametrize("n", [4, 300])
def test_kernels_without_structure(n):
    zero = ntkdiag.top_spectrum(np.zeros((n, n)), 3)
    assert (zero.eigenvalues == 0).all()
    assert zero.rank == 0
    for scale in (1e-30, 1.0, 1e30):
        np.testing.assert_allclose(
            ntkdiag.top_spectrum(scale * np.eye(n), 3).eigenvalues, scale, rtol=1e-12
        )
    ones = ntkdiag.top_spectrum(np.ones((n, n)), 3)
    assert ones.largest == pytest.approx(n)
    assert ones.rank == 1
    indefinite = np.diag(np.r_[-5.0, 2.0, np.linspace(0, 1, n - 2)])
    np.testing.assert_allclose(ntkdiag.top_spectrum(indefinite, 2).eigenvalues, [2, 1], rtol=1e-9)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ntkdiag.top_spectrum(shared_operator(), 0),
            "expected `k` from 1 to 270, the rows of the kernel; got 0.",
        ),
        (
            lambda: ntkdiag.top_spectrum(np.full((90, 90), np.nan)),
            "expected finite products with the kernel; got NaN",
        ),
        (
            lambda: ntkdiag.top_spectrum(ntkdiag.NTKOperator(net, PARAMS, X, X[:5])),
            "expected an operator of examples with themselves; got a cross operator.",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()


def test_what_did_not_converge_is_said(monkeypatch):
    monkeypatch.setattr(lanczos, "MOST_PRODUCTS", 3)
    flat = np.diag(np.r_[2.0, 1.0 - np.linspace(0, 1e-4, 1999)])
    with pytest.warns(
        RuntimeWarning, match=r"1 of 10 eigenvalues reached tolerance=1e-12\. Take a larger one\."
    ):
        found = ntkdiag.top_spectrum(flat, 10, tolerance=1e-12)
    assert found.converged.sum() == 1
    np.testing.assert_allclose(found.eigenvalues[0], 2.0)


@pytest.mark.parametrize(("n", "rank", "has_signs"), [(1, 1, False), (30, 30, True), (60, 7, True)])
def test_the_largest_pair_alone(n, rank, has_signs):
    """S M with M positive semidefinite: with signs not symmetric, with real eigenvalues."""
    rng = np.random.default_rng(n)
    half = rng.normal(size=(n, rank)) * np.exp(-np.arange(rank) / 5)
    matrix = half @ half.T
    signs = np.where(rng.random(n) < 0.5, -1.0, 1.0) if has_signs else np.ones(n)
    want = np.linalg.eigvals(signs[:, None] * matrix).real.max()
    pair = lanczos.largest_pair(
        lambda v: matrix @ v, rng.normal(size=n), 1e-5, signs=signs if has_signs else 1.0
    )
    np.testing.assert_allclose(pair.values[0], want, rtol=1e-4, atol=1e-12)
    assert pair.converged[0]
    assert pair.products < 40
    if rank == n:
        again = signs * (matrix @ pair.vectors[:, 0]) - pair.values[0] * pair.vectors[:, 0]
        assert np.sqrt(again @ matrix @ again) <= 2e-5 * abs(pair.values[0])


def test_the_margin_of_an_operator_takes_few_products():
    counted = []

    def net_that_counts(params, x):
        jax.debug.callback(lambda: counted.append(1))
        return net(params, x)

    operator = ntkdiag.NTKOperator(net_that_counts, PARAMS, X, check=False)
    ntkdiag.stability_margin(operator, 0.3, loss="mse")
    jax.effects_barrier()
    # Each product is a backward and a forward sweep.
    assert 0 < len(counted) <= 2 * 20


def test_a_margin_that_did_not_converge_is_said(monkeypatch):
    monkeypatch.setattr(lanczos, "MOST_PRODUCTS", 3)
    with pytest.warns(RuntimeWarning, match=r"after 3 products the relative residual of"):
        ntkdiag.stability_margin(shared_operator(), 0.3, loss="mse")
