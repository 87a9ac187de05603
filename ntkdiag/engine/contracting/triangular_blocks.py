"""A symmetric kernel as strips of its upper triangle.

Of K = J J^T only one triangle has to be computed. It is cut into strips of rows, each multiplied by
the examples from its first one on:

    +---+---+---+
    | 0 | 0 | 0 |      strip 0: rows of block 0 by all columns
    |---+---+---|      strip 1: rows of block 1 by columns of blocks 1, 2
    |   | 1 | 1 |      strip 2: rows of block 2 by columns of block 2
    |---+---+---|
    |   |   | 2 |      below the diagonal: mirror images
    +---+---+---+

The result is symmetric to the bit. More strips save more products, but each copies its factors.
"""

import itertools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.engine.contracting.tile import Tile

# Rows of a matrix product from which on strips save time, and from which on more of them do.
_STRIPS = 128
_LARGE = 1024
# Rows of a strip of a product that is made piece by piece, at least, and how many strips there are
# at most: each copies from the piece.
_ROWS_OF_PIECES = 80
_MOST_OF_PIECES = 6


def in_strips(tile: Tile) -> bool:
    """Whether a symmetric kernel is computed in strips, each with a copy of its factors."""
    return tile.product_rows >= _STRIPS


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
    if not in_strips(tile):
        n_strips = 1
    elif tile.product_rows < _LARGE:
        n_strips = 2
    else:
        n_strips = 4
    return _edges(tile.n, n_strips)


def edges_of_pieces(tile: Tile, symmetric: bool) -> list[int]:
    """Where strips begin and end in a kernel that is contracted piece by piece."""
    if not symmetric:
        return [0, tile.n]
    return _edges(tile.n, min(_MOST_OF_PIECES, tile.product_rows // _ROWS_OF_PIECES))


def pairs_of(edges: list[int]) -> list[tuple[int, int]]:
    """(first row, last row + 1) of every strip."""
    return list(itertools.pairwise(edges))


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
