"""Jacobians formed piece by piece while they are contracted, so that no more than a piece of one exists at a time.

Where the kernel pairs equal output directions (trace, diagonal) a piece is some of them, or a single one of some blocks
or columns of the weight; where it does not (full), some blocks or columns for all directions. Either way the kernel is
a sum over pieces.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntkdiag.tangents.factors import Dense, Outer, Rows, join


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a part is cut into pieces: for each of three axes its length and that of a piece, which divides it.

    Attributes:
        directions: Output directions.
        blocks: Blocks b.
        columns: Columns d of the weight.
    """

    directions: tuple[int, int]
    blocks: tuple[int, int]
    columns: tuple[int, int]

    @property
    def n_pieces(self) -> int:
        """Number of pieces."""
        return _pieces(self.directions) * _pieces(self.blocks) * _pieces(self.columns)

    def start(self, index: Any) -> tuple[Any, Any, Any]:
        """First direction, block and column of piece number `index`."""
        across, blocks = _pieces(self.columns), _pieces(self.blocks)
        direction, block = index // (across * blocks), index // across % blocks
        return direction * self.directions[1], block * self.blocks[1], index % across * self.columns[1]

    @staticmethod
    def of(sides: list[tuple[list[Dense | Outer | Rows], int]], contraction: str, largest: int) -> "Cut":
        """Pieces of at most `largest` bytes, all sides together, if that can be had.

        Args:
            sides: For rows (and columns): blocks of factors of one part, and the number of examples.
            contraction: "full", "trace" or "diagonal".
            largest: Bytes.
        """
        first = sides[0][0][0]
        array = getattr(first, first.cut)
        size = sum(n for _, n in sides) * array.dtype.itemsize * math.prod(first.jacobian_shape)
        n_blocks = array.shape[first.blocks[first.cut]] if first.blocks else 1
        needed, cuts = size / largest, []
        for length in (array.shape[first.outputs_axis], n_blocks, array.shape[-1]):
            whole = contraction == "full" and not cuts
            width = length if whole else _divisor(length, length / needed if needed > 1 else length)
            needed /= max(1, length) / max(1, width)
            cuts.append((length, width))
        return Cut(*cuts)


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One part of the Jacobian of n examples, unformed.

    Attributes:
        head: The part with what is not cut, of all examples, and nothing of what is.
        arrays: What is cut (cotangents, or the Jacobian itself) of consecutive blocks of examples.
        n: Number of examples.
        cut: How it is cut into pieces.
    """

    head: Dense | Outer | Rows
    arrays: tuple[jax.Array, ...]
    n: int
    cut: Cut

    @staticmethod
    def of(blocks: list[Dense | Outer | Rows], n: int, cut: Cut) -> "Stream":
        """The first n examples of consecutive blocks."""
        arrays = tuple(getattr(block, block.cut) for block in blocks)
        rest = [dataclasses.replace(b, **{b.cut: array[..., :0]}) for b, array in zip(blocks, arrays, strict=True)]
        return Stream(join(rest, n), arrays, n, cut)

    def piece(self, index: Any) -> Dense:
        """The Jacobian of piece number `index`: [n o' P']."""
        direction, block, column = self.cut.start(index)
        head, axes = self.head, self.head.blocks
        rest = {name: axis for name, axis in axes.items() if name != head.cut}
        head = dataclasses.replace(head, **{k: self._blocks(getattr(head, k), block, v) for k, v in rest.items()})

        def of_block(x):
            if _pieces(self.cut.directions) > 1:
                x = lax.dynamic_slice_in_dim(x, direction, self.cut.directions[1], x.ndim + head.outputs_axis)
            x = self._blocks(x, block, axes[head.cut]) if axes else x
            return lax.dynamic_slice_in_dim(x, column, self.cut.columns[1], x.ndim - 1)

        pieces = [of_block(array) for array in self.arrays]
        joined = len(pieces) > 1 and pieces[0].ndim == head.ndims[head.cut]
        piece = jnp.concatenate(pieces)[: self.n] if joined else pieces[0]
        return dataclasses.replace(head, **{head.cut: piece}).dense()

    def _blocks(self, x: jax.Array, start: Any, axis: int) -> jax.Array:
        """The blocks of a piece."""
        return lax.dynamic_slice_in_dim(x, start, self.cut.blocks[1], x.ndim + axis)


def _pieces(cut: tuple[int, int]) -> int:
    """How many pieces of a width a length has; nothing at all is one piece of nothing."""
    length, width = cut
    return length // width if length else 1


def _divisor(length: int, limit: float) -> int:
    """The largest divisor of a length that is at most `limit`, and at least 1 where the length is."""
    return next((width for width in range(min(length, int(limit)), 1, -1) if length % width == 0), min(length, 1))
