"""Jacobians formed piece by piece while they are contracted, so that no more than a piece of one exists at a time.

A piece is all parameters for some output directions where the kernel pairs equal directions (trace, diagonal), and some
columns of the weight for all directions where it does not (full): either way the kernel is a sum over pieces.
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
    """How the cotangents of a part are cut into pieces.

    Attributes:
        directions: Output directions, and how many of them a piece has.
        columns: Columns d of the weight, and how many of them a piece has.
    """

    directions: tuple[int, int]
    columns: tuple[int, int]

    @property
    def n_pieces(self) -> int:
        """Number of pieces."""
        return _pieces(self.directions) * _pieces(self.columns)

    def start(self, index: Any) -> tuple[Any, Any]:
        """First direction and first column of piece number `index`."""
        across = _pieces(self.columns)
        return index // across * self.directions[1], index % across * self.columns[1]

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
        k, d = array.shape[first.outputs_axis], array.shape[-1]
        size = sum(n for _, n in sides) * array.dtype.itemsize * math.prod(first.jacobian_shape)
        share = largest / max(1, size)
        directions = k if contraction == "full" else _divisor(k, k * share)
        columns = d if directions > 1 and contraction != "full" else _divisor(d, d * share * k / max(1, directions))
        return Cut((k, directions), (d, columns))


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
        direction, column = self.cut.start(index)

        def of_block(x):
            x = lax.dynamic_slice_in_dim(x, direction, self.cut.directions[1], x.ndim + self.head.outputs_axis)
            return lax.dynamic_slice_in_dim(x, column, self.cut.columns[1], x.ndim - 1)

        pieces = [of_block(array) for array in self.arrays]
        joined = len(pieces) > 1 and pieces[0].ndim == self.head.ndims[self.head.cut]
        piece = jnp.concatenate(pieces)[: self.n] if joined else pieces[0]
        return dataclasses.replace(self.head, **{self.head.cut: piece}).dense()


def _pieces(cut: tuple[int, int]) -> int:
    """How many pieces of a width a length has; nothing at all is one piece of nothing."""
    length, width = cut
    return length // width if length else 1


def _divisor(length: int, limit: float) -> int:
    """The largest divisor of a length that is at most `limit`, and at least 1 where the length is."""
    return next((width for width in range(min(length, int(limit)), 1, -1) if length % width == 0), min(length, 1))
