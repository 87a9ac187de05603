"""The largest eigenvalues of a symmetric matrix from products with it: ARPACK, and a search for those it missed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg

Product = Callable[[np.ndarray], np.ndarray]

_linalg: Any = scipy.sparse.linalg  # whose annotations are guessed from defaults

_POWER_STEPS = 3
_RESTARTS = 100
_SEARCH_RESTARTS, _SEARCH_TOLERANCE = 5, 1e-3


class Found(NamedTuple):
    """Eigenpairs.

    Attributes:
        values: `[k]`, descending.
        vectors: `[n k]`, orthonormal.
        residuals: `[k]`, ||A v - value v|| from a product of its own: some eigenvalue is no further away.
        products: How many there were.
    """

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    products: int


def largest(product: Product, size: int, k: int, tolerance: float, seed: int) -> Found:
    """The k largest eigenvalues and their vectors.

    Implicitly restarted Lanczos (ARPACK through scipy, basis in float64) finds repeated eigenvalues only by the grace
    of rounding: of 300 random spectra with repetitions it missed some in 33. So what was found is projected out and the
    largest eigenvalue of the rest sought, until nothing is left above the k-th: none missed. Eigenvalues are shifted by
    about the largest, which makes the tolerance one relative to the largest for all of them, zeros too.
    Cost: for spectra of networks 2 k to 8 k products with k >= 10, and 20 to 60 in the search; 16 n k to 32 n k bytes.

    Args:
        product: v -> A v for unit vectors in float64.
        size: n.
        k: Number of eigenvalues, at most n.
        tolerance: Of ||A v - value v||, relative to the largest eigenvalue.
        seed: Of the start vectors.

    Returns:
        The pairs; fewer than k where the solver gave up. NaN throughout when a product was not finite.
    """
    rng, count = np.random.default_rng(seed), 0

    def counted(v: np.ndarray) -> np.ndarray:
        nonlocal count
        count += 1
        return product(v)

    if size <= 2 * k + 20:
        values, vectors = _dense(counted, size)
        values, vectors = values[:k], vectors[:, :k]
    else:
        scale, start = _scale(counted, rng.normal(size=size))
        if scale == 0:
            values, vectors = np.zeros(k), np.eye(size, k)
        elif not np.isfinite(scale):
            values, vectors = np.full(k, np.nan), np.full((size, k), np.nan)
        else:
            shifted = lambda v: counted(v) / scale + v
            values, vectors = _arpack(shifted, start, k, tolerance, _RESTARTS)
            if values.size:
                values, vectors = _with_missed(shifted, rng, values, vectors, tolerance)
            values = scale * (values - 1.0)
    residuals = [np.linalg.norm(counted(v) - value * v) for value, v in zip(values, vectors.T, strict=True)]
    return Found(values, vectors, np.array(residuals), count)


def _dense(product: Product, size: int) -> tuple[np.ndarray, np.ndarray]:
    matrix = np.stack([product(row) for row in np.eye(size)], axis=1)
    if not np.isfinite(matrix).all():
        return np.full(size, np.nan), np.full((size, size), np.nan)
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return values[::-1], vectors[:, ::-1]


def _scale(product: Product, v: np.ndarray) -> tuple[float, np.ndarray]:
    """About the largest absolute eigenvalue, from below, and a start vector rich in its direction."""
    scale = 0.0
    for _ in range(_POWER_STEPS):
        image = product(v / np.linalg.norm(v))
        scale = float(np.linalg.norm(image))
        if scale == 0 or not np.isfinite(scale):
            break
        v = image / scale + 1e-3 * v / np.linalg.norm(v)
    return scale, v


def _arpack(
    product: Product, start: np.ndarray, k: int, tolerance: float, restarts: int
) -> tuple[np.ndarray, np.ndarray]:
    operator = _linalg.LinearOperator((start.size, start.size), matvec=product, dtype=np.float64)
    try:
        values, vectors = _linalg.eigsh(operator, k, which="LA", v0=start, tol=tolerance, maxiter=restarts)
    except _linalg.ArpackNoConvergence as error:
        values, vectors = error.eigenvalues, error.eigenvectors
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def _with_missed(
    product: Product, rng: np.random.Generator, values: np.ndarray, vectors: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Put eigenvalues in that were missed, as long as there are any above the smallest one found."""
    k = values.size
    for _ in range(k):  # as many could be missing
        kept, basis = values[-1] + tolerance, vectors
        below = 2.0 * values[0]
        rest = lambda v, basis=basis, below=below: product(v) - below * basis @ (basis.T @ v)
        _, more = _arpack(rest, rng.normal(size=basis.shape[0]), 1, _SEARCH_TOLERANCE, _SEARCH_RESTARTS)
        more = np.linalg.qr(more - basis @ (basis.T @ more))[0]
        image = np.stack([product(v) for v in more.T], axis=1) if more.size else more
        if not more.size or float(more[:, 0] @ image[:, 0]) <= kept:
            break
        union = np.concatenate([basis, more], axis=1)
        small = union.T @ np.concatenate([basis * values, image], axis=1)
        mixed, weights = np.linalg.eigh(0.5 * (small + small.T))
        values, vectors = mixed[::-1][:k], (union @ weights)[:, ::-1][:, :k]
    return values, vectors
