"""The largest eigenvalues of a symmetric matrix A from products with it.

Four steps, in float64 around products of any precision:

1. Power iterations estimate the scale, the largest absolute eigenvalue. Everything after works on
   A / scale + 1, so that a tolerance is relative to the largest eigenvalue for all of them, zeros
   included.
2. ARPACK (implicitly restarted Lanczos, through scipy) finds the k largest eigenvalues.
3. Refine: a pair whose residual ||A v - lambda v|| is above the tolerance is improved by
   Rayleigh-Ritz in the span of all vectors and their residuals.
4. Search: a Krylov space holds one direction of every eigenspace, so Lanczos finds repeated
   eigenvalues only by the grace of rounding: of 300 random spectra with repetitions it missed some
   in 33. So what is known is projected out, and the largest eigenvalue of the rest is sought,
   roughly. If it is above the k-th it joins the others, and step 3 follows; if not, none is
   missing.

The largest eigenvalue alone needs none of this (`largest_pair`): step 3 by itself, begun from one
random vector, is Lanczos iteration, and stops as soon as its residual allows.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64

from ntkdiag import errors

Vector: TypeAlias = Float64[np.ndarray, " n"]
Product: TypeAlias = Callable[[Vector], Vector]

POWER_STEPS = 3
ARPACK_RESTARTS = 100
REFINEMENTS = 50
# Vectors that the search for one pair keeps, and the products after which it gives up.
LARGEST_BASIS = 40
MOST_PRODUCTS = 200
# The search only tells whether something lies above the k-th eigenvalue; refinement follows.
SEARCH_RESTARTS = 5
SEARCH_TOLERANCE = 1e-3
_TINY = 1e-15  # squares that are roundoff of float64


@dataclasses.dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The largest eigenvalues of a matrix A, as far as they were found."""

    values: Float64[np.ndarray, " k"]  # descending
    vectors: Float64[np.ndarray, "n k"]  # orthonormal columns
    # ||A v - value v||, by a product for each: some eigenvalue is no further away.
    residuals: Float64[np.ndarray, " k"]
    converged: Bool[np.ndarray, " k"]  # whether the residual met the tolerance
    products: int  # how many products there were


@dataclasses.dataclass(frozen=True, eq=False)
class RitzPairs:
    """Approximate eigenpairs of a matrix A, with the products that say how good they are."""

    values: Float64[np.ndarray, " k"]  # descending
    vectors: Float64[np.ndarray, "n k"]  # orthonormal columns
    images: Float64[np.ndarray, "n k"]  # a times the vectors

    @property
    def errors(self) -> Float64[np.ndarray, "n k"]:
        """A v - value v, one column for each pair."""
        return self.images - self.values * self.vectors

    @property
    def residuals(self) -> Float64[np.ndarray, " k"]:
        """||A v - value v||."""
        return np.linalg.norm(self.errors, axis=0)


def reachable_tolerance(tolerance: float, roundoff: float) -> float:
    """The tolerance, or 8 unit roundoffs of the products where that is more.

    Products of two vectors that are equal but for rounding differ by a few roundoffs, and so do
    residuals: to ask for less would be to ask for luck.
    """
    return max(tolerance, 8.0 * roundoff)


def largest(
    product: Product, size: int, k: int, tolerance: float, seed: int, *, roundoff: float = 0.0
) -> Eigenpairs:
    """The k largest eigenvalues and their vectors, with residuals relative to the largest of them.

    There are fewer than k where ARPACK gave up, and NaN throughout where a product was not finite.
    """
    counted = _Counted(product)
    goal = reachable_tolerance(tolerance, roundoff)
    if size <= 2 * k + 20:  # the basis of ARPACK would hardly be smaller than the matrix
        pairs = _by_decomposition(counted, size, k)
    else:
        pairs = _by_iteration(counted, size, k, tolerance, goal, np.random.default_rng(seed))
    residuals = pairs.residuals
    converged = residuals <= goal * np.abs(pairs.values).max(initial=0.0)
    return Eigenpairs(pairs.values, pairs.vectors, residuals, converged, counted.count)


def largest_pair(
    product: Product, start: Vector, tolerance: float, *, roundoff: float = 0.0
) -> Eigenpairs:
    """The largest eigenvalue of a positive semidefinite A and its vector, from one start vector.

    What is repeated is found once: for one eigenvalue that is enough. NaN where a product was not
    finite.
    """
    counted = _Counted(product)
    goal = reachable_tolerance(tolerance, roundoff)
    size = start.size
    basis = (start / np.linalg.norm(start))[:, None]
    images = _applied(counted, basis)
    while np.isfinite(images).all():
        pair = _rayleigh_ritz(basis, images, 1)
        # Half the goal leaves room for rounding: the residual that counts is measured at the end.
        met = pair.residuals[0] <= 0.5 * goal * abs(pair.values[0])
        if met or basis.shape[1] == size or counted.count >= MOST_PRODUCTS:
            break
        if basis.shape[1] == LARGEST_BASIS:  # it is full: begin anew from the best vector in it
            basis = pair.vectors
            images = pair.images
        direction = _orthonormal_beside(basis, pair.errors)
        basis = np.concatenate([basis, direction], axis=1)
        images = np.concatenate([images, _applied(counted, direction)], axis=1)
    else:
        pair = _not_finite(size, 1)
    # The image of a sum of vectors was a sum of images: the residual is to come from a product.
    measured = RitzPairs(pair.values, pair.vectors, _applied(counted, pair.vectors))
    residuals = measured.residuals
    converged = residuals <= goal * np.abs(pair.values)
    return Eigenpairs(pair.values, pair.vectors, residuals, converged, counted.count)


def largest_signed_pair(
    product: Product, signs: Vector, start: Vector, tolerance: float, *, roundoff: float = 0.0
) -> Eigenpairs:
    """The largest eigenvalue of S M, S = diag(signs) and M positive semidefinite, and its vector.

    S M is symmetric in the inner product <a, b> = a^T M b, in which residuals are measured. So each
    w comes with its image t = M w, the basis has <w_i, w_j> = w_i . t_j = 1 or 0, and Rayleigh-Ritz
    is on <w_i, S M w_j> = t_i . S t_j. The next direction is the residual S t - theta w. 0 where M
    is 0, NaN where a product was not finite.
    """
    counted = _Counted(product)
    goal = reachable_tolerance(tolerance, roundoff)
    basis = images = np.empty((start.size, 0))
    value, residual = 0.0, 0.0
    w = t = np.zeros(start.size)
    direction = start / np.linalg.norm(start)
    while counted.count < MOST_PRODUCTS:
        for _ in range(2):  # orthogonal to the basis; twice is enough
            direction = direction - basis @ (images.T @ direction)
        image = counted(direction)
        if not np.isfinite(image).all():
            value = residual = math.nan
            break
        square = float(direction @ image)  # ||direction||^2
        residual = max(square, 0.0) ** 0.5 if basis.size else 0.0
        roundoff_of_square = max(roundoff, _TINY) * float(
            np.linalg.norm(direction) * np.linalg.norm(image)
        )
        if square <= roundoff_of_square or (basis.size and residual <= goal * abs(value)):
            residual = min(residual, goal * abs(value))  # what is left is roundoff
            break
        if basis.shape[1] == LARGEST_BASIS:  # it is full: begin anew from the best vector in it
            basis, images = w[:, None], t[:, None]
        basis = np.column_stack([basis, direction / square**0.5])
        images = np.column_stack([images, image / square**0.5])
        values, vectors = np.linalg.eigh(images.T @ (signs[:, None] * images))
        value = float(values[-1])
        w, t = basis @ vectors[:, -1], images @ vectors[:, -1]
        direction = signs * t - value * w
    return Eigenpairs(
        np.array([value]),
        w[:, None],
        np.array([residual]),
        np.array([residual <= goal * abs(value)]),
        counted.count,
    )


class _Counted:
    """A product that counts how often it was called."""

    def __init__(self, product: Product):
        self.product = product
        self.count = 0

    def __call__(self, v: Vector) -> Vector:
        self.count += 1
        return self.product(v)


def _applied(product: Product, vectors: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n k"]:
    """The product with every column."""
    images = np.empty_like(vectors)
    for column, vector in enumerate(vectors.T):
        images[:, column] = product(vector)
    return images


def not_finite() -> errors.InvalidInputError:
    """The error of products that were not finite."""
    return errors.InvalidInputError(
        expected="finite products with the kernel",
        got="NaN or Inf",
        do="Look for NaN parameters or inputs, or overflow in a half-precision model.",
    )


def _not_finite(size: int, k: int) -> RitzPairs:
    """What is returned where a product was NaN or infinite."""
    nothing = np.full((size, k), np.nan)
    return RitzPairs(np.full(k, np.nan), nothing, nothing)


def _by_decomposition(product: Product, size: int, k: int) -> RitzPairs:
    """The largest pairs of a small matrix, which is formed column by column."""
    matrix = _applied(product, np.eye(size))
    if not np.isfinite(matrix).all():
        return _not_finite(size, k)
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    # LAPACK has the smallest first.
    values = values[::-1][:k]
    vectors = vectors[:, ::-1][:, :k]
    return RitzPairs(values, vectors, _applied(product, vectors))


def _by_iteration(
    product: Product, size: int, k: int, tolerance: float, goal: float, rng: np.random.Generator
) -> RitzPairs:
    """The largest pairs by steps 1 to 4 of the module."""
    scale, start = _scale(product, rng.normal(size=size))
    if scale == 0.0:
        return RitzPairs(np.zeros(k), np.eye(size, k), np.zeros((size, k)))
    if not np.isfinite(scale):
        return _not_finite(size, k)

    def shifted(v: Vector) -> Vector:
        return product(v) / scale + v

    values, vectors = _arpack(shifted, start, k, tolerance, ARPACK_RESTARTS)
    # ARPACK's own estimates of the residuals are left out: products say what they are.
    pairs = RitzPairs(values, vectors, _applied(shifted, vectors))
    if values.size:
        pairs = _with_missed(shifted, pairs, tolerance, goal, rng)
    # Back from A / scale + 1 to A.
    images = scale * (pairs.images - pairs.vectors)
    return RitzPairs(scale * (pairs.values - 1.0), pairs.vectors, images)


def _scale(product: Product, v: Vector) -> tuple[float, Vector]:
    """About the largest absolute eigenvalue, from below, and a vector rich in its direction."""
    scale = 0.0
    for _ in range(POWER_STEPS):
        v = v / np.linalg.norm(v)
        image = product(v)
        scale = float(np.linalg.norm(image))
        if scale == 0.0 or not np.isfinite(scale):
            break
        # A little of the old vector stays, or the start would have lost all small eigenvalues.
        v = image / scale + 1e-3 * v
    return scale, v


def _arpack(
    product: Product, start: Vector, k: int, tolerance: float, restarts: int
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, "n k"]]:
    """The k largest eigenvalues by ARPACK, descending; those alone that converged."""
    import scipy.sparse.linalg  # here, because loading it takes longer than the rest of the package

    linalg: Any = scipy.sparse.linalg  # whose annotations are guessed from defaults
    operator = linalg.LinearOperator((start.size, start.size), matvec=product, dtype=np.float64)
    try:
        values, vectors = linalg.eigsh(
            operator, k, which="LA", v0=start, tol=tolerance, maxiter=restarts
        )
    except linalg.ArpackNoConvergence as error:
        values = error.eigenvalues
        vectors = error.eigenvectors
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def _with_missed(
    product: Product, pairs: RitzPairs, tolerance: float, goal: float, rng: np.random.Generator
) -> RitzPairs:
    """The largest pairs, refined, with those put in that were missed by more than a tolerance."""
    k = pairs.values.size
    first = pairs
    pairs = _refined(product, pairs, goal)
    for _ in range(k):  # as many could be missing
        missed = _search(product, pairs, rng)
        if missed is None:
            break
        # A Rayleigh quotient is at most the largest eigenvalue of the rest, and close to it here.
        image = _applied(product, missed)
        if float(np.vdot(missed, image)) <= pairs.values[-1] + tolerance:
            break
        basis = np.concatenate([pairs.vectors, missed], axis=1)
        images = np.concatenate([pairs.images, image], axis=1)
        pairs = _refined(product, _rayleigh_ritz(basis, images, k), goal)
    if pairs is first:  # nothing was refined or put in
        return pairs
    # Rayleigh-Ritz combines images of earlier vectors: residuals are to come from products.
    return RitzPairs(pairs.values, pairs.vectors, _applied(product, pairs.vectors))


def _search(
    product: Product, pairs: RitzPairs, rng: np.random.Generator
) -> Float64[np.ndarray, "n 1"] | None:
    """Roughly the eigenvector of the largest eigenvalue that is not among the pairs."""
    vectors = pairs.vectors
    # A - below V V^T: eigenvalues of the pairs move to the negative side, all others stay.
    below = 2.0 * pairs.values[0]

    def rest(v: Vector) -> Vector:
        return product(v) - below * vectors @ (vectors.T @ v)

    start = rng.normal(size=vectors.shape[0])
    _, vector = _arpack(rest, start, 1, SEARCH_TOLERANCE, SEARCH_RESTARTS)
    if not vector.size:
        return None
    return _orthonormal_beside(vectors, vector)


def _refined(product: Product, pairs: RitzPairs, goal: float) -> RitzPairs:
    """The pairs with residuals of at most `goal` times the largest eigenvalue, where possible.

    A residual is orthogonal to the vectors, zero at eigenvectors, and points to what the vectors
    lack. So residuals above the goal join the basis, and Rayleigh-Ritz takes the best vectors from
    it: block Lanczos, restarted.
    """
    # The eigenvalues are shifted by 1 here. Half the goal leaves room for rounding.
    goal = goal * np.abs(pairs.values - 1.0).max()
    if (pairs.residuals <= goal).all():
        return pairs
    k = pairs.values.size
    basis = pairs.vectors
    images = pairs.images
    largest_basis = 2 * k + 20
    for _ in range(REFINEMENTS):
        unfinished = pairs.residuals > 0.5 * goal
        if not unfinished.any():
            break
        # The basis is full: it begins anew from the best vectors in it.
        if basis.shape[1] + unfinished.sum() > largest_basis:
            basis = pairs.vectors
            images = pairs.images
        directions = _orthonormal_beside(basis, pairs.errors[:, unfinished])
        basis = np.concatenate([basis, directions], axis=1)
        images = np.concatenate([images, _applied(product, directions)], axis=1)
        pairs = _rayleigh_ritz(basis, images, k)
    return pairs


def _rayleigh_ritz(
    basis: Float64[np.ndarray, "n m"], images: Float64[np.ndarray, "n m"], k: int
) -> RitzPairs:
    """The k largest Ritz pairs in the span of an orthonormal basis, given its products."""
    small = basis.T @ images  # [m m], symmetric but for rounding
    values, weights = np.linalg.eigh(0.5 * (small + small.T))
    weights = weights[:, ::-1][:, :k]
    return RitzPairs(values[::-1][:k], basis @ weights, images @ weights)


def _orthonormal_beside(
    basis: Float64[np.ndarray, "n m"], vectors: Float64[np.ndarray, "n k"]
) -> Float64[np.ndarray, "n k"]:
    """An orthonormal basis of some vectors, orthogonal to a first one; twice is enough (Kahan)."""
    # After one projection rounding leaves a part along the basis, if the vectors nearly lie in it.
    for _ in range(2):
        vectors = vectors - basis @ (basis.T @ vectors)
        vectors = np.linalg.qr(vectors)[0]
    return vectors
