"""How much of an update a prediction explains, with three numbers for each array of parameters.

    update = s_m D_m + s_g D_g + s_t D_t + misfit

What momentum, gradient and parameters are predicted to add may come with another factor than 1,
the same for all elements of an array: clipping and trust ratios make such factors. The deviations
s - 1 are found by least squares, the smallest ones where directions cannot be told apart. A few
elements would be fitted by anything: an array of so few takes the factors of all arrays together,
or one factor of its own, of all that it is made of or of what the gradient adds.

All inner products of an array come from one contraction: programs stay small.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ntkdiag.optimizer.linearized_update import Leaves

_FEW_ELEMENTS = 3  # as many as factors
# What one factor may belong to, of momentum, gradient and parameters: trust ratios of the update,
# of what goes into momentum with and without weight decay.
_COMMON = ((1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.0, 1.0, 0.0))
# Updates are small, and squares of small numbers vanish in float32: a power of two before them.
_UNIT = 2.0**30


@dataclasses.dataclass(frozen=True)
class Explained:
    """A fit of an update."""

    scales: dict[str, Float[Array, "3"]]  # path -> s_m, s_g, s_t
    residual: Float[Array, ""]  # the misfit over all arrays, relative to the update
    # How far what momentum adds is from acting elementwise, relative to it.
    mixing: Float[Array, ""]
    has_update: Bool[Array, ""]  # whether the update is not zero
    is_proportional: Bool[Array, ""]  # whether momentum or gradient add anything
    along_gradient: dict[str, Bool[Array, ""]]  # path -> whether the gradient adds anything


def explain(made: Leaves, directions: list[Leaves], mixed: Leaves) -> Explained:
    """Fit an update by directions, array by array."""
    paths = list(made)
    dtype = jnp.promote_types(jnp.result_type(*made.values()), jnp.float32)
    rows = {}
    grams = []
    for path in paths:
        momentum, gradient, params = [direction[path].astype(dtype) for direction in directions]
        update = made[path].astype(dtype)
        deviation = update - momentum - gradient - params
        unmixed = mixed[path].astype(dtype) - momentum
        stacked = jnp.stack([momentum, gradient, params, deviation, update, unmixed]) * _UNIT
        # [row *shape], [row *shape] -> [row row]
        axes = tuple(range(1, stacked.ndim))
        gram = jnp.tensordot(stacked, stacked, (axes, axes), precision=jax.lax.Precision.HIGHEST)
        rows[path] = stacked
        grams.append(gram)
    gram = jnp.stack(grams)  # [leaf row row]
    squares = jnp.diagonal(gram, axis1=1, axis2=2)  # [leaf row]
    of_directions = gram[:, :3, :3]
    products = gram[:, :3, 3]
    own = least_squares(of_directions, products)
    pooled = least_squares(of_directions.sum(0), products.sum(0))

    has_many = any(made[path].size > _FEW_ELEMENTS for path in paths)
    scales = {}
    misfit = jnp.zeros((), dtype)
    for place, path in enumerate(paths):
        factors = own[place]
        if made[path].size <= _FEW_ELEMENTS:
            factors = pooled
            candidates = _COMMON if has_many else ()
            for shared_by in candidates:
                shared = jnp.array(shared_by, dtype)
                common = _common_factor(of_directions[place], products[place], shared)
                leaves_less = _misfit(rows[path], common) < _misfit(rows[path], factors)
                factors = jnp.where(leaves_less, common, factors)
        misfit += _misfit(rows[path], factors)
        scales[path] = 1.0 + factors
    of_momentum, of_gradient, _, _, of_update, of_unmixed = squares.sum(0)
    return Explained(
        scales=scales,
        residual=jnp.sqrt(misfit / of_update),
        mixing=jnp.sqrt(of_unmixed / jnp.where(of_momentum == 0.0, 1.0, of_momentum)),
        has_update=of_update != 0.0,
        is_proportional=(of_momentum != 0.0) | (of_gradient != 0.0),
        along_gradient={path: squares[place, 1] != 0.0 for place, path in enumerate(paths)},
    )


def _misfit(rows: Float[Array, "6 *shape"], factors: Float[Array, "3"]) -> Float[Array, ""]:
    """The square of what a fit leaves of one array."""
    momentum, gradient, params, deviation, *_ = rows
    fitted = factors[0] * momentum + factors[1] * gradient + factors[2] * params
    return jnp.sum((deviation - fitted) ** 2)


def least_squares(
    gram: Float[Array, "*leaves k k"], products: Float[Array, "*leaves k"]
) -> Float[Array, "*leaves k"]:
    """The smallest solution, in units in which all directions have one length."""
    squares = jnp.diagonal(gram, axis1=-2, axis2=-1)
    lengths = jnp.sqrt(jnp.where(squares > 0.0, squares, 1.0))
    correlations = gram / (lengths[..., :, None] * lengths[..., None, :])
    eigenvalues, vectors = jnp.linalg.eigh(correlations)
    cutoff = jnp.finfo(gram.dtype).eps ** 0.75
    inverse = jnp.where(eigenvalues > cutoff, 1.0 / eigenvalues, 0.0)
    along = jnp.sum(vectors * (products / lengths)[..., :, None], axis=-2)
    return jnp.sum(vectors * (inverse * along)[..., None, :], axis=-1) / lengths


def _common_factor(
    gram: Float[Array, "3 3"], products: Float[Array, "3"], shared: Float[Array, "3"]
) -> Float[Array, "3"]:
    """A deviation that is the same for some directions, and 0 for all others."""
    square = jnp.sum(shared[:, None] * gram * shared[None, :])
    factor = jnp.where(square > 0.0, jnp.sum(shared * products) / square, 0.0)
    return factor * shared
