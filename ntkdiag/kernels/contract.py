"""The end of every kernel: the factors that are at hand, and the sums of pieces, contracted."""

import functools

import jax
import jax.numpy as jnp

from ntkdiag.kernels.compiled import Compiled
from ntkdiag.kernels.gram import Gram
from ntkdiag.kernels.steps import join_blocks
from ntkdiag.kernels.task import Task
from ntkdiag.kernels.ways import Way


def contraction(task: Task, shape: tuple[int, ...], ways: tuple[Way, ...]) -> Compiled:
    """The compiled function of (blocks of factors of rows (and columns), weights, shares of pieces) -> kernels."""
    key = ("whole", shape, tuple(way.key for way in ways))
    return task.compiled(key, functools.partial(_contract, task.gram, shape))


def _contract(gram: Gram, shape: tuple[int, ...], sides: list, weights: list | None, shares: list) -> list[jax.Array]:
    """The kernels of rows with themselves, or with columns, from blocks of their factors and shares of pieces."""
    n, m = shape[0], shape[2 if gram.contraction == "full" else 1]
    rows = join_blocks(sides[0], n)
    if len(sides) == 1:
        return gram.symmetric(rows, shape, weights, shares)
    tiles = gram(rows, join_blocks(sides[1], m), weights, [share[0] for share in shares])
    return [jnp.broadcast_to(tile, shape) for tile in tiles]
