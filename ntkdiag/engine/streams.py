"""Jacobians formed chunk by chunk while they are contracted.

A Jacobian of a few examples is larger than any cache, its two factors often are not. So the factors
are kept, and of the Jacobian there is never more than a chunk: it is formed, multiplied while it is
still in the cache, and forgotten. The kernel is the sum over chunks.

Where equal output directions are paired (trace, diagonal) a chunk is some of the directions, or a
single one of some blocks or columns of the weight. Where all are paired (full) it is some blocks or
columns for all directions.

The chunks of a part may be shared out: share s of S adds up the chunks s, s + S, s + 2 S, ...

1. `ChunkCut.of` chooses how the array is cut, and `Stream.of` joins the blocks of examples;
2. `zeros` are what is added to: the tile of the kernel, or the strips of its triangle;
3. `with_share` forms the chunks of one share and adds up their products;
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

from ntkdiag.engine.contraction import Tile, assembled, edges_of_chunks
from ntkdiag.engine.jacobian.factors import Dense, Outer, Rows, concatenate_examples, take_examples
from ntkdiag.kernel.reduction import Contraction

# What can be formed late; `factor.streamed_array` names the array of it that is cut into chunks.
Unformed = Dense | Outer | Rows
Index = int | Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class AxisCut:
    """An axis cut into chunks of equal width."""

    length: int
    width: int

    @property
    def n_chunks(self) -> int:
        """How many chunks there are; an axis of length zero is one chunk of nothing."""
        return self.length // self.width if self.length else 1


@dataclasses.dataclass(frozen=True)
class ChunkCut:
    """How a part is cut into chunks, along three axes."""

    directions: AxisCut  # output directions
    blocks: AxisCut  # blocks b
    columns: AxisCut  # columns d of the weight

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return self.directions.n_chunks * self.blocks.n_chunks * self.columns.n_chunks

    def start(self, index: Index) -> tuple[Index, Index, Index]:
        """First direction, block and column of chunk number `index`: columns go round fastest."""
        column = index % self.columns.n_chunks
        block = index // self.columns.n_chunks % self.blocks.n_chunks
        direction = index // (self.columns.n_chunks * self.blocks.n_chunks)
        return (
            direction * self.directions.width,
            block * self.blocks.width,
            column * self.columns.width,
        )

    @staticmethod
    def of(factor: Unformed, n_examples: int, contraction: Contraction, largest: int) -> "ChunkCut":
        """Chunks of at most `largest` bytes for so many examples, if that can be had."""
        array = getattr(factor, factor.streamed_array)
        n_blocks = 1
        if factor.block_axes:
            n_blocks = array.shape[factor.block_axes[factor.streamed_array]]
        n_directions = array.shape[factor.output_axis]
        lengths = {"directions": n_directions, "blocks": n_blocks, "columns": array.shape[-1]}
        size = n_examples * array.dtype.itemsize * math.prod(factor.jacobian_shape)
        chunks_needed = size / largest
        # Cut along directions first, then blocks, then columns, until chunks are small enough.
        cuts = {}
        for axis, length in lengths.items():
            width = length
            # Where all directions are paired, a chunk needs all of them.
            can_be_cut = axis != "directions" or contraction != "full"
            if can_be_cut and chunks_needed > 1:
                width = _divisor(length, length / chunks_needed)
            chunks_needed /= max(1, length) / max(1, width)
            cuts[axis] = AxisCut(length, width)
        return ChunkCut(**cuts)


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One part of the Jacobian of n examples, unformed."""

    head: Unformed  # the part with what is not cut, of all examples, and nothing of what is
    # What is cut (cotangents, or the Jacobian itself) of consecutive blocks of examples.
    arrays: tuple[Array, ...]
    n: int  # number of examples
    cut: ChunkCut  # how it is cut into chunks

    @staticmethod
    def of(blocks: Sequence[Unformed], n: int, cut: ChunkCut) -> "Stream":
        """The first n examples of consecutive blocks."""
        arrays = tuple(getattr(block, block.streamed_array) for block in blocks)
        # What is not cut is small: it is joined at once; what is cut is joined chunk by chunk.
        heads = []
        for block, array in zip(blocks, arrays, strict=True):
            nothing_of_it = {block.streamed_array: array[..., :0]}
            heads.append(dataclasses.replace(block, **nothing_of_it))
        return Stream(concatenate_examples(heads, n), arrays, n, cut)

    def chunk(self, index: Index) -> Dense:
        """The Jacobian of chunk number `index`: [n o' P']."""
        direction, block, column = self.cut.start(index)
        head = self.head
        # 1. Of what is not cut (the inputs a), the blocks of this chunk.
        block_axes = dict(head.block_axes)
        cut_block_axis = block_axes.pop(head.streamed_array, None)
        blocks_of_head = {}
        for name, axis in block_axes.items():
            blocks_of_head[name] = self._blocks(getattr(head, name), block, axis)

        # 2. Of what is cut, the directions, blocks and columns of this chunk, for all examples.
        chunks = []
        for array in self.arrays:
            if self.cut.directions.n_chunks > 1:
                axis = array.ndim + head.output_axis
                width = self.cut.directions.width
                array = lax.dynamic_slice_in_dim(array, direction, width, axis)
            if cut_block_axis is not None:
                array = self._blocks(array, block, cut_block_axis)
            width = self.cut.columns.width
            chunks.append(lax.dynamic_slice_in_dim(array, column, width, array.ndim - 1))

        # 3. All examples together, and the Jacobian of them formed.
        joined = chunks[0]
        has_examples = joined.ndim == head.batched_ndims[head.streamed_array]
        if len(chunks) > 1 and has_examples:  # the last block may repeat its last example
            joined = jnp.concatenate(chunks)[: self.n]
        chunk = dataclasses.replace(head, **blocks_of_head, **{head.streamed_array: joined})
        return chunk.dense()

    def _blocks(self, array: Array, start: Index, axis: int) -> Array:
        """The blocks of a chunk, from `start` on; `axis` is counted from the end of the array."""
        return lax.dynamic_slice_in_dim(array, start, self.cut.blocks.width, array.ndim + axis)


def zeros(
    tile: Tile, dtype: jax.typing.DTypeLike, symmetric: bool, n_sums: int
) -> list[list[Float[Array, "..."]]]:
    """What chunks are added to at first: so many kernels, or strips of the triangle, of zeros."""
    shapes = []
    for first, last in itertools.pairwise(edges_of_chunks(tile, symmetric)):
        # Rows first to last, by the columns from `first` on.
        shape = list(tile.shape)
        shape[0] = last - first
        shape[tile.column_axis] -= first
        shapes.append(shape)
    return [[jnp.zeros(shape, dtype) for shape in shapes] for _ in range(n_sums)]


def with_share(
    precision: str,
    tile: Tile,
    cut: ChunkCut,
    n_shares: int,
    totals: Sequence[Float[Array, "..."]],
    blocks: Sequence[Sequence[Unformed]],
    share: Index,
) -> list[Float[Array, "..."]]:
    """The totals with one share of the chunks of a part added; of one side they are strips."""
    symmetric = len(blocks) == 1
    row = Stream.of(blocks[0], tile.n, cut)
    column = row if symmetric else Stream.of(blocks[1], tile.m, cut)
    pairs = list(itertools.pairwise(edges_of_chunks(tile, symmetric)))

    def add_chunk(step: Index, totals: list[Array]) -> list[Array]:
        """The totals with the product of one chunk added."""
        index = share + step * n_shares
        rows = row.chunk(index)
        columns = rows if symmetric else column.chunk(index)
        added = []
        for total, (first, last) in zip(totals, pairs, strict=True):
            # Of a triangle, a strip needs the columns from its first row on.
            rows_of_strip = take_examples(rows, slice(first, last))
            columns_of_strip = columns
            if symmetric:
                columns_of_strip = take_examples(columns, slice(first, tile.n))
            with jax.default_matmul_precision(precision):
                product = rows_of_strip.gram(columns_of_strip, tile.contraction)
            added.append(_with_product(total, product, cut, index, tile.contraction))
        return added

    # How many of share, share + n_shares, ... are below the number of chunks.
    n_steps = (cut.n_chunks - share + n_shares - 1) // n_shares
    return lax.fori_loop(0, n_steps, add_chunk, list(totals))


def sum_of_shares(
    shares: Sequence[Sequence[Float[Array, "..."]]], tile: Tile, symmetric: bool
) -> Float[Array, "..."]:
    """The kernel from the totals of all shares."""
    by_strip = zip(*shares, strict=True)
    totals = [functools.reduce(jnp.add, of_strip) for of_strip in by_strip]
    if not symmetric:
        return totals[0]
    return assembled(totals, edges_of_chunks(tile, symmetric), tile)


def _with_product(
    total: Array, product: Array, cut: ChunkCut, index: Index, contraction: Contraction
) -> Array:
    """A total with the product of one chunk added; of a diagonal kernel only its directions."""
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
