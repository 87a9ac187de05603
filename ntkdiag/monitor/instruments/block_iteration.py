"""The largest eigenvalues of a Gauss-Newton matrix of a preconditioned update, by products.

G = E^1/2 J^T H J E^1/2, with H the curvature of the loss in the outputs, has the eigenvalues of
K = H^1/2 J E J^T H^1/2 beside zeros. A change of the outputs w stands for a vector of each:

    u = H^1/2 w   of K,   z = E^1/2 J^T H w   of G,   t = J E J^T H w   their one product,

one pull and one push. All inner products that a Rayleigh-Ritz method needs are between outputs:

    <u_i, u_j> = w_i . H w_j     <z_i, z_j> = w_i . H t_j     <z_i, G z_j> = t_i . H t_j

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

Changes: TypeAlias = Float[Array, "k n *o"]

# Directions that are others but for this share, squared, are none: roundoff of their products.
_DEPENDENT = 1e-5
# The relative difference of two ways to one number that is roundoff.
_INCONSISTENT = 0.05


@pytree("w", "t")
@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
    """Some directions in the space of outputs, with their products; zeros where there is none.

    Attributes:
        w: Changes of the outputs.
        t: J E J^T H w.
    """

    w: Changes
    t: Changes

    def combined(self, coefficients: Float[Array, "k m"]) -> "Directions":
        """m combinations of the k directions, whose products need no pass."""
        return Directions(_combined(coefficients, self.w), _combined(coefficients, self.t))

    def joined(self, others: "Directions") -> "Directions":
        """These directions, and then the others."""
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), self, others)


@pytree("z_z", "halves", "u_u")
@dataclasses.dataclass(frozen=True, eq=False)
class Products:
    """Inner products between directions.

    Attributes:
        z_z: <z_i, z_j>.
        halves: <z_i, G z_j>, of either half of the examples.
        u_u: <u_i, u_j>.
    """

    z_z: Float[Array, "k k"]
    halves: Float[Array, "2 k k"]
    u_u: Float[Array, "k k"]

    @property
    def curvature(self) -> Float[Array, "k k"]:
        """<z_i, G z_j>, of all examples."""
        return self.halves[0] + self.halves[1]


@pytree("values", "coefficients")
@dataclasses.dataclass(frozen=True, eq=False)
class Ritz:
    """Rayleigh-Ritz of a matrix on a basis.

    Attributes:
        values: Ritz values, descending; 0 for directions that depend on others.
        coefficients: Of the Ritz vectors in the basis, in columns; they are orthonormal.
    """

    values: Float[Array, " d"]
    coefficients: Float[Array, "d d"]


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
) -> Directions:
    """The basis after all passes, each a push and a pull: `size` - 1 best vectors and the last R.

    Args:
        situation: The step.
        response: E, like the parameters.
        passes: What is new in each pass.
        size: Of the basis.
        is_on: False for no passes, and a basis of zeros.
    """
    like = passes.fresh
    # + on one half of the examples, - on the other: [n 1 ...]
    half = _by_example(first_half(like.shape[1]), like.ndim - 1)
    sign = jnp.where(half, 1.0, -1.0).astype(like.dtype)

    def one_pass(r: Int[Array, ""], basis: Directions) -> Directions:
        # Rayleigh-Ritz on what there is.
        products = products_of(situation, basis)
        ritz = rayleigh_ritz(products.z_z, products.curvature)
        kept = basis.combined(ritz.coefficients[:, : size - 1])
        # The new direction, orthogonal to them: <z_R, z_X> = H w_R . t_X. Twice, for roundoff.
        w, t = kept.w[:1], kept.t[:1]
        new = passes.direction(r, t - ritz.values[0] * w, sign * t)
        for _ in range(2):
            new = normalised(new)
            overlaps = _inner_products(_curved(situation, new), kept.t)  # [1 size-1]
            new = new - _combined(overlaps.T, kept.w)
        # The one product.
        new = normalised(new)
        curved = _curved(situation, new)
        product, square = _through_parameters(situation, response, curved[0])
        return kept.joined(_unit(Directions(new, product[None]), curved, square))

    nothing = jnp.zeros((size, *like.shape[1:]), like.dtype)
    n_passes = jnp.where(is_on, passes.total, 0)
    return jax.lax.fori_loop(0, n_passes, one_pass, Directions(nothing, nothing))


def products_of(situation: Situation, basis: Directions) -> Products:
    """All inner products; one direction after the other, for the memory of large outputs."""
    half = _by_example(first_half(basis.w.shape[1]), basis.w.ndim - 1)

    def row(direction: Directions) -> tuple[Array, Array, Array]:
        curved_w = situation.curve(direction.w)
        curved_t = situation.curve(direction.t)
        z_z = _inner_products(curved_w[None], basis.t)[0]
        u_u = _inner_products(curved_w[None], basis.w)[0]
        of_halves = jnp.stack([half * curved_t, ~half * curved_t])
        return z_z, _inner_products(of_halves, basis.t), u_u

    z_z, halves, u_u = jax.lax.map(row, basis)
    return Products(_symmetric(z_z), _symmetric(jnp.moveaxis(halves, 1, 0)), _symmetric(u_u))


def rayleigh_ritz(gram: Float[Array, "d d"], matrix: Float[Array, "d d"]) -> Ritz:
    """The eigenvalues of a matrix <b_i, M b_j> on the span of vectors with Gram matrix <b_i, b_j>.

    Numbers that are not finite count as 0 here: the caller has to look at them.
    """
    gram = jnp.nan_to_num(gram, posinf=0.0, neginf=0.0)
    matrix = jnp.nan_to_num(matrix, posinf=0.0, neginf=0.0)
    # Directions of unit length, then an orthonormal basis of their span.
    lengths = jnp.sqrt(jnp.clip(jnp.diagonal(gram), 0.0))
    scale = _inverse(lengths)
    overlaps, rotation = jnp.linalg.eigh(scale[:, None] * gram * scale)
    overlaps = jnp.where(overlaps > _DEPENDENT, overlaps, 0.0)
    frame = scale[:, None] * rotation * _inverse(jnp.sqrt(overlaps))
    values, coordinates = jnp.linalg.eigh(_times(frame.T, matrix, frame))
    return Ritz(values[::-1], _times(frame, coordinates)[:, ::-1])


def residuals_of(
    situation: Situation, vectors: Directions, values: Float[Array, " k"]
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


def _through_parameters(
    situation: Situation, response: PyTree, cotangent: Float[Array, "n *o"]
) -> tuple[Float[Array, "n *o"], Float[Array, ""]]:
    """J E J^T c, and the square of z = E^1/2 J^T c."""
    gradient = situation.pull(cotangent)
    answer = jax.tree.map(jnp.multiply, response, gradient)
    return situation.push(answer), inner_product(answer, gradient)


def _unit(directions: Directions, curved: Changes, square: Float[Array, ""]) -> Directions:
    """The directions scaled to ||z|| = 1; zeros where their product is but roundoff.

    So it is where the kernel has no further direction: ||z||^2 and w . H t are not one number then.
    """
    squares = _sums(curved * directions.t)  # ||z||^2, none below 0
    is_product = jnp.abs(squares - square) < _INCONSISTENT * square
    lengths = jnp.where(is_product, jnp.sqrt(jnp.clip(squares, 0.0)), 0.0)
    scale = _by_example(_inverse(lengths), curved.ndim)
    return Directions(scale * directions.w, scale * directions.t)


def _curved(situation: Situation, changes: Changes) -> Changes:
    return jax.vmap(situation.curve)(changes)


def _combined(coefficients: Float[Array, "k m"], changes: Changes) -> Changes:
    return jnp.einsum("km,k...->m...", coefficients, changes, precision="highest")


def _inner_products(a: Changes, b: Changes) -> Float[Array, "k m"]:
    """<a_i, b_j>, as sums: products of matrices are rounded on accelerators."""
    return jax.vmap(lambda one: _sums(one * b))(a)


def _sums(changes: Changes) -> Float[Array, " k"]:
    return changes.sum(axis=tuple(range(1, changes.ndim)))


def _times(*matrices: Float[Array, "?a ?b"]) -> Float[Array, "c d"]:
    return jnp.linalg.multi_dot(matrices, precision="highest")


def _symmetric(matrix: Float[Array, "*s k k"]) -> Float[Array, "*s k k"]:
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


def _inverse(numbers: Float[Array, " k"]) -> Float[Array, " k"]:
    """1 / x, and 0 for 0."""
    is_zero = numbers == 0.0
    return jnp.where(is_zero, 0.0, 1.0 / jnp.where(is_zero, 1.0, numbers))


def _by_example(numbers: jax.typing.ArrayLike, ndim: int) -> Array:
    """Numbers for the leading axis of an array: [k] -> [k 1 ...]."""
    return jnp.reshape(numbers, (-1,) + (1,) * (ndim - 1))
