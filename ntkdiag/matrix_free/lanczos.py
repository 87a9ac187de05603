"""The largest eigenvalues of a symmetric matrix A from products with it.

Restarted Lanczos iteration in float64 around products of any precision:

1. A basis grows along the largest residual A v - lambda v of its Ritz pairs. In a Krylov space all
   residuals are parallel, so that this is Lanczos iteration with full orthogonalization; a basis
   that is full restarts from its best vectors (thick restart, Wu and Simon 2000).
2. A Krylov space contains one direction of every eigenspace, and finds repeated eigenvalues only by
   rounding. So the known vectors are projected out, and the largest remaining eigenvalue is
   estimated. If it is above the k-th it joins the others, and step 1 follows; if not, none is
   missing.

The largest eigenvalue of S M, with signs S and a semidefinite M, needs an inner product of its own
(`largest_pair`).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float64

from ntkdiag import errors

Vector: TypeAlias = Float64[np.ndarray, " n"]
Product: TypeAlias = Callable[[Vector], Vector]

# Vectors that a basis for one pair holds, and the products after which the search gives up.
LARGEST_BASIS = 40
MOST_PRODUCTS = 200
# The search only tells whether something lies above the k-th eigenvalue; step 1 follows.
SEARCH_TOLERANCE = 1e-3
SEARCH_PRODUCTS = 12  # at least: a residual may be small by chance before
_TINY = 1e-15  # relative roundoff of float64


@dataclasses.dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The largest eigenvalues of a matrix A, as far as they were found."""

    values: Float64[np.ndarray, " k"]  # descending
    vectors: Float64[np.ndarray, "n k"]  # columns, orthonormal; of `largest_pair`: w^T M w = 1
    # ||A v - value v||, in the norm of the vectors: some eigenvalue is no further away.
    residuals: Float64[np.ndarray, " k"]
    converged: Bool[np.ndarray, " k"]  # whether the residual met the tolerance
    products: int  # how many products there were


@dataclasses.dataclass(frozen=True, eq=False)
class RitzPairs:
    """Approximate eigenpairs of a matrix A, with the products that say how good they are."""

    values: Float64[np.ndarray, " k"]  # descending
    vectors: Float64[np.ndarray, "n k"]  # orthonormal columns
    images: Float64[np.ndarray, "n k"]  # A times the vectors

    @property
    def errors(self) -> Float64[np.ndarray, "n k"]:
        """A v - value v, one column for each pair."""
        return self.images - self.values * self.vectors

    @property
    def residuals(self) -> Float64[np.ndarray, " k"]:
        """||A v - value v||."""
        return np.linalg.norm(self.errors, axis=0)


def reachable_tolerance(tolerance: float, roundoff: float) -> float:
    """The tolerance, but at least 8 unit roundoffs of the products, where residuals end."""
    return max(tolerance, 8.0 * roundoff)


def largest(
    product: Product, size: int, k: int, tolerance: float, seed: int, *, roundoff: float = 0.0
) -> Eigenpairs:
    """The k largest eigenvalues, converged relative to the largest; NaN where products are."""
    counted = _Counted(product)
    goal = reachable_tolerance(tolerance, roundoff)
    if size <= 2 * k + 20:  # the basis would hardly be smaller than the matrix
        pairs = _by_decomposition(counted, size, k)
    else:
        pairs = _by_iteration(counted, size, k, tolerance, goal, np.random.default_rng(seed))
    # Images were sums of images so far: the residuals returned come from products.
    measured = dataclasses.replace(pairs, images=_applied(counted, pairs.vectors))
    residuals = measured.residuals
    converged = residuals <= goal * np.abs(pairs.values).max()
    return Eigenpairs(pairs.values, pairs.vectors, residuals, converged, counted.count)


def largest_pair(
    product: Product,
    start: Vector,
    tolerance: float,
    *,
    signs: Vector | float = 1.0,
    roundoff: float = 0.0,
) -> Eigenpairs:
    """The largest eigenvalue and vector of S M, S = diag(signs) and M positive semidefinite."""
    # S M is symmetric in the inner product <a, b> = a^T M b, in which residuals are measured. So
    # each w comes with its image t = M w, the basis has w_i . t_j = 1 or 0, and Rayleigh-Ritz is on
    # t_i . S t_j. The next direction is the residual S t - theta w.
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
        rounding = max(roundoff, _TINY) * np.linalg.norm(direction) * np.linalg.norm(image)
        if square <= rounding or (basis.size and residual <= goal * abs(value)):
            residual = min(residual, goal * abs(value))  # what is left is roundoff
            break
        if basis.shape[1] == LARGEST_BASIS:  # it is full: begin again from the best vector in it
            basis, images = w[:, None], t[:, None]
        basis = np.column_stack([basis, direction / square**0.5])
        images = np.column_stack([images, image / square**0.5])
        values, vectors = np.linalg.eigh(images.T @ (signs * images.T).T)
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


def _nan_pairs(size: int, k: int) -> RitzPairs:
    """What is returned where a product was NaN or infinite."""
    nothing = np.full((size, k), np.nan)
    return RitzPairs(np.full(k, np.nan), nothing, nothing)


def _by_decomposition(product: Product, size: int, k: int) -> RitzPairs:
    """The largest pairs of a small matrix, which is formed column by column."""
    matrix = _applied(product, np.eye(size))
    if not np.isfinite(matrix).all():
        return _nan_pairs(size, k)
    return _rayleigh_ritz(np.eye(size), matrix, k)


def _by_iteration(
    product: Product, size: int, k: int, tolerance: float, goal: float, rng: np.random.Generator
) -> RitzPairs:
    """The largest pairs by both steps of the module."""
    most = MOST_PRODUCTS * (k + 1)
    nothing = np.empty((size, 0))
    pairs = _iterated(product, nothing, nothing, k, goal, most, rng)
    for _ in range(k):  # so many could be missing
        if not np.isfinite(pairs.values).all():
            break
        scale = np.abs(pairs.values).max()
        # A Rayleigh quotient is at most the largest eigenvalue of the rest, and close to it here.
        missed = _largest_of_rest(product, pairs.vectors, scale, rng)
        if not missed.values[0] > pairs.values[-1] + tolerance * scale:
            break
        basis = np.concatenate([pairs.vectors, missed.vectors], axis=1)
        images = np.concatenate([pairs.images, missed.images], axis=1)
        pairs = _iterated(product, basis, images, k, goal, most, rng)
    return pairs


def _largest_of_rest(
    product: Product,
    vectors: Float64[np.ndarray, "n k"],
    scale: float,
    rng: np.random.Generator,
) -> RitzPairs:
    """Roughly the largest pair of A on what is orthogonal to some vectors."""

    # A - 2 scale V V^T: eigenvalues of the pairs move to the negative side, all others stay.
    def rest(v: Vector) -> Vector:
        return product(v) - 2.0 * scale * vectors @ (vectors.T @ v)

    start = _orthonormal_beside(vectors, rng.normal(size=(len(vectors), 1)))
    image = _applied(rest, start)
    found = _iterated(
        rest,
        start,
        image,
        1,
        SEARCH_TOLERANCE,
        MOST_PRODUCTS,
        rng,
        scale=scale,
        least=SEARCH_PRODUCTS,
    )
    vector = _orthonormal_beside(vectors, found.vectors)
    return _rayleigh_ritz(vector, _applied(product, vector), 1)


def _iterated(
    product: Product,
    basis: Float64[np.ndarray, "n m"],
    images: Float64[np.ndarray, "n m"],
    k: int,
    goal: float,
    most: int,
    rng: np.random.Generator,
    *,
    scale: float = 0.0,
    least: int = 0,
) -> RitzPairs:
    """The k largest Ritz pairs in a basis that grows until residuals meet the goal, of `scale`."""
    size = len(basis)
    largest_basis = max(2 * k + 20, LARGEST_BASIS)
    pairs = RitzPairs(np.empty(0), basis[:, :0], images[:, :0])
    for count in range(most):
        if basis.shape[1]:
            pairs = _rayleigh_ritz(basis, images, k)
            # Half the goal leaves room for rounding: the residual that counts is measured later.
            allowed = 0.5 * goal * max(scale, np.abs(pairs.values).max())
            is_complete = len(pairs.values) == k and count >= least
            if (is_complete and (pairs.residuals <= allowed).all()) or basis.shape[1] == size:
                break
        if basis.shape[1] == largest_basis:  # it is full: begin again from the best vectors in it
            best = _rayleigh_ritz(basis, images, (k + largest_basis) // 2)
            basis, images = best.vectors, best.images
        direction = rng.normal(size=(size, 1))
        # If all residuals are roundoff, only another vector helps.
        if pairs.residuals.max(initial=0.0) > _TINY * np.abs(pairs.values).max(initial=0.0):
            direction = pairs.errors[:, [pairs.residuals.argmax()]]
        direction = _orthonormal_beside(basis, direction)
        image = _applied(product, direction)
        if not np.isfinite(image).all():
            return _nan_pairs(size, k)
        basis = np.concatenate([basis, direction], axis=1)
        images = np.concatenate([images, image], axis=1)
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
    """An orthonormal basis of some vectors, orthogonal to `basis`; twice is enough (Kahan)."""
    # After one projection rounding leaves a part along the basis, if the vectors nearly lie in it.
    for _ in range(2):
        vectors = vectors - basis @ (basis.T @ vectors)
        vectors = np.linalg.qr(vectors)[0]
    return vectors
