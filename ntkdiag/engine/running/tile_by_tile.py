"""A kernel tile by tile, into arrays on the host.

    for each sweep over some blocks of rows:
        differentiate these rows and hold their factors
        for each block of columns (of a triangle: from the first of these rows on):
            take its factors from memory, or differentiate it
            for each block of rows that is held:
                contract the tile; while it is computed, write the tile before it to the host

What is held is let go before the next is made: memory is planned for one of each at a time.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float

from ntkdiag.engine.jacobian.factors import Factor
from ntkdiag.engine.planning.blocks import Machine, in_pieces
from ntkdiag.engine.planning.plan import Plan
from ntkdiag.engine.planning.task import Task
from ntkdiag.engine.running.differentiation import Differentiation
from ntkdiag.engine.running.kernel_contraction import KernelContraction
from ntkdiag.progress import under_way


def compute(task: Task, plan: Plan) -> list[Float[np.ndarray, "..."]]:
    """The kernels of all groups of leaves; one, of all of them, where no groups are asked for."""
    tiles = _Tiles(task, plan)
    with under_way("kernel", tiles.n_tiles, task.call.options.progress) as work:
        tiles.compute(work.advance)
    return tiles.kernels


class _Tiles:
    """The tiles of a kernel, and where its factors are in the meantime."""

    def __init__(self, task: Task, plan: Plan):
        columns = task.columns or task.rows
        self._task = task
        self._blocks = plan.blocks
        self._symmetric = task.columns is None
        self._rows = Differentiation(task, task.rows, task.rows.ways, plan.blocks.step)
        self._columns = Differentiation(task, columns, columns.ways, plan.blocks.step)
        self._row_starts = range(0, task.rows.n, plan.blocks.size)
        self._column_starts = range(0, columns.n, plan.blocks.size)
        self._contraction = _contraction(task, plan)
        # Factors of some blocks of rows, while the columns pass by; of all columns, where they fit.
        self._held: dict[int, list[Factor]] = {}
        self._kept: dict[int, list[Factor]] = {}
        self._advance: Callable[[], None] = lambda: None
        # The tile under way: its kernels, first row and first column.
        self._under_way: tuple[list[Array], int, int] | None = None

        shape = task.tile(task.rows.n, columns.n).shape
        self.kernels = [np.empty(shape, task.dtype) for _ in range(task.gram.n_groups)]

    @property
    def n_tiles(self) -> int:
        """How many tiles are computed."""
        n = len(self._row_starts)
        return n * (n + 1) // 2 if self._symmetric else n * len(self._column_starts)

    def compute(self, advance: Callable[[], None]) -> None:
        """Compute all tiles, calling `advance` after each."""
        self._advance = advance
        for first in range(0, len(self._row_starts), self._blocks.held):
            rows = self._row_starts[first : first + self._blocks.held]
            self._write()
            columns = None
            self._held.clear()  # before the next are made
            # The rows of this sweep.
            for start in rows:
                self._held[start] = self._rows.block(start, self._blocks.size)
            # All columns pass by; of a triangle those behind its first row.
            for column in self._column_starts:
                if self._symmetric and column < rows[0]:
                    continue
                columns = None  # before the next are made
                columns = self._factors_of_columns(column)
                for row in rows:
                    if self._symmetric and row > column:
                        continue
                    # One block each, or one for both: then a triangle is enough.
                    sides = [[self._held[row]], [columns]]
                    if self._symmetric and row == column:
                        sides = [[columns]]
                    following = self._contraction(sides), row, column
                    self._write()  # the one before, while this one is computed
                    self._under_way = following
        self._write()

    def _factors_of_columns(self, start: int) -> list[Factor]:
        """The factors of a block of columns."""
        if self._symmetric and start in self._held:
            return self._held[start]
        self._write()  # the tile under way gives its memory back first
        if start in self._kept:
            return self._kept[start]
        factors = self._columns.block(start, self._blocks.size)
        if self._blocks.holds_columns and not self._symmetric:
            self._kept[start] = factors
        return factors

    def _write(self) -> None:
        """Wait for the tile under way, and write it and its mirror image into the kernels."""
        if self._under_way is None:
            return
        computed, row, column = self._under_way
        self._under_way = None
        # The last blocks are filled up with repeated examples: those are cut off.
        size = self._blocks.size
        n = min(size, self._task.rows.n - row)
        m = min(size, self._task.m - column)
        rows, columns = slice(row, row + n), slice(column, column + m)
        tile = self._task.tile(size, size)
        inside = tile.at(slice(0, n), slice(0, m))
        for kernel, array in zip(self.kernels, computed, strict=True):
            # To fetch an array waits until it is computed.
            on_host = np.asarray(array)[inside]
            kernel[tile.at(rows, columns)] = on_host
            if self._symmetric and row != column:
                kernel[tile.at(columns, rows)] = tile.mirrored(on_host)
        self._advance()


def _contraction(task: Task, plan: Plan) -> KernelContraction:
    """How the factors of a block of rows and a block of columns become a tile."""
    size = plan.blocks.size
    tile = task.tile(size, size)
    machine = Machine.here()
    # Every tile would have to form late Jacobians again: they are formed with their block.
    pieces = set()
    if task.is_plain_sum and in_pieces(size, tile.contraction):
        pieces.add("dense")
    return KernelContraction(
        task=task,
        ways=task.rows.ways,
        tile=tile,
        in_pieces=pieces,
        piece=machine.piece,
        n_shares=machine.shares(2 * size, math.prod(tile.shape) * task.dtype.itemsize),
    )
