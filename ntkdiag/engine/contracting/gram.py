"""The products of factors, added up: the kernel of a block of rows and a block of columns.

K = sum over parts l of J_l J_l^T. Every product is added to one total, or, where kernels of single
leaves are asked for, to the total of its group; a factor of scan-stacked layers is split by layer.
With a preconditioner P each product is weighted by 1/P.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.engine.contracting import triangular_blocks
from ntkdiag.engine.contracting.tile import Tile
from ntkdiag.engine.jacobian.factors import Dense, Factor, Outer
from ntkdiag.engine.precision import Precision
from ntkdiag.kernel.tied_outputs import Contraction

# Axes of a kernel, as `Tile` lays it out.
_N_AXES = {"full": 4, "diagonal": 3, "trace": 2}
# 1/P of the parameters of one factor: a number, or one for every parameter.
Weight = Float[Array, "..."]


@dataclasses.dataclass(frozen=True)
class Gram:
    """Which products are taken, and which kernel each of them is added to.

    Attributes:
        contraction: Which output directions are paired.
        precision: Rounding of the products.
        groups: For every factor, the group its product is added to; several where the factor is
            split by layer.
        n_groups: Number of groups; there is one kernel for each.
    """

    contraction: Contraction
    precision: Precision
    groups: tuple[tuple[int, ...], ...]
    n_groups: int

    def __call__(
        self,
        rows: Sequence[Factor],
        columns: Sequence[Factor],
        weights: Sequence[Weight] | None = None,
    ) -> list[Float[Array | np.ndarray, "..."]]:
        """Kernels of rows by columns, one per group; axes of length 1 where no example matters."""
        totals: list[Array | None] = [None] * self.n_groups
        groups_of_factors = self.groups
        if self.n_groups == 1:  # dense factors may have been joined into one
            groups_of_factors = ((0,),) * len(rows)
        for number, groups in enumerate(groups_of_factors):
            row = rows[number]
            column = columns[number]
            weight = None if weights is None else weights[number]
            if weight is not None and jnp.ndim(weight) == 1:
                # One number for every parameter: its columns of J, on one side of the product.
                row = _weighted(row, weight)
                weight = None
            # One product per layer where layers belong to different groups, else one for all.
            rows_by_layer = _layers(row, len(groups))
            columns_by_layer = _layers(column, len(groups))
            for layer, group in enumerate(groups):
                product = rows_by_layer[layer].gram(
                    columns_by_layer[layer], self.contraction, self.precision
                )
                if weight is not None:
                    product = product * weight
                total = totals[group]
                totals[group] = product if total is None else total + product
        # A group without a factor has a kernel of zeros, of a shape that broadcasts.
        zero = np.zeros([1] * _N_AXES[self.contraction], np.float32)
        return [zero if total is None else total for total in totals]

    def symmetric(
        self, factors: Sequence[Factor], tile: Tile, weights: Sequence[Weight] | None = None
    ) -> list[Float[Array, "..."]]:
        """Kernels of a block with itself: strips of the upper triangle, mirrored."""
        # A strip: its own rows on the left, all examples from its first row on on the right.
        edges = triangular_blocks.edges_at_once(tile)
        by_strip = []
        for first, last in triangular_blocks.pairs_of(edges):
            rows = [factor.take(slice(first, last)) for factor in factors]
            columns = [factor.take(slice(first, tile.n)) for factor in factors]
            by_strip.append(self(rows, columns, weights))
        by_group = zip(*by_strip, strict=True)
        return [triangular_blocks.assembled(of_group, edges, tile) for of_group in by_group]

    def rectangular(
        self,
        rows: Sequence[Factor],
        columns: Sequence[Factor],
        tile: Tile,
        weights: Sequence[Weight] | None = None,
    ) -> list[Float[Array, "..."]]:
        """Kernels of rows by columns, in their full shape."""
        return [jnp.broadcast_to(kernel, tile.shape) for kernel in self(rows, columns, weights)]


def _weighted(factor: Factor, weight: Weight) -> Dense:
    """J[n o P] with its columns multiplied by 1/P."""
    assert isinstance(factor, Dense)
    leading_axes = range(factor.j.ndim - 1)
    return Dense(factor.j * jnp.expand_dims(weight, leading_axes))  # [P] -> [1 1 P]


def _layers(factor: Factor, n: int) -> list[Factor]:
    """A factor of a scan-stacked leaf by layer: layers are the outermost part of b, and of P."""
    if n == 1:
        return [factor]
    if isinstance(factor, Outer):
        inputs = jnp.split(factor.a, n, axis=-3)
        cotangents = jnp.split(factor.c, n, axis=-3)
        return [Outer(a, c, factor.has_bias) for a, c in zip(inputs, cotangents, strict=True)]
    assert isinstance(factor, Dense)
    return [Dense(j) for j in jnp.split(factor.j, n, axis=-1)]
