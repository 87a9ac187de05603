"""The Gram of a list of factors: the kernel of a block of rows and a block of columns."""

import functools
import itertools

import jax
import jax.numpy as jnp

from ntkdiag.tangents.factors import Factor


def gram(rows: list[Factor], columns: list[Factor], contraction: str) -> jax.Array:
    """Sum over parts of <J[n,o], J[m,p]>; axes of length 1 where no part depends on the example."""
    return functools.reduce(jnp.add, (r.gram(c, contraction) for r, c in zip(rows, columns, strict=True)))


def symmetric_gram(factors: list[Factor], contraction: str, shape: tuple[int, ...]) -> jax.Array:
    """The Gram of a block with itself: strips of the upper triangle, mirrored, so that it is symmetric to the bit.

    Args:
        factors: Factors of n examples.
        contraction: "full", "trace" or "diagonal".
        shape: Shape of the result, which decides the number of strips.
    """
    n = shape[0]
    size = n * (shape[1] if contraction == "full" else 1)
    n_strips = min(n, 1 if size < 128 else 2 if size < 1024 else 4)
    edges = [n * k // n_strips for k in range(n_strips + 1)]
    axis = 2 if contraction == "full" else 1
    tiles: dict[tuple[int, int], jax.Array] = {}
    for r, (start, stop) in enumerate(itertools.pairwise(edges)):
        strip = gram(
            [f.take(slice(start, stop)) for f in factors], [f.take(slice(start, n)) for f in factors], contraction
        )
        wanted = list(shape)
        wanted[0], wanted[axis] = stop - start, n - start
        strip = jnp.broadcast_to(strip, wanted)
        cuts = [edge - start for edge in edges[r + 1 : -1]]
        for c, tile in enumerate(jnp.split(strip, cuts, axis=axis), start=r):
            tiles[r, c] = tile if c > r else (tile + _mirror(tile, contraction)) / 2
    rows = [
        jnp.concatenate([tiles[r, c] if c >= r else _mirror(tiles[c, r], contraction) for c in range(n_strips)], axis)
        for r in range(n_strips)
    ]
    return jnp.concatenate(rows, 0)


def _mirror(tile: jax.Array, contraction: str) -> jax.Array:
    """The tile across the diagonal."""
    return jnp.transpose(tile, {"full": (2, 3, 0, 1), "trace": (1, 0), "diagonal": (1, 0, 2)}[contraction])
