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
        return math.prod(length // width for length, width in (self.directions, self.columns))

    def start(self, index: Any) -> tuple[Any, Any]:
        """First direction and first column of piece number `index`."""
        across = self.columns[0] // self.columns[1]
        return index // across * self.directions[1], index % across * self.columns[1]

    @staticmethod
    def of(sides: list[tuple[list[Outer | Rows], int]], contraction: str, largest: int) -> "Cut":
        """Pieces of at most `largest` bytes, all sides together, if that can be had.

        Args:
            sides: For rows (and columns): blocks of factors of one part, and the number of examples.
            contraction: "full", "trace" or "diagonal".
            largest: Bytes.
        """
        first = sides[0][0][0]
        k, d = first.c.shape[first.outputs_axis], first.c.shape[-1]
        size = sum(n for _, n in sides) * first.c.dtype.itemsize * math.prod(first.jacobian_shape)
        share = largest / max(1, size)
        directions = k if contraction == "full" else _divisor(k, k * share)
        columns = d if directions > 1 and contraction != "full" else _divisor(d, d * share * k / directions)
        return Cut((k, directions), (d, columns))


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One part of the Jacobian of n examples, unformed.

    Attributes:
        head: The part with the operands of all examples joined and no cotangents.
        cotangents: Those of consecutive blocks of examples.
        n: Number of examples.
        cut: How it is cut into pieces.
    """

    head: Outer | Rows
    cotangents: tuple[jax.Array, ...]
    n: int
    cut: Cut

    @staticmethod
    def of(blocks: list[Outer | Rows], n: int, cut: Cut) -> "Stream":
        """The first n examples of consecutive blocks."""
        head = join([dataclasses.replace(block, c=block.c[..., :0]) for block in blocks], n)
        return Stream(head, tuple(block.c for block in blocks), n, cut)

    def piece(self, index: Any) -> Dense:
        """The Jacobian of piece number `index`: [n o' P']."""
        direction, column = self.cut.start(index)

        def of_block(c):
            c = lax.dynamic_slice_in_dim(c, direction, self.cut.directions[1], c.ndim + self.head.outputs_axis)
            return lax.dynamic_slice_in_dim(c, column, self.cut.columns[1], c.ndim - 1)

        arrays = [of_block(c) for c in self.cotangents]
        joined = len(arrays) > 1 and arrays[0].ndim == self.head.ndims["c"]
        c = jnp.concatenate(arrays)[: self.n] if joined else arrays[0]
        return dataclasses.replace(self.head, c=c).dense()


def _divisor(length: int, limit: float) -> int:
    """The largest divisor of a length that is at most `limit`, and at least 1."""
    return next((width for width in range(min(length, int(limit)), 1, -1) if length % width == 0), 1)
