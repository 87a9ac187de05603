"""The largest eigenvalues of a Gauss-Newton matrix of a preconditioned update, by products.

G = E^1/2 J^T H J E^1/2, with H the curvature of the loss in the outputs, has the eigenvalues of
K = H^1/2 J E J^T H^1/2 beside zeros. A change of the outputs w stands for a vector of each:

    u = H^1/2 w   of K,   z = E^1/2 J^T H w   of G,   t = J E J^T H w   their one product,

one pull and one push. All inner products that a Rayleigh-Ritz method needs are between outputs:

    <z_i, z_j> = w_i . H t_j          <z_i, G z_j> = t_i . H t_j

so that nothing like the parameters is kept, and the pairs (w, t) tell the residual of u, too. The
basis is a few of the best vectors X so far, and one that is new in each pass, R:

    R = fresh                 at a restart, something random, and then
        t_X - theta w_X       the residual of the best vector, which makes it Lanczos' iteration;
        start                 each of the vectors that the last measurement ended with;
        t_X - theta w_X       once more, if there is time for it;
        +- t_X                in the last pass, with + on one half of the examples: what the two
                              halves of the probe do not agree on.

Sweeping over several old vectors is worth more than passes that begin from one of them: at the edge
of stability the largest eigenvalues lie close together, and change places.

Source: Wu and Simon 2000, Thick-restart Lanczos method, SIAM J. Matrix Anal. Appl. 22.
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.monitor.situation import Situation, inner_product
from ntkdiag.nouns import pytree

# Several changes of the outputs.
Changes: TypeAlias = Float[Array, "_ n *o"]

# Directions that are others but for this share, squared, are none: roundoff of their products.
_DEPENDENT = 1e-5
# The relative difference of two ways to one number that is roundoff.
_INCONSISTENT = 0.05
# ||z||^2 / (lambda_1 ||u||^2) below which products with other directions are roundoff.
_ROUNDOFF = 1e-8


@pytree("w", "t")
@dataclasses.dataclass(frozen=True, eq=False)
class Iterates:
    """Some vectors as changes of the outputs, with their products; zeros where there is none.

    Attributes:
        w: Changes of the outputs.
        t: J E J^T H w.
    """

    w: Changes
    t: Changes

    def combined(self, coefficients: Float[Array, "k m"]) -> "Iterates":
        """m combinations of the k directions, whose products need no pass."""
        return Iterates(_combined(coefficients, self.w), _combined(coefficients, self.t))

    def joined(self, others: "Iterates") -> "Iterates":
        """These directions, and then the others."""
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), self, others)


@pytree("values", "coefficients", "of_halves", "is_finite")
@dataclasses.dataclass(frozen=True, eq=False)
class Ritz:
    """Rayleigh-Ritz of G on a basis.

    Attributes:
        values: Ritz values, descending; 0 for directions that depend on others.
        coefficients: Of the Ritz vectors in the basis, in columns; ||z|| = 1.
        of_halves: The largest value of G of either half of the examples alone, on the same basis.
        is_finite: Whether all inner products were; others count as 0.
    """

    values: Float[Array, " d"]
    coefficients: Float[Array, "d d"]
    of_halves: Float[Array, "2"]
    is_finite: Bool[Array, ""]

    @staticmethod
    def of_nothing(size: int, dtype: jax.typing.DTypeLike) -> "Ritz":
        """That of a basis of zeros."""
        square = jnp.zeros((size, size), dtype)
        return Ritz(square[0], square, jnp.zeros(2, dtype), jnp.asarray(True))


@pytree("fresh", "starts", "n_fresh")
@dataclasses.dataclass(frozen=True, eq=False)
class Passes:
    """What is new in each pass.

    Attributes:
        fresh: What a restart begins from, [1 n ...].
        starts: Vectors of before; zeros where there is none.
        n_fresh: Passes of the restart; 0 for none.
        n_rounds: Passes along the residual after the starts.
    """

    fresh: Changes
    starts: Changes
    n_fresh: Int[Array, ""]
    n_rounds: int

    @property
    def total(self) -> Int[Array, ""]:
        """All passes, with the one that parts the examples."""
        return self.n_fresh + self.starts.shape[0] + self.n_rounds + 1

    def direction(self, r: Int[Array, ""], residual: Changes, parted: Changes) -> Changes:
        """R of pass r, of its own and of what comes from the best vector."""
        n_starts = self.starts.shape[0]
        k = r - self.n_fresh
        start = jax.lax.dynamic_slice_in_dim(self.starts, jnp.clip(k, 0, n_starts - 1), 1)
        direction = jnp.where((k >= 0) & (k < n_starts), start, residual)
        direction = jnp.where((r == 0) & (self.n_fresh > 0), self.fresh, direction)
        return jnp.where(r == self.total - 1, parted, direction)


def first_half(n: int) -> Bool[np.ndarray, " n"]:
    """A half of n examples at random, the same at every measurement."""
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng(0).permutation(n)[: n // 2]] = True
    return chosen


def iterate(
    situation: Situation, response: PyTree, passes: Passes, size: int, is_on: Bool[Array, ""]
) -> tuple[Iterates, Ritz]:
    """All passes, each a push and a pull.

    Args:
        situation: The step.
        response: E, like the parameters.
        passes: What is new in each pass.
        size: Of the basis.
        is_on: False for no passes, and a basis of zeros.

    Returns:
        The basis, `size` - 1 best vectors and the last R, and Rayleigh-Ritz on it.
    """
    like = passes.fresh
    # + on one half of the examples, - on the other: [n 1 ...]
    half = _by_example(first_half(like.shape[1]), like.ndim - 1)
    sign = jnp.where(half, 1.0, -1.0).astype(like.dtype)

    def one_pass(r: Int[Array, ""], so_far: tuple[Iterates, Ritz]) -> tuple[Iterates, Ritz]:
        basis, ritz = so_far
        best = basis.combined(ritz.coefficients[:, : size - 1])
        # The new direction, orthogonal to them: <z_R, z_X> = H w_R . t_X. Once: Rayleigh-Ritz takes
        # what roundoff leaves.
        w, t = best.w[:1], best.t[:1]
        new = normalised(passes.direction(r, t - ritz.values[0] * w, sign * t))
        overlaps = _inner_products(_curved(situation, new), best.t)  # [1 size-1]
        new = new - _combined(overlaps.T, best.w)
        # The one product.
        curved = _curved(situation, new)
        product, square = _through_parameters(situation, response, curved[0])
        last = _unit(Iterates(new, product[None]), curved, square, ritz.values[0])
        basis = best.joined(last)
        return basis, rayleigh_ritz(*_inner_products_of(situation, basis))

    nothing = jnp.zeros((size, *like.shape[1:]), like.dtype)
    n_passes = jnp.where(is_on, passes.total, 0)
    start = (Iterates(nothing, nothing), Ritz.of_nothing(size, like.dtype))
    return jax.lax.fori_loop(0, n_passes, one_pass, start)


def rayleigh_ritz(gram: Float[Array, "d d"], halves: Float[Array, "2 d d"]) -> Ritz:
    """The eigenvalues of G on the span of vectors z, and of G of each half of the examples alone.

    Args:
        gram: <z_i, z_j>.
        halves: <z_i, G z_j>, the parts of either half.
    """
    is_finite = jnp.isfinite(gram).all() & jnp.isfinite(halves).all()
    gram = jnp.where(is_finite, gram, 0.0)
    halves = jnp.where(is_finite, halves, 0.0)
    # Directions of unit length, then an orthonormal basis of their span.
    lengths = jnp.sqrt(jnp.clip(jnp.diagonal(gram), 0.0))
    scale = _inverse(lengths)
    overlaps, rotation = jnp.linalg.eigh(scale[:, None] * gram * scale)
    overlaps = jnp.where(overlaps > _DEPENDENT, overlaps, 0.0)
    frame = scale[:, None] * rotation * _inverse(jnp.sqrt(overlaps))
    # Of all examples, and of each half; a half alone counts twice.
    matrices = jnp.stack([halves[0] + halves[1], 2.0 * halves[0], 2.0 * halves[1]])
    inside = jnp.einsum("ia,mij,jb->mab", frame, matrices, frame, precision="highest")
    values, coordinates = jnp.linalg.eigh(inside)
    coefficients = jnp.matmul(frame, coordinates[0], precision="highest")
    return Ritz(values[0, ::-1], coefficients[:, ::-1], values[1:, -1], is_finite)


def residuals_of(
    situation: Situation, vectors: Iterates, values: Float[Array, " k"]
) -> Float[Array, " k"]:
    """||K u - theta u|| / ||u||: within this of theta there is an eigenvalue."""
    rest = vectors.t - _by_example(values, vectors.t.ndim) * vectors.w
    squared_rest = _sums(rest * _curved(situation, rest))
    squared_norm = _sums(vectors.w * _curved(situation, vectors.w))
    return jnp.sqrt(jnp.abs(squared_rest * _inverse(squared_norm)))


def normalised(changes: Changes) -> Changes:
    """Changes of unit length; those of length 0 stay."""
    largest = jnp.abs(changes).max(axis=tuple(range(1, changes.ndim)), initial=0.0)
    # In two steps, as squares of very small or large numbers are none.
    changes = changes * _by_example(_inverse(largest), changes.ndim)
    return changes * _by_example(_inverse(jnp.sqrt(_sums(changes**2))), changes.ndim)


def _inner_products_of(
    situation: Situation, basis: Iterates
) -> tuple[Float[Array, "d d"], Float[Array, "2 d d"]]:
    """<z_i, z_j>, and <z_i, G z_j> by halves; row by row, for the memory of large outputs."""
    half = _by_example(first_half(basis.w.shape[1]), basis.w.ndim - 1)

    def row(direction: Iterates) -> tuple[Array, Array]:
        curved_w = situation.curve(direction.w)
        curved_t = situation.curve(direction.t)
        of_halves = [half * curved_t, ~half * curved_t]
        rows = _inner_products(jnp.stack([curved_w, *of_halves]), basis.t)
        return rows[0], rows[1:]

    gram, halves = jax.lax.map(row, basis)
    return _symmetric(gram), _symmetric(jnp.moveaxis(halves, 1, 0))


def _through_parameters(
    situation: Situation, response: PyTree, cotangent: Float[Array, "n *o"]
) -> tuple[Float[Array, "n *o"], Float[Array, ""]]:
    """J E J^T c, and the square of z = E^1/2 J^T c."""
    gradient = situation.pull(cotangent)
    answer = jax.tree.map(jnp.multiply, response, gradient)
    return situation.push(answer), inner_product(answer, gradient)


def _unit(
    directions: Iterates,
    curved: Changes,
    square: Float[Array, ""],
    largest: Float[Array, ""],
) -> Iterates:
    """The directions scaled to ||z|| = 1; zeros where their product is but roundoff.

    So it is where the kernel has no further direction: ||z||^2 and w . H t are not one number then.
    """
    squares = _sums(curved * directions.t)  # ||z||^2, none below 0
    is_product = jnp.abs(squares - square) < _INCONSISTENT * square
    is_product &= square > _ROUNDOFF * largest * _sums(curved * directions.w)
    lengths = jnp.where(is_product, jnp.sqrt(jnp.clip(squares, 0.0)), 0.0)
    scale = _by_example(_inverse(lengths), curved.ndim)
    return Iterates(scale * directions.w, scale * directions.t)


def _curved(situation: Situation, changes: Changes) -> Changes:
    return jax.vmap(situation.curve)(changes)


def _combined(coefficients: Float[Array, "k m"], changes: Changes) -> Changes:
    return jnp.einsum("km,k...->m...", coefficients, changes, precision="highest")


def _inner_products(a: Changes, b: Changes) -> Float[Array, "k m"]:
    """<a_i, b_j>, as sums: products of matrices are rounded on accelerators."""
    return jax.vmap(lambda one: _sums(one * b))(a)


def _sums(changes: Changes) -> Float[Array, " k"]:
    return changes.sum(axis=tuple(range(1, changes.ndim)))


def _symmetric(matrix: Float[Array, "*s k k"]) -> Float[Array, "*s k k"]:
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


def _inverse(numbers: Float[Array, " k"]) -> Float[Array, " k"]:
    """1 / x, and 0 for 0."""
    is_zero = numbers == 0.0
    return jnp.where(is_zero, 0.0, 1.0 / jnp.where(is_zero, 1.0, numbers))


def _by_example(numbers: jax.typing.ArrayLike, ndim: int) -> Array:
    """Numbers for the leading axis of an array: [k] -> [k 1 ...]."""
    return jnp.asarray(numbers).reshape((-1,) + (1,) * (ndim - 1))
