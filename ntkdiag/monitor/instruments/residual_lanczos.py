"""The largest eigenvalues of a Gauss-Newton matrix of a preconditioned update, by products.

G = E^1/2 J^T H J E^1/2, with H the curvature of the loss in the outputs, has the eigenvalues of
K = H^1/2 J E J^T H^1/2 beside zeros; with H and E identities K is the tangent kernel. A change of
the outputs q stands for a vector of each,

    u = H^1/2 q   of K,        z = E^1/2 J^T H q   of G,

so that nothing like the parameters is kept. This is Lanczos' iteration on K, with all vectors
orthogonal to one another, u_i . u_j = q_i . H q_j, and one pull and one push for each:

    t_j = J E J^T H q_j = sum_i s_i c_ij q_i      c_ij = q_i . H t_j for those there are,
    what is left of t_j is the next vector

The curvature of some losses is of both signs (advantages, contrasts), so that q . H q may be below
0. Vectors then have s_i = q_i . H q_i of 1 or -1; all s_i are 1 where H is definite. The matrix c
tells everything else: z_i . z_j = c_ij, z_i . G z_j = (c^T s c)_ij, and u_i . K u_j = c_ij.
The values are those of Rayleigh and Ritz on the z, a step ahead of those on the u. What a vector
with coefficients y and value theta leaves open is

    ||c y - theta y|| / ||y||                    of the u, where all s_i are 1,
    |size y_last| sqrt(lambda_1) at most         of the z, ||z|| = 1,

with size the length of what is left of the last t: the remainder of a z is along the next z alone.
Where H is not definite, a z may be longer than sqrt(lambda_1): the longest so far takes its place.
The first is not small where the vector that the iteration began from has a part that K takes to 0.
The smaller one counts.

The iteration begins from what the last measurement ended with, a sum of its best vectors, and at a
restart from something random as well. It goes on until the first values have converged, and those
after them leave nothing open that may be well above: of two modes that cross, it may have begun
with the second. A last vector may then be added that is t of the best one, with + on one half of
the examples and - on the other: what the two halves do not agree on.

Source: Golub and Van Loan 2013, Matrix Computations, section 10.1.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ntkdiag.monitor.instruments.random_signs import random_signs
from ntkdiag.pytree_dataclass import pytree

# A change of the outputs, and several of them.
Change: TypeAlias = Float[Array, "n *o"]
Changes: TypeAlias = Float[Array, "_ n *o"]

# Vectors that depend on others but for this share, squared, are roundoff of their products.
_DEPENDENT = 1e-5
# |q . H q| / (|q| |H q|) below which it is roundoff, and u . K u / lambda_1.
_ROUNDOFF = 1e-6
# Values after the first that may be above these by so many tolerances have to be looked at.
_ABOVE = 6.0
# So many of the best vectors are in the sum that the next iteration begins from.
_SUMMED = 3


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix K = H^1/2 J E J^T H^1/2, by its products."""

    curve: Callable[[Change], Change]  # h q
    through: Callable[[Change, Array, Bool[Array, ""]], Change]  # j E J^T c of a cotangent c


@pytree("start", "least", "looks_beside", "parts", "is_on")
@dataclasses.dataclass(frozen=True, eq=False)
class Passes:
    """Where an iteration begins, and when it ends."""

    start: Change  # the first vector
    least: Int[Array, ""] | int  # passes at least
    # Whether a pass with random signs comes first, for what lies beside the matrix.
    looks_beside: Bool[Array, ""]
    parts: Bool[Array, ""]  # whether a last pass parts the examples in halves
    is_on: Bool[Array, ""]  # false for no passes at all
    top_k: int = 1  # how many of the first values have to converge
    most: int = 16  # passes at most
    tolerance: float = 0.05  # the relative residual of a value that has converged


@pytree(
    "values",
    "residuals",
    "of_halves",
    "beside",
    "is_finite",
    "product",
    "curved",
    "kept",
    "n_passes",
)
@dataclasses.dataclass(frozen=True, eq=False)
class Converged:
    """What an iteration ended with."""

    values: Float[Array, " k"]  # the largest eigenvalues, each a lower bound, descending
    # Within so much of each value there is an eigenvalue; infinite without a value.
    residuals: Float[Array, " k"]
    # The largest value of either half of the examples alone, in the same directions.
    of_halves: Float[Array, "2"]
    beside: Float[Array, ""]  # s
    is_finite: Bool[Array, ""]  # whether all inner products were; others count as 0
    product: Change  # t of the best vector, with ||z|| = 1
    curved: Change  # h t
    kept: Change  # a sum of the best vectors, for the next iteration to begin from
    n_passes: Int[Array, ""]  # passes made


@pytree(
    "n_passes",
    "n_vectors",
    "is_parting",
    "has_ended",
    "q",
    "hq",
    "signs",
    "c",
    "left",
    "direction",
    "ritz",
    "values",
    "residuals",
    "best",
    "beside",
    "is_finite",
)
@dataclasses.dataclass(frozen=True, eq=False)
class _Progress:
    """How far an iteration is, with d places for vectors."""

    n_passes: Int[Array, ""]  # passes made
    n_vectors: Int[Array, ""]  # vectors so far, in the first places
    is_parting: Bool[Array, ""]  # whether the next pass parts the examples
    has_ended: Bool[Array, ""]  # whether there is no next pass
    q: Changes  # the vectors; zeros in places that are free
    hq: Changes  # h q of each
    signs: Float[Array, " d"]  # q
    c: Float[Array, "d d"]  # u_i
    left: Changes  # what the vectors do not have of the last product, of length 1, and its H q
    direction: Changes  # the next vector, but for its parts along the others, and its H q
    ritz: Float[Array, "d d"]  # the coefficients of all Ritz vectors, in columns
    values: Float[Array, " k"]  # as in `Converged`, as the next one
    residuals: Float[Array, " k"]  # the same
    # The coefficients of the first Ritz vectors, before the pass that parts the examples.
    best: Float[Array, "d k"]
    beside: Float[Array, ""]  # as in `Converged`, as the next one
    is_finite: Bool[Array, ""]  # the same

    @staticmethod
    def none(matrix: Matrix, passes: Passes, n_places: int, n_values: int) -> "_Progress":
        """No pass yet."""
        like = passes.start
        start = jnp.where(passes.looks_beside, random_signs(like.shape, like.dtype, 0), like)
        start = jnp.stack([start, matrix.curve(start)])
        nothing = jnp.zeros((n_places, *like.shape), like.dtype)
        square = jnp.zeros((n_places, n_places), like.dtype)
        return _Progress(
            n_passes=jnp.zeros((), jnp.int32),
            n_vectors=jnp.zeros((), jnp.int32),
            is_parting=jnp.zeros((), bool),
            has_ended=~passes.is_on,
            q=nothing,
            hq=nothing,
            signs=jnp.ones(n_places, like.dtype),
            c=square,
            left=jnp.zeros_like(start),
            direction=start,
            ritz=square,
            values=square[0, :n_values],
            residuals=jnp.full(n_values, jnp.inf, like.dtype),
            best=square[:, :n_values],
            beside=square[0, 0],
            is_finite=jnp.asarray(True),
        )


def iterate(matrix: Matrix, passes: Passes, n_places: int) -> Converged:
    """All passes, each a push and a pull, with so many places for vectors."""
    half = _on_first_half(passes.start)
    end = jax.lax.while_loop(
        lambda progress: ~progress.has_ended,
        lambda progress: _one_pass(matrix, passes, half, progress),
        _Progress.none(matrix, passes, n_places, max(passes.top_k + 1, _SUMMED)),
    )
    # The products of the best vectors have in them what is left of the last one, too.
    q = _put(end.q, end.n_vectors, end.left[0])
    hq = _put(end.hq, end.n_vectors, end.left[1])
    through = end.signs[:, None] * end.c
    products = _matmul(through, end.best)
    weights = 0.5 ** jnp.arange(_SUMMED) * _inverse(jnp.sqrt(jnp.clip(end.values[:_SUMMED], 0.0)))
    return Converged(
        values=end.values[: passes.top_k],
        residuals=end.residuals[: passes.top_k],
        of_halves=_values_of_halves(q, hq, half, _matmul(through, end.ritz)),
        beside=end.beside,
        is_finite=end.is_finite,
        product=_combined(products[:, 0], q),
        curved=_combined(products[:, 0], hq),
        kept=_combined(_matmul(products[:, :_SUMMED], weights), q),
        n_passes=end.n_passes,
    )


def _one_pass(
    matrix: Matrix, passes: Passes, half: Float[Array, "n *ones"], progress: _Progress
) -> _Progress:
    """One more vector, its product, and the best vectors there are then."""
    place = progress.n_vectors
    looks_beside = passes.looks_beside & (progress.n_passes == 0)
    was_parting = progress.is_parting

    # 1. The next vector, orthogonal to all others, and of length 1.
    direction, curved = progress.direction
    overlaps = progress.signs * _products(progress.hq, direction)
    direction = direction - _combined(overlaps, progress.q)
    curved = curved - _combined(overlaps, progress.hq)
    length, sign = _length(direction, curved)
    is_new = (length > _DEPENDENT) | (place == 0)  # the others are of length 1, but for roundoff
    scale = jnp.where(is_new, _inverse(length), 0.0)
    q = _put(progress.q, place, scale * direction)
    hq = _put(progress.hq, place, scale * curved)
    signs = progress.signs.at[place].set(sign)

    # 2. Its product. The pass that looks beside the matrix is of random signs themselves.
    cotangent = jnp.where(looks_beside, progress.direction[0], scale * curved)
    product = matrix.through(cotangent, 1.0 + 0.0 * progress.values[0], looks_beside)
    of_signs = jnp.abs(progress.direction[1]).max() * _dot(progress.direction[0], product)
    column = _products(hq, product)
    is_finite = looks_beside | jnp.isfinite(column).all()
    # Where K has no further direction, u . K u is roundoff.
    is_product = column[place] > _ROUNDOFF * progress.values[0]
    is_product &= (scale > 0.0) & ~looks_beside
    column = jnp.where(is_product, column, 0.0)

    # 3. What is left of it, and what the halves of the examples do not agree on, with their H q.
    left = jnp.where(is_product, product - _combined(signs * column, q), 0.0)
    left = jnp.where(looks_beside, passes.start, left)
    parted = (2.0 * half - 1.0) * _combined(progress.best[:, 0], progress.q)
    candidates = jnp.stack([left, parted])
    curved_candidates = jax.vmap(matrix.curve)(candidates)
    size, sign = _length(left, curved_candidates[0])
    signs = signs.at[place + is_product].set(jnp.where(is_product, sign, 1.0))
    below = jnp.where(looks_beside, 0.0, sign * size)
    c = progress.c.at[:, place].set(_put(column, place + 1, below))
    # Where the examples are parted, what was left of the last product is not the vector after it.
    overlap = _dot(scale * curved, progress.left[0]) * jnp.abs(c[place, place - 1])  # its size
    c = c.at[place, place - 1].set(jnp.where(was_parting, overlap, c[place, place - 1]))

    # 4. The best vectors, and whether they have converged.
    values, ritz = rayleigh_ritz(c, signs)
    n_values = progress.values.size
    best = ritz[:, :n_values]
    rests = _matmul(c, best) - values[:n_values] * best
    is_definite = (signs > 0.0).all()
    of_u = jnp.where(is_definite, _column_norms(rests) / _column_norms(best), jnp.inf)
    longest = jnp.maximum(jnp.diagonal(c).max(), values[0])
    of_z = jnp.abs(c[place + 1] @ best) * jnp.sqrt(longest)
    is_there = _column_norms(best) > 0.0
    residuals = jnp.where(is_there, jnp.minimum(of_u, of_z), jnp.inf)
    n_passes = progress.n_passes + 1
    top = slice(passes.top_k)
    is_settled = (residuals[top] <= passes.tolerance * values[top]).all()
    # Nothing above the first values is left open by those after them.
    rest = slice(passes.top_k, n_values)
    open_above = (values[rest] + residuals[rest]).max()
    is_settled &= ~(open_above > (1.0 + _ABOVE * passes.tolerance) * values[passes.top_k - 1])
    is_settled &= n_passes >= passes.least
    is_settled |= n_passes >= passes.most
    is_settled |= (~is_product & ~looks_beside) | ~is_finite

    # 5. What the next pass is of.
    is_parting = is_settled & passes.parts & ~was_parting
    left = jnp.stack([left, curved_candidates[0]]) * _inverse(size)
    parted = jnp.stack([parted, curved_candidates[1]])
    return _Progress(
        n_passes=n_passes,
        n_vectors=place + is_product,
        is_parting=is_parting,
        has_ended=was_parting | (is_settled & ~passes.parts),
        q=q,
        hq=hq,
        signs=signs,
        c=c,
        left=left,
        direction=jnp.where(is_parting, parted, left),
        ritz=ritz,
        values=jnp.where(was_parting, progress.values, values[:n_values]),
        residuals=jnp.where(was_parting, progress.residuals, residuals),
        best=jnp.where(was_parting, progress.best, best),
        beside=jnp.where(looks_beside, of_signs, progress.beside),
        is_finite=progress.is_finite & is_finite,
    )


def rayleigh_ritz(
    c: Float[Array, "d d"], signs: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The eigenvalues of G on the span of the vectors z, with coefficients of unit vectors."""
    # <z_i, z_j> of vectors with a product: the upper half of c, and its mirror image.
    is_there = jnp.diagonal(c) > 0.0
    upper = jnp.triu(c) * is_there[:, None] * is_there
    gram = upper + upper.T - jnp.diag(jnp.diagonal(upper))
    squares = _matmul(c.T, signs[:, None] * c) * is_there[:, None] * is_there  # <z_i, G z_j>
    # Directions of unit length, then an orthonormal basis of their span.
    scale = _inverse(jnp.sqrt(jnp.diagonal(gram)))
    overlaps, rotation = jnp.linalg.eigh(scale[:, None] * gram * scale)
    overlaps = jnp.where(overlaps > _DEPENDENT, overlaps, 0.0)
    frame = scale[:, None] * rotation * _inverse(jnp.sqrt(overlaps))
    values, coordinates = jnp.linalg.eigh(_matmul(frame.T, _matmul(squares, frame)))
    return values[::-1], _matmul(frame, coordinates)[:, ::-1]


def first_half(n: int) -> Bool[np.ndarray, " n"]:
    """A half of n examples at random, the same at every measurement."""
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng(0).permutation(n)[: n // 2]] = True
    return chosen


def normalised(change: Change) -> Change:
    """A change of unit length; one of length 0 stays."""
    # In two steps, as squares of very small or large numbers are none.
    change = change * _inverse(jnp.abs(change).max(initial=0.0))
    return change * _inverse(jnp.sqrt(_dot(change, change)))


def places_for(n_numbers: int, itemsize: int, most: int, limit: int) -> int:
    """Places for the vectors of so many passes, or as many as fit into some bytes; 9 at least."""
    return max(9, min(most + 3, limit // (2 * n_numbers * itemsize)))


def _values_of_halves(
    q: Changes, hq: Changes, half: Float[Array, "n *ones"], products: Float[Array, "d d"]
) -> Float[Array, "2"]:
    """The largest value of G of either half of the examples alone, which then counts twice."""
    flat = q.reshape(q.shape[0], -1)
    parts = []
    for of_half in (half, 1.0 - half):
        curved = (of_half * hq).reshape(flat.shape)
        inside = _matmul(products.T, _matmul(_matmul(flat, curved.T), products))
        parts.append(inside + inside.T)
    return jnp.linalg.eigvalsh(jnp.stack(parts))[:, -1]


def _on_first_half(like: Change) -> Float[Array, "n *ones"]:
    """1 on one half of the examples, 0 on the other."""
    half = first_half(like.shape[0]).astype(like.dtype)
    return jnp.asarray(half.reshape((-1,) + (1,) * (like.ndim - 1)))


def _put(rows: Array, place: Int[Array, ""], row: Array) -> Array:
    """An array with another row."""
    return jax.lax.dynamic_update_index_in_dim(rows, row.astype(rows.dtype), place, 0)


def _dot(a: Change, b: Change) -> Float[Array, ""]:
    """The inner product of two changes."""
    return jnp.vdot(a, b, precision="highest")


def _length(change: Change, curved: Change) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The root of |q . H q|, 0 where that is roundoff, and its sign."""
    square = _dot(change, curved)
    roundoff = _ROUNDOFF * jnp.sqrt(_dot(change, change)) * jnp.sqrt(_dot(curved, curved))
    length = jnp.where(jnp.abs(square) > roundoff, jnp.sqrt(jnp.abs(square)), 0.0)
    return length, jnp.where(square < 0.0, -1.0, 1.0)


def _products(changes: Changes, change: Change) -> Float[Array, " d"]:
    """Inner products of several changes with one."""
    return _matmul(changes.reshape(changes.shape[0], -1), change.reshape(-1))


def _combined(coefficients: Float[Array, " d"], changes: Changes) -> Change:
    """A combination of changes."""
    flat = changes.reshape(changes.shape[0], -1)
    return _matmul(coefficients, flat).reshape(changes.shape[1:])


def _matmul(a: Array, b: Array) -> Array:
    """A product of matrices; accelerators would round it."""
    return jnp.matmul(a, b, precision="highest")


def _column_norms(columns: Float[Array, "d k"]) -> Float[Array, " k"]:
    return jnp.sqrt(jnp.square(columns).sum(axis=0))


def _inverse(numbers: Float[Array, "*k"]) -> Float[Array, "*k"]:
    """1 / x, and 0 for 0."""
    is_zero = numbers == 0.0
    return jnp.where(is_zero, 0.0, 1.0 / jnp.where(is_zero, 1.0, numbers))
