"""How much of an update a prediction explains, with three numbers for each array of parameters.

    update = s_m D_m + s_g D_g + s_t D_t + misfit

What momentum, gradient and parameters are predicted to add may come with another factor than 1,
the same for all elements of an array: clipping and trust ratios make such factors. The deviations
s - 1 are found by least squares, the smallest ones where directions cannot be told apart. A few
elements would be fitted by anything: an array of so few takes the factors of all arrays together,
or one factor of its own, of all that it is made of or of what the gradient adds.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.monitor.optimizer.quiet_point import Leaves

_FEW_ELEMENTS = 3  # as many as factors
# What one factor may belong to, of momentum, gradient and parameters: trust ratios of the update,
# of what goes into momentum with and without weight decay.
_COMMON = ((1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.0, 1.0, 0.0))


def explain(made: Leaves, directions: list[Leaves]) -> tuple[dict[str, Array], Float[Array, ""]]:
    """Fit an update by directions, array by array.

    Args:
        made: The update by path.
        directions: D_m, D_g, D_t by the same paths.

    Returns:
        Path -> factors s, one for each direction; and the misfit over all arrays, relative to the
        update.
    """
    paths = list(made)
    dtype = jnp.promote_types(jnp.result_type(*made.values()), jnp.float32)
    # Squares of small numbers would vanish: everything is measured by its largest element.
    unit = _largest(made, dtype)
    units = [_largest(direction, dtype) for direction in directions]
    columns = {}
    deviations = {}
    for path in paths:
        columns[path] = [
            direction[path].astype(dtype) / size
            for direction, size in zip(directions, units, strict=True)
        ]
        predicted = sum(direction[path].astype(dtype) for direction in directions)
        deviations[path] = (made[path].astype(dtype) - predicted) / unit

    # Inner products: [leaf direction direction] and [leaf direction].
    grams = jnp.stack([_gram(columns[path]) for path in paths])
    products = jnp.stack([_products(columns[path], deviations[path]) for path in paths])
    own = _least_squares(grams, products)
    pooled = _least_squares(grams.sum(0), products.sum(0))

    has_many = any(made[path].size > _FEW_ELEMENTS for path in paths)
    scales = {}
    misfit = jnp.zeros((), dtype)
    total = jnp.zeros((), dtype)
    for place, path in enumerate(paths):
        factors = own[place]
        if made[path].size <= _FEW_ELEMENTS:
            factors = pooled
            if has_many:
                for shared_by in _COMMON:
                    shared = jnp.array(shared_by) * jnp.stack(units) / unit
                    common = _common_factor(grams[place], products[place], shared)
                    leaves_less = _misfit(deviations[path], columns[path], common) < _misfit(
                        deviations[path], columns[path], factors
                    )
                    factors = jnp.where(leaves_less, common, factors)
        misfit += _misfit(deviations[path], columns[path], factors)
        total += jnp.sum((made[path].astype(dtype) / unit) ** 2)
        scales[path] = 1.0 + factors * unit / jnp.stack(units)
    return scales, jnp.sqrt(misfit / total)


def _largest(leaves: Leaves, dtype: jnp.dtype) -> Float[Array, ""]:
    """The largest element; 1 where all are zero."""
    sizes = [jnp.max(jnp.abs(leaf), initial=0.0).astype(dtype) for leaf in leaves.values()]
    largest = jnp.max(jnp.stack(sizes))
    return jnp.where(largest == 0.0, 1.0, largest)


def _gram(columns: list[Array]) -> Float[Array, "k k"]:
    """Inner products of directions; sums of products, as dots may be rounded on accelerators."""
    rows = []
    for column in columns:
        rows.append(_products(columns, column))
    return jnp.stack(rows)


def _products(columns: list[Array], vector: Array) -> Float[Array, " k"]:
    """Inner products of directions with a vector."""
    return jnp.stack([jnp.sum(column * vector) for column in columns])


def _misfit(
    deviation: Array, columns: list[Array], factors: Float[Array, " k"]
) -> Float[Array, ""]:
    """The square of what a fit leaves of one array."""
    for factor, column in zip(factors, columns, strict=True):
        deviation = deviation - factor * column
    return jnp.sum(deviation**2)


def _least_squares(
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
    gram: Float[Array, "k k"], products: Float[Array, " k"], shared: Float[Array, " k"]
) -> Float[Array, " k"]:
    """Deviations that are the same for some directions, whose units are given; 0 for all others."""
    square = jnp.sum(shared[:, None] * gram * shared[None, :])
    factor = jnp.where(square > 0.0, jnp.sum(shared * products) / square, 0.0)
    return factor * shared
