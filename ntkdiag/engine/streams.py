"""Jacobians formed piece by piece while they are contracted.

A Jacobian of a few examples is larger than any cache, its two factors often are not. So the factors
are kept, and of the Jacobian there is never more than a piece: it is formed, multiplied while it is
still in the cache, and forgotten. The kernel is the sum over pieces.

Where equal output directions are paired (trace, diagonal) a piece is some of the directions, or a
single one of some blocks or columns of the weight. Where all are paired (full) it is some blocks or
columns for all directions.

The pieces of a part may be shared out: share s of S adds up the pieces s, s + S, s + 2 S, ...

1. `PieceCut.of` chooses how the array is cut, and `Stream.of` joins the blocks of examples;
2. `nothing` makes zeros for the kernel: its tile, or the strips of its triangle;
3. `with_share` forms the pieces of one share and adds up their products;
4. `sum_of_shares` adds up the shares and puts the triangle together.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from ntkdiag.engine import gram
from ntkdiag.engine.gram import Tile
from ntkdiag.engine.jacobian.factors import Dense, Outer, Rows, concatenate_examples
from ntkdiag.kernel.reduction import Contraction

# What can be formed late; `factor.streamed_array` names the array of it that is cut into pieces.
Unformed = Dense | Outer | Rows
Index = int | Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class AxisCut:
    """An axis cut into pieces of equal width."""

    length: int
    width: int

    @property
    def n_pieces(self) -> int:
        """How many pieces there are; an axis of length zero is one piece of nothing."""
        return self.length // self.width if self.length else 1


@dataclasses.dataclass(frozen=True)
class PieceCut:
    """How a part is cut into pieces, along three axes."""

    directions: AxisCut  # output directions
    blocks: AxisCut  # blocks b
    columns: AxisCut  # columns d of the weight

    @property
    def n_pieces(self) -> int:
        """Number of pieces."""
        return self.directions.n_pieces * self.blocks.n_pieces * self.columns.n_pieces

    def start(self, index: Index) -> tuple[Index, Index, Index]:
        """First direction, block and column of piece number `index`: columns go round fastest."""
        column = index % self.columns.n_pieces
        block = index // self.columns.n_pieces % self.blocks.n_pieces
        direction = index // (self.columns.n_pieces * self.blocks.n_pieces)
        return (
            direction * self.directions.width,
            block * self.blocks.width,
            column * self.columns.width,
        )

    @staticmethod
    def of(factor: Unformed, n_examples: int, contraction: Contraction, largest: int) -> "PieceCut":
        """Pieces of at most `largest` bytes for so many examples, if that can be had."""
        array = getattr(factor, factor.streamed_array)
        n_blocks = 1
        if factor.block_axes:
            n_blocks = array.shape[factor.block_axes[factor.streamed_array]]
        n_directions = array.shape[factor.output_axis]
        lengths = {"directions": n_directions, "blocks": n_blocks, "columns": array.shape[-1]}
        size = n_examples * array.dtype.itemsize * math.prod(factor.jacobian_shape)
        pieces_needed = size / largest
        # Cut along directions first, then blocks, then columns, until pieces are small enough.
        cuts = {}
        for axis, length in lengths.items():
            width = length
            # Where all directions are paired, a piece needs all of them.
            can_be_cut = axis != "directions" or contraction != "full"
            if can_be_cut and pieces_needed > 1:
                width = _divisor(length, length / pieces_needed)
            pieces_needed /= max(1, length) / max(1, width)
            cuts[axis] = AxisCut(length, width)
        return PieceCut(**cuts)


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One part of the Jacobian of n examples, unformed."""

    head: Unformed  # the part with what is not cut, of all examples, and nothing of what is
    # What is cut (cotangents, or the Jacobian itself) of consecutive blocks of examples.
    arrays: tuple[Array, ...]
    n: int  # number of examples
    cut: PieceCut  # how it is cut into pieces

    @staticmethod
    def of(blocks: Sequence[Unformed], n: int, cut: PieceCut) -> "Stream":
        """The first n examples of consecutive blocks."""
        arrays = tuple(getattr(block, block.streamed_array) for block in blocks)
        # What is not cut is small: it is joined at once; what is cut is joined piece by piece.
        heads = []
        for block, array in zip(blocks, arrays, strict=True):
            nothing_of_it = {block.streamed_array: array[..., :0]}
            heads.append(dataclasses.replace(block, **nothing_of_it))
        return Stream(concatenate_examples(heads, n), arrays, n, cut)

    def piece(self, index: Index) -> Dense:
        """The Jacobian of piece number `index`: [n o' P']."""
        direction, block, column = self.cut.start(index)
        head = self.head
        # 1. Of what is not cut (the inputs a), the blocks of this piece.
        block_axes = dict(head.block_axes)
        cut_block_axis = block_axes.pop(head.streamed_array, None)
        blocks_of_head = {}
        for name, axis in block_axes.items():
            blocks_of_head[name] = self._blocks(getattr(head, name), block, axis)

        # 2. Of what is cut, the directions, blocks and columns of this piece, for all examples.
        pieces = []
        for array in self.arrays:
            if self.cut.directions.n_pieces > 1:
                axis = array.ndim + head.output_axis
                width = self.cut.directions.width
                array = lax.dynamic_slice_in_dim(array, direction, width, axis)
            if cut_block_axis is not None:
                array = self._blocks(array, block, cut_block_axis)
            width = self.cut.columns.width
            pieces.append(lax.dynamic_slice_in_dim(array, column, width, array.ndim - 1))

        # 3. All examples together, and the Jacobian of them formed.
        joined = pieces[0]
        has_examples = joined.ndim == head.batched_ndims[head.streamed_array]
        if len(pieces) > 1 and has_examples:  # the last block may repeat its last example
            joined = jnp.concatenate(pieces)[: self.n]
        piece = dataclasses.replace(head, **blocks_of_head, **{head.streamed_array: joined})
        return piece.dense()

    def _blocks(self, array: Array, start: Index, axis: int) -> Array:
        """The blocks of a piece, from `start` on; `axis` is counted from the end of the array."""
        return lax.dynamic_slice_in_dim(array, start, self.cut.blocks.width, array.ndim + axis)


def nothing(tile: Tile, dtype: jax.typing.DTypeLike, symmetric: bool) -> list[Float[Array, "..."]]:
    """What pieces are added to at first: zeros for each strip of the triangle, or for the tile."""
    totals = []
    edges = gram.edges_of_pieces(tile, symmetric)
    for first, last in itertools.pairwise(edges):
        # Rows first to last, by the columns from `first` on.
        shape = list(tile.shape)
        shape[0] = last - first
        shape[tile.column_axis] -= first
        totals.append(jnp.zeros(shape, dtype))
    return totals


def with_share(
    totals: Sequence[Float[Array, "..."]],
    row: Stream,
    column: Stream | None,
    tile: Tile,
    precision: str,
    share: Index,
    n_shares: int,
) -> list[Float[Array, "..."]]:
    """The totals with one share of the pieces added; without `column` they are strips."""
    symmetric = column is None
    edges = gram.edges_of_pieces(tile, symmetric)
    pairs = list(itertools.pairwise(edges))

    def add_piece(step: Index, totals: list[Array]) -> list[Array]:
        """The totals with the product of one piece added."""
        index = share + step * n_shares
        rows = row.piece(index)
        columns = rows if column is None else column.piece(index)
        added = []
        for total, (first, last) in zip(totals, pairs, strict=True):
            # Of a triangle, a strip needs the columns from its first row on.
            rows_of_strip = rows.take(slice(first, last))
            columns_of_strip = columns
            if symmetric:
                columns_of_strip = columns.take(slice(first, tile.n))
            with jax.default_matmul_precision(precision):
                product = rows_of_strip.gram(columns_of_strip, tile.contraction)
            added.append(_with_product(total, product, row.cut, index, tile.contraction))
        return added

    # How many of share, share + n_shares, ... are below the number of pieces.
    n_steps = (row.cut.n_pieces - share + n_shares - 1) // n_shares
    return lax.fori_loop(0, n_steps, add_piece, list(totals))


def sum_of_shares(
    shares: Sequence[Sequence[Float[Array, "..."]]], tile: Tile, symmetric: bool
) -> Float[Array, "..."]:
    """The kernel from the totals of all shares."""
    by_strip = zip(*shares, strict=True)
    totals = [functools.reduce(jnp.add, of_strip) for of_strip in by_strip]
    if not symmetric:
        return totals[0]
    return gram.assembled(totals, gram.edges_of_pieces(tile, symmetric), tile)


def _with_product(
    total: Array, product: Array, cut: PieceCut, index: Index, contraction: Contraction
) -> Array:
    """A total with the product of one piece added; of a diagonal kernel only its directions."""
    product = product.astype(total.dtype)
    if contraction != "diagonal":
        return total + product
    first, _, _ = cut.start(index)
    width = cut.directions.width
    product = jnp.broadcast_to(product, (*total.shape[:2], width))  # [n m k'], k' of the k
    before = lax.dynamic_slice_in_dim(total, first, width, 2)
    return lax.dynamic_update_slice_in_dim(total, before + product, first, 2)


def _divisor(length: int, limit: float) -> int:
    """The largest divisor of a length that is at most `limit`; at least 1 where the length is."""
    for width in range(min(length, int(limit)), 1, -1):
        if length % width == 0:
            return width
    return min(length, 1)
