"""The products of factors, added up: the kernel of a block of rows and a block of columns.

K = sum over parts l of J_l J_l^T. Every product is added to one total, or, where kernels of single
leaves are asked for, to the total of its group; a factor of scan-stacked layers is split by layer.
With a preconditioner P each product is weighted by 1/P.

Where the axes of a kernel, or of a tile of one, are knows `Tile` alone:

    full       [n k m l]   every direction of a row with every direction of a column
    trace      [n m]       equal directions, added up
    diagonal   [n m k]     equal directions, side by side

Of a symmetric kernel K = J J^T only one triangle is computed. It is cut into strips of rows, each
multiplied by the examples from its first one on:

    +---+---+---+
    | 0 | 0 | 0 |      strip 0: rows of block 0 by all columns
    |---+---+---|      strip 1: rows of block 1 by columns of blocks 1, 2
    |   | 1 | 1 |      strip 2: rows of block 2 by columns of block 2
    |---+---+---|
    |   |   | 2 |      below the diagonal: mirror images
    +---+---+---+

The result is symmetric to the bit. More strips save more products, but each copies its factors.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.engine.jacobian.factors import Dense, Factor, Outer
from ntkdiag.kernel.reduction import MIRROR, Contraction, Reduction


@dataclasses.dataclass(frozen=True)
class Tile:
    """The kernel of n row examples and m column examples."""

    contraction: Contraction  # which output directions are paired
    n: int  # row examples
    m: int  # column examples
    k: int  # directions of a row
    l: int  # noqa: E741

    @staticmethod
    def of(reduction: Reduction, n: int, m: int) -> "Tile":
        """The tile of n by m examples under a reduction, before it is finished."""
        return Tile(reduction.contraction, n, m, reduction.rows.n, reduction.columns.n)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        if self.contraction == "full":
            return self.n, self.k, self.m, self.l
        if self.contraction == "trace":
            return self.n, self.m
        return self.n, self.m, self.k

    @property
    def column_axis(self) -> int:
        """The axis of the column examples; that of the rows is the first."""
        return 2 if self.contraction == "full" else 1

    @property
    def product_rows(self) -> int:
        """Rows of the matrix product that gives the array."""
        return self.n * self.k if self.contraction == "full" else self.n

    def at(self, rows: slice, columns: slice) -> tuple[slice, ...]:
        """Where the entries of some rows and columns stand, as an index into the array."""
        if self.contraction == "full":
            return rows, slice(None), columns
        return rows, columns

    def mirrored(self, array: Float[Array | np.ndarray, "..."]) -> Float[Array | np.ndarray, "..."]:
        """An array of this layout with rows and columns exchanged."""
        return array.transpose(MIRROR[self.contraction])


# Rows of a matrix product from which on strips save time, and from which on more of them do.
_STRIPS = 128
_LARGE = 1024
# Rows of a strip of a product that is made chunk by chunk, at least, and how many strips there are
# at most: each copies from the chunk.
_ROWS_OF_CHUNKS = 80
_MOST_OF_CHUNKS = 6


def copies_at_once(tile: Tile) -> float:
    """How many copies of all factors a symmetric kernel that is contracted at once needs."""
    edges = edges_at_once(tile)
    n_strips = len(edges) - 1
    if n_strips == 1:
        return 0.0
    # The rows of all strips are one copy. The columns of the first strip are the factors as they
    # are, those of the last one its rows; all others have a copy of what is behind their first row.
    behind = [tile.n - first for first in edges[1 : n_strips - 1]]
    return 1.0 + sum(behind) / tile.n


def edges_at_once(tile: Tile) -> list[int]:
    """Where strips begin and end in a symmetric kernel that is contracted at once."""
    if tile.product_rows < _STRIPS:
        n_strips = 1
    elif tile.product_rows < _LARGE:
        n_strips = 2
    else:
        n_strips = 4
    return _edges(tile.n, n_strips)


def edges_of_chunks(tile: Tile, symmetric: bool) -> list[int]:
    """Where strips begin and end in a kernel that is contracted chunk by chunk."""
    if not symmetric:
        return [0, tile.n]
    return _edges(tile.n, min(_MOST_OF_CHUNKS, tile.product_rows // _ROWS_OF_CHUNKS))


def assembled(
    strips: Sequence[Float[Array | np.ndarray, "..."]], edges: list[int], tile: Tile
) -> Float[Array, "..."]:
    """The whole symmetric kernel from its strips, which may be broadcast along examples."""
    # 1. Cut every strip into the blocks of the columns it covers.
    axis = tile.column_axis
    blocks: dict[tuple[int, int], Array] = {}
    for r, strip in enumerate(strips):
        shape = list(tile.shape)
        shape[0] = edges[r + 1] - edges[r]
        shape[axis] = edges[-1] - edges[r]
        cuts = [edge - edges[r] for edge in edges[r + 1 : -1]]
        along_row = jnp.split(jnp.broadcast_to(strip, shape), cuts, axis=axis)
        for c, block in enumerate(along_row, start=r):
            blocks[r, c] = block
    # 2. On the diagonal products may differ from their mirror images by rounding.
    for r in range(len(strips)):
        blocks[r, r] = (blocks[r, r] + tile.mirrored(blocks[r, r])) / 2
    # 3. A row of the kernel: mirror images left of the diagonal, its strip from there on.
    rows = []
    for r in range(len(strips)):
        below = [tile.mirrored(blocks[c, r]) for c in range(r)]
        above = [blocks[r, c] for c in range(r, len(strips))]
        rows.append(jnp.concatenate([*below, *above], axis))
    return jnp.concatenate(rows, 0)


def _edges(n: int, n_strips: int) -> list[int]:
    """Edges of about as many strips as asked for, at least one example each."""
    n_strips = max(1, min(n, n_strips))
    return [n * k // n_strips for k in range(n_strips + 1)]


# Axes of a kernel, as `Tile` lays it out.
_N_AXES = {"full": 4, "diagonal": 3, "trace": 2}
# 1/P of the parameters of one factor: a number, or one for every parameter.
Weight = Float[Array, "..."]


@dataclasses.dataclass(frozen=True)
class Gram:
    """Which products are taken, and which kernel each of them is added to."""

    contraction: Contraction  # which output directions are paired
    precision: str  # rounding of the products, as `jax.default_matmul_precision` takes it
    # For every factor, the group its product is added to; several where the factor is split by
    # layer.
    groups: tuple[tuple[int, ...], ...]
    n_groups: int  # number of groups; there is one kernel for each

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
                assert isinstance(row, Dense)
                row = Dense(row.j * jnp.expand_dims(weight, range(row.j.ndim - 1)))  # -> [1 1 P]
                weight = None
            # One product per layer where layers belong to different groups, else one for all.
            rows_by_layer = _layers(row, len(groups))
            columns_by_layer = _layers(column, len(groups))
            for layer, group in enumerate(groups):
                with jax.default_matmul_precision(self.precision):
                    product = rows_by_layer[layer].gram(columns_by_layer[layer], self.contraction)
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
        edges = edges_at_once(tile)
        by_strip = []
        for first, last in itertools.pairwise(edges):
            rows = [factor.take(slice(first, last)) for factor in factors]
            columns = [factor.take(slice(first, tile.n)) for factor in factors]
            by_strip.append(self(rows, columns, weights))
        by_group = zip(*by_strip, strict=True)
        return [assembled(of_group, edges, tile) for of_group in by_group]

    def rectangular(
        self,
        rows: Sequence[Factor],
        columns: Sequence[Factor],
        tile: Tile,
        weights: Sequence[Weight] | None = None,
    ) -> list[Float[Array, "..."]]:
        """Kernels of rows by columns, in their full shape."""
        return [jnp.broadcast_to(kernel, tile.shape) for kernel in self(rows, columns, weights)]


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
