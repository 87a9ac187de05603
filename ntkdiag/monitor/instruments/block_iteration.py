"""The largest eigenvalues of a Gauss-Newton matrix of a preconditioned update, by products.

G = E^1/2 J^T H J E^1/2, with H the curvature of the loss in the outputs, has the eigenvalues of
K = H^1/2 J E J^T H^1/2 beside zeros. A change of the outputs w stands for a vector of each:

    u = H^1/2 w   of K,   z = E^1/2 J^T H w   of G,   t = J E J^T H w   their one product,

one pull and one push. All inner products that a Rayleigh-Ritz method needs are between outputs:

    <u_i, u_j> = w_i . H w_j     <z_i, z_j> = w_i . H t_j     <z_i, G z_j> = t_i . H t_j

so that nothing like the parameters is kept, and the pairs (w, t) tell the residual of u, too. The
basis is that of LOBPCG, three blocks: the best vectors X, what they were before (P), and R:

    R = start                 in the first pass,
        t_X - theta w_X       then, the residual,
        +- t_X                in the last pass, with + on one half of the examples: what the two
                              halves of the probe do not agree on.

Source: Knyazev 2001, Toward the optimal preconditioned eigensolver, SIAM J. Sci. Comput. 23.
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.monitor.situation import Situation
from ntkdiag.nouns import pytree

Changes: TypeAlias = Float[Array, "k n *o"]

# Directions that are others but for this share, squared, are none: roundoff of their products.
_DEPENDENT = 1e-5


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


@pytree("values", "coefficients", "coordinates", "frame")
@dataclasses.dataclass(frozen=True, eq=False)
class Ritz:
    """Rayleigh-Ritz of a matrix on a basis.

    Attributes:
        values: Ritz values, descending; 0 for directions that depend on others.
        coefficients: Of the Ritz vectors in the basis, in columns; they are orthonormal.
        coordinates: Of the Ritz vectors in an orthonormal basis of the same space.
        frame: That orthonormal basis in the given one, in columns; 0 for what depends on others.
    """

    values: Float[Array, " d"]
    coefficients: Float[Array, "d d"]
    coordinates: Float[Array, "d d"]
    frame: Float[Array, "d d"]


def first_half(n: int) -> Bool[np.ndarray, " n"]:
    """A half of n examples at random, the same at every measurement."""
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng(0).permutation(n)[: n // 2]] = True
    return chosen


def iterate(
    situation: Situation, response: PyTree, start: Changes, n_passes: Int[Array, ""] | int
) -> Directions:
    """The basis X, P, R [3 k n ...] after so many passes, each a push and a pull.

    Args:
        situation: The step.
        response: E, like the parameters.
        start: Changes of the outputs to begin from.
        n_passes: 2 or more; the last one parts the examples.
    """
    k = start.shape[0]
    # + on one half of the examples, - on the other: [n 1 ...]
    half = _by_example(first_half(start.shape[1]), start.ndim - 1)
    sign = jnp.where(half, 1.0, -1.0).astype(start.dtype)

    def one_pass(r: Int[Array, ""], basis: Directions) -> Directions:
        # Rayleigh-Ritz on what there is.
        products = products_of(situation, basis)
        ritz = rayleigh_ritz(products.z_z, products.curvature)
        kept = basis.combined(_best_and_before(ritz, products.z_z, k))
        theta = _by_example(ritz.values[:k], start.ndim)
        w, t = kept.w[:k], kept.t[:k]
        # The new direction, orthogonal to them: <z_R, z_X> = H w_R . t_X. Twice, for roundoff.
        new = jnp.where(r == n_passes - 1, sign * t, t - theta * w)
        new = jnp.where(r == 0, start, new)
        for _ in range(2):
            new = normalised(new)
            overlaps = _inner_products(_curved(situation, new), kept.t)  # [k 2k]
            new = new - _combined(overlaps.T, kept.w)
        # The one product.
        curved = _curved(situation, normalised(new))
        product = jax.vmap(lambda c: _through_parameters(situation, response, c))(curved)
        return kept.joined(_unit(Directions(normalised(new), product), curved))

    nothing = jnp.zeros((3 * k, *start.shape[1:]), start.dtype)
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
    coordinates = coordinates[:, ::-1]
    return Ritz(values[::-1], _times(frame, coordinates), coordinates, frame)


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


def _best_and_before(ritz: Ritz, gram: Float[Array, "d d"], k: int) -> Float[Array, "d two_k"]:
    """Coefficients of the k best vectors, and of what X was before, orthogonal to them."""
    best = ritz.coordinates[:, :k]
    before = _times(ritz.frame.T, gram[:, :k])  # coordinates of X
    orthonormal, _ = jnp.linalg.qr(jnp.concatenate([best, before], axis=1))
    return jnp.concatenate([ritz.coefficients[:, :k], _times(ritz.frame, orthonormal[:, k:])], 1)


def _through_parameters(
    situation: Situation, response: PyTree, cotangent: Float[Array, "n *o"]
) -> Float[Array, "n *o"]:
    """J E J^T c."""
    gradient = situation.pull(cotangent)
    return situation.push(jax.tree.map(jnp.multiply, response, gradient))


def _unit(directions: Directions, curved: Changes) -> Directions:
    """The directions scaled to ||z|| = 1."""
    squares = _sums(curved * directions.t)  # ||z||^2, none below 0
    scale = _by_example(_inverse(jnp.sqrt(jnp.clip(squares, 0.0))), curved.ndim)
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
