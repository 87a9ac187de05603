"""The Gram of a list of factors: the kernel of a block of rows and a block of columns."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.kernels.streams import Stream
from ntkdiag.tangents.factors import Dense, Outer
from ntkdiag.tangents.parts import Factor
from ntkdiag.tangents.precision import Precision

# Rows of a matrix product from which on strips of a triangle save time, and from which on more of them do.
_STRIPS, _LARGE = 128, 1024
# Rows of a strip of a streamed product, at least, and how many strips there are at most: each copies from the piece.
_STREAMED, _MOST_STREAMED = 80, 6
_MIRROR = {"full": (2, 3, 0, 1), "trace": (1, 0), "diagonal": (1, 0, 2)}


@dataclasses.dataclass(frozen=True)
class Gram:
    """Which products to take and which of them to add up.

    Attributes:
        contraction: "full", "trace" or "diagonal".
        dot: Rounding policy.
        groups: For every factor, the group its product is added to; several where the factor is split by layer.
        n_groups: Number of groups; the result has one kernel for each.
    """

    contraction: str
    dot: Precision
    groups: tuple[tuple[int, ...], ...]
    n_groups: int

    def __call__(
        self, rows: list, columns: list, weights: list | None = None, streamed: Sequence[jax.Array] = ()
    ) -> list[Any]:
        """Kernels of rows by columns, one per group; axes of length 1 where nothing depends on the example.

        Args:
            rows: Factors of n examples.
            columns: Factors of m examples.
            weights: For every factor, what its product is multiplied by: a number, or [P] for a dense one.
            streamed: Products of streamed parts, to be added to the only group.
        """
        totals: list[Any] = [None] * self.n_groups
        everything = self.groups if self.n_groups > 1 else ((0,),) * len(rows)
        for k, (row, column, groups) in enumerate(zip(rows, columns, everything, strict=True)):
            weight = None if weights is None else weights[k]
            if weight is not None and jnp.ndim(weight) == 1:
                row, weight = Dense(row.j * jnp.expand_dims(weight, range(row.j.ndim - 1))), None  # type: ignore[union-attr]
            split = zip(groups, _layers(row, len(groups)), _layers(column, len(groups)), strict=True)
            for group, r, c in split:
                product = r.gram(c, self.contraction, self.dot)
                product = product if weight is None else product * weight
                totals[group] = product if totals[group] is None else totals[group] + product
        if streamed:
            totals = [functools.reduce(jnp.add, [*streamed, *(total for total in totals if total is not None)])]
        zero = np.zeros([1] * {"full": 4, "diagonal": 3, "trace": 2}[self.contraction], np.float32)
        return [zero if total is None else total for total in totals]

    def symmetric(
        self,
        factors: list[Factor],
        shape: tuple[int, ...],
        weights: list | None = None,
        streamed: Sequence[list[jax.Array]] = (),
    ) -> list[jax.Array]:
        """Kernels of a block with itself: strips of the upper triangle, mirrored, so symmetric to the bit.

        Args:
            factors: Factors of n examples.
            shape: Shape of one result; it decides the number of strips.
            weights: As in a call.
            streamed: Several results of `stream`, to be added.
        """
        edges = self._edges(shape)
        strips = []
        for start, stop in itertools.pairwise(edges):
            own, rest = ([f.take(slice(start, end)) for f in factors] for end in (stop, edges[-1]))
            strips.append(self(own, rest, weights))
        results = [self._assemble(group, edges, shape) for group in zip(*strips, strict=True)]
        if streamed:
            sums = tuple(functools.reduce(jnp.add, shares) for shares in zip(*streamed, strict=True))
            results = [results[0] + self._assemble(sums, self._strips(shape, columns=False), shape)]
        return results

    def nothing(self, shape: tuple[int, ...], dtype: Any, columns: bool) -> list[jax.Array]:
        """What `stream` adds to at first: zeros for each strip of the triangle, or for the whole with columns."""
        axis = 2 if self.contraction == "full" else 1
        totals = []
        for start, stop in itertools.pairwise(self._strips(shape, columns)):
            strip = list(shape)
            strip[0], strip[axis] = stop - start, strip[axis] - start
            totals.append(jnp.zeros(strip, dtype))
        return totals

    def stream(
        self, totals: list[jax.Array], row: Stream, column: Stream | None, shape: tuple[int, ...], turn: Any, turns: int
    ) -> list[jax.Array]:
        """Add the products of pieces `turn`, `turn + turns`, ... of a part.

        Args:
            totals: As of `nothing`.
            row: The part of n examples, of the only group.
            column: That of m examples; None where they are the rows.
            shape: Shape of the whole result.
            turn: Which share of the pieces.
            turns: Number of shares.
        """
        n = shape[0]
        edges = self._strips(shape, column is not None)

        def add(step, totals):
            index = turn + step * turns
            rows = row.piece(index)
            columns = rows if column is None else column.piece(index)
            for r, (start, stop) in enumerate(itertools.pairwise(edges)):
                rest = columns if column is not None else columns.take(slice(start, n))
                product = rows.take(slice(start, stop)).gram(rest, self.contraction, self.dot)
                totals[r] = _accumulate(totals[r], product, index, row, self.contraction)
            return totals

        return jax.lax.fori_loop(0, (row.cut.n_pieces - turn + turns - 1) // turns, add, totals)

    def _strips(self, shape: tuple[int, ...], columns: bool) -> list[int]:
        """Where the strips of a streamed product end; with columns there is no triangle."""
        return _cut(shape[0], 1 if columns else min(_MOST_STREAMED, _rows(shape, self.contraction) // _STREAMED))

    def _edges(self, shape: tuple[int, ...]) -> list[int]:
        """Where the strips of a triangle begin and end."""
        size = _rows(shape, self.contraction)
        return _cut(shape[0], 1 if size < _STRIPS else 2 if size < _LARGE else 4)

    def _assemble(self, strips: tuple, edges: list[int], shape: tuple[int, ...]) -> jax.Array:
        axis = 2 if self.contraction == "full" else 1
        mirror = lambda tile: jnp.transpose(tile, _MIRROR[self.contraction])
        tiles: dict[tuple[int, int], jax.Array] = {}
        for r, strip in enumerate(strips):
            wanted = list(shape)
            wanted[0], wanted[axis] = edges[r + 1] - edges[r], edges[-1] - edges[r]
            cuts = [edge - edges[r] for edge in edges[r + 1 : -1]]
            for c, tile in enumerate(jnp.split(jnp.broadcast_to(strip, wanted), cuts, axis=axis), start=r):
                tiles[r, c] = tile if c > r else (tile + mirror(tile)) / 2
        indices = range(len(strips))
        rows = [[tiles[r, c] if c >= r else mirror(tiles[c, r]) for c in indices] for r in indices]
        return jnp.concatenate([jnp.concatenate(row, axis) for row in rows], 0)


def in_strips(shape: tuple[int, ...], contraction: str) -> bool:
    """Whether a symmetric result of this shape is computed in strips, each with a copy of its factors."""
    return _rows(shape, contraction) >= _STRIPS


def _cut(n: int, n_strips: int) -> list[int]:
    """Where strips of n examples begin and end, about as many as wanted."""
    n_strips = max(1, min(n, n_strips))
    return [n * k // n_strips for k in range(n_strips + 1)]


def _rows(shape: tuple[int, ...], contraction: str) -> int:
    """Rows of the matrix product that gives a result of this shape."""
    return shape[0] * (shape[1] if contraction == "full" else 1)


def _accumulate(total: jax.Array, product: jax.Array, index: Any, stream: Stream, contraction: str) -> jax.Array:
    """Add the product of one piece."""
    product = product.astype(total.dtype)
    if contraction != "diagonal":
        return total + product
    start, width = stream.cut.start(index)[0], stream.cut.directions[1]
    product = jnp.broadcast_to(product, (*total.shape[:2], width))
    own = jax.lax.dynamic_slice_in_dim(total, start, width, 2)
    return jax.lax.dynamic_update_slice_in_dim(total, own + product, start, 2)


def mirrored(tile: Any, contraction: str) -> Any:
    """The tile across the diagonal."""
    return tile.transpose(_MIRROR[contraction])


def _layers(factor: Factor, n: int) -> list[Factor]:
    """Split a factor of a scan-stacked leaf by layer: the layer is the outermost part of b, and of P."""
    if n == 1:
        return [factor]
    if isinstance(factor, Outer):
        pairs = zip(jnp.split(factor.a, n, axis=-3), jnp.split(factor.c, n, axis=-3), strict=True)
        return [Outer(a, c, factor.ones) for a, c in pairs]
    assert isinstance(factor, Dense)
    return [Dense(j) for j in jnp.split(factor.j, n, axis=-1)]
