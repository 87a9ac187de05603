"""A kernel tile by tile, into arrays on the host."""

import math
from typing import Any

import numpy as np

from ntkdiag.kernels import steps
from ntkdiag.kernels.contract import Contraction
from ntkdiag.kernels.gram import mirrored
from ntkdiag.kernels.machine import Machine
from ntkdiag.kernels.progress import bar
from ntkdiag.kernels.spill import Spill
from ntkdiag.kernels.task import Task
from ntkdiag.kernels.tiles import Blocks, in_pieces


def compute(task: Task, blocks: Blocks, progress: bool, file: Spill | None = None) -> list[np.ndarray]:
    """The kernels of all groups; row blocks stay while the columns pass by, which wait in the file if there is one."""
    symmetric = task.columns is None
    shape = task.shape(task.rows.n, (task.columns or task.rows).n)
    out = [np.empty(shape, task.dtype) for _ in range(task.gram.n_groups)]
    size, starts = blocks.size, range(0, task.rows.n, blocks.size)
    column_starts = starts if symmetric else range(0, task.columns.n, size)  # type: ignore[union-attr]
    kept: dict[int, list] = {}
    contraction = _contraction(task, blocks)

    def rows_of(start):
        if symmetric and file and start in file:
            return file.read(start)
        return steps.of_block(task, task.rows, start, size, blocks.step)

    def columns_of(start):
        if start in kept:
            return kept[start]
        if file and start in file:
            return file.read(start)
        factors = steps.of_block(task, task.columns or task.rows, start, size, blocks.step)
        if file:
            file.write(start, factors)
        elif blocks.holds_columns and not symmetric:
            kept[start] = factors
        return factors

    n_tiles = len(starts) * (len(starts) + 1) // 2 if symmetric else len(starts) * len(column_starts)
    with bar(n_tiles, progress) as advance:
        held: dict[int, list] = {}
        computed: list = []  # the tile under way

        def write():
            while computed:
                tiles, r, c = computed.pop()
                _write(task, out, tiles, r, c, size)
                advance()

        for sweep in range(0, len(starts), blocks.held):
            own = starts[sweep : sweep + blocks.held]
            columns: Any = None
            write()
            held.clear()  # before the next ones are made
            held |= {start: rows_of(start) for start in own}
            for c in column_starts:
                if symmetric and c < own[0]:
                    continue
                if symmetric and c in held:
                    columns = held[c]
                else:
                    write()
                    columns = None  # before the next ones are made
                    columns = columns_of(c)
                for r in own:
                    if symmetric and r > c:
                        continue
                    following = contraction([[held[r]]] if symmetric and r == c else [[held[r]], [columns]]), r, c
                    write()  # the one before, while this one is computed
                    computed.append(following)
        write()
    return out


def _contraction(task: Task, blocks: Blocks) -> Contraction:
    """That of one tile."""
    shape, machine = task.shape(blocks.size, blocks.size), Machine.here()
    shares = machine.shares(2 * blocks.size, math.prod(shape) * task.dtype.itemsize)
    pieces = {"dense"} if task.single and in_pieces(blocks.size, task.gram.contraction) else ()
    return Contraction(task, task.rows.ways, shape, pieces, machine.piece, shares)


def _write(task: Task, out: list[np.ndarray], tiles: list, r: int, c: int, size: int) -> None:
    """Write a tile, and its mirror image, into the results."""
    axis = 2 if task.gram.contraction == "full" else 1
    for whole, tile in zip(out, tiles, strict=True):
        n, m = min(size, whole.shape[0] - r), min(size, whole.shape[axis] - c)
        tile = np.broadcast_to(np.asarray(tile), task.shape(size, size))
        tile = tile[:n, :, :m] if axis == 2 else tile[:n, :m]
        at = lambda a, b, axis=axis: (a, slice(None), b) if axis == 2 else (a, b)
        whole[at(slice(r, r + n), slice(c, c + m))] = tile
        if task.columns is None and r != c:
            whole[at(slice(c, c + m), slice(r, r + n))] = mirrored(tile, task.gram.contraction)
