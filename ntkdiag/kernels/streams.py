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


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
    """One part of the Jacobian of n examples, unformed.

    Attributes:
        head: The part with the operands of all examples joined and no cotangents.
        cotangents: Those of consecutive blocks of examples.
        n: Number of examples.
        axis: Of the cotangents that is cut, counted from the end.
        width: Length of a piece along it.
        n_pieces: Number of pieces.
    """

    head: Outer | Rows
    cotangents: tuple[jax.Array, ...]
    n: int
    axis: int
    width: int
    n_pieces: int

    def piece(self, index: Any) -> Dense:
        """The Jacobian of piece number `index`: [n o' P']."""
        cut = lambda c: lax.dynamic_slice_in_dim(c, index * self.width, self.width, c.ndim + self.axis)
        c = _joined(tuple(map(cut, self.cotangents)), self.head.ndims["c"], self.n)
        return dataclasses.replace(self.head, c=c).dense()


def streams(sides: list[tuple[list[Outer | Rows], int]], contraction: str, largest: int) -> list[Stream]:
    """The same part of rows and columns, cut alike.

    Args:
        sides: For rows (and columns): blocks of factors, and the number of examples.
        contraction: "full", "trace" or "diagonal".
        largest: Bytes a piece of both sides should not exceed.
    """
    axis, length, width = _cut(sides, contraction, largest)
    return [
        Stream(_head(blocks, n), tuple(b.c for b in blocks), n, axis, width, length // width) for blocks, n in sides
    ]


def n_pieces(sides: list[tuple[list[Outer | Rows], int]], contraction: str, largest: int) -> int:
    """How many pieces `streams` would cut this part into."""
    _, length, width = _cut(sides, contraction, largest)
    return length // width


def _cut(sides: list[tuple[list[Outer | Rows], int]], contraction: str, largest: int) -> tuple[int, int, int]:
    """Axis to cut, its length, and the width of a piece."""
    first = sides[0][0][0]
    axis = -1 if contraction == "full" else first.outputs_axis
    length = first.c.shape[axis]
    size = sum(n for _, n in sides) * first.c.dtype.itemsize * math.prod(first.jacobian_shape)
    return axis, length, _divisor(length, max(1, length * largest // max(1, size)))


def _head(blocks: list[Outer | Rows], n: int) -> Outer | Rows:
    return join([dataclasses.replace(block, c=block.c[..., :0]) for block in blocks], n)  # type: ignore[return-value]


def _joined(arrays: tuple[jax.Array, ...], ndim: int, n: int) -> jax.Array:
    return arrays[0] if len(arrays) == 1 or arrays[0].ndim != ndim else jnp.concatenate(arrays)[:n]


def _divisor(length: int, limit: int) -> int:
    """The largest divisor of a length that is at most `limit`."""
    return next(width for width in range(min(length, limit), 0, -1) if length % width == 0)
