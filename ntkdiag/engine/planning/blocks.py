"""Blocks of examples, so that a kernel of any size is computed within a memory budget.

Three ways to go, the cheapest that fits is taken:

    one tile   all factors are there at once, and contracted at once
    kept       several tiles; all factors stay in memory, every example is differentiated once
    swept      several tiles; the factors of some row blocks are held while all columns pass by and
               are differentiated again (or read from a file) in every sweep

A triangle (x2=None) of 6 blocks with 2 held, by the sweep that computes each tile. In sweep s the
columns left of its rows are known already, and those behind them are differentiated again:

        columns ->   0 1 2 3 4 5
    rows 0           1 1 1 1 1 1
         1             1 1 1 1 1
         2               2 2 2 2
         3                 2 2 2      6 + 4 + 2 blocks are differentiated, each twice on average
         4                   3 3
         5                     3

Sizes are bytes, counted from shapes. What the device is good at decides how work is cut, too: a CPU
is fastest on a few examples at a time, whose intermediate values stay in its cache; an accelerator
on as much as its memory holds.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import ClassVar

import jax

from ntkdiag import errors
from ntkdiag.kernel.reduction import Contraction
from ntkdiag.memory import readable

# Bytes of a piece for each example it is for, at least: with many examples pieces are larger.
_PIECE_PER_EXAMPLE = 2**14
# Bytes of the caches of a CPU, about: intermediate values stay in the one, pieces in the other.
_CACHE_OF_LAST_LEVEL = 24 * 2**20
_CACHE_OF_SECOND_LEVEL = 2**20
_PIECE_OF_ACCELERATOR = 2**28
_UNBOUNDED = 2**62


@dataclasses.dataclass(frozen=True)
class Machine:
    """How work is cut for a device."""

    step: int  # bytes of intermediate values of the examples that are differentiated together
    piece: int  # bytes of a Jacobian that is formed while it is contracted, for a few examples
    workers: int  # how many computations run side by side
    in_flight: ClassVar[int] = 2  # steps under way: one is computed, on all cores, and one waits

    def piece_of(self, n: int) -> int:
        """Bytes of a piece for n examples.

        Products of many examples outweigh what it costs to read a piece from memory; pieces of a
        few columns only are slow to form.
        """
        return max(self.piece, _PIECE_PER_EXAMPLE * n)

    def shares(self, n: int, output: int) -> int:
        """How many sums of pieces for n examples are made side by side, each of `output` bytes.

        One for each worker, but fewer where the sums outweigh the pieces: such products keep all
        cores busy alone.
        """
        affordable = self.workers * self.piece_of(n) // max(1, output)
        return max(1, min(self.workers, affordable))

    @staticmethod
    def here() -> "Machine":
        """How work is cut for the default device."""
        if jax.default_backend() == "cpu":
            workers = os.cpu_count() or 1
            if hasattr(os, "sched_getaffinity"):  # the cores this process may run on
                workers = len(os.sched_getaffinity(0))
            return Machine(_CACHE_OF_LAST_LEVEL, _CACHE_OF_SECOND_LEVEL, workers=workers)
        # An accelerator takes all examples at once, and large pieces one after the other.
        return Machine(_UNBOUNDED, _PIECE_OF_ACCELERATOR, workers=1)


# Tiles alive at once: the running sum, the term being added, the one before on its way to the host.
_TILE_COPIES = 4
# Examples of a tile from which on its pieces are contracted faster than the whole.
_IN_PIECES = 16
# Sizes of blocks that are compared.
_CHOICES = 48
# Beyond this many numbers a larger tile makes no product faster.
_LARGEST_TILE = 2**24
_BYTES_OF_FLOAT32 = 4
# Examples of a tile below which keeping all factors is not worth it: larger tiles are faster.
_SMALLEST_KEPT = 8
# A little more, so that what is shown with three digits is not less than what is needed.
_ROUNDED_UP = 1.005
# The part of the budget that a block in a sweep may take; the rest is for the rows that are held.
_PART_OF_BLOCK = 0.4


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes that decide how examples are cut into blocks."""

    factors: int  # factors of one example
    working: int  # what the network passes of one example need at their peak, its factors included
    pair: int  # one pair of examples in a tile
    output: int  # the whole kernel
    step: int = 0  # examples the device differentiates best at a time; 0 for as many as there are
    in_flight: int = 1  # steps that are under way at the same time
    # Of the factors of one example, what is copied to join several steps of a kernel of one tile.
    joined: int = 0
    pieces: int = 0  # of Jacobians that are contracted piece by piece, in a kernel of one tile
    # Of Jacobians that are contracted piece by piece, in one of several tiles (see `in_pieces`).
    piece: int = 0
    # Copies of the factors that triangles take which are cut into strips; 0 for none.
    strips: float = 0.0
    shared: int = 0  # what the network passes need at their peak besides, once for all examples

    def passing(self, n: int) -> int:
        """The network passes of n examples, beyond their factors."""
        step = min(self.step or n, n)
        # Each step under way has its own intermediate values; factors are counted elsewhere.
        steps = min(math.ceil(n / step), self.in_flight)
        return steps * (step * max(0, self.working - self.factors) + self.shared)

    def writing(self, n: int) -> int:
        """Factors of steps that are on their way into a block of n examples."""
        step = min(self.step or n, n)
        if n <= step:
            return 0
        return min(math.ceil(n / step), self.in_flight) * step * self.factors

    def tile(self, n: int) -> int:
        """Contracting a tile of n by n examples, beyond their factors: strips, pieces, the tile."""
        # Rows of a triangle are copied to be cut into strips.
        strips = round(self.strips * n * self.joined)
        pieces = 0
        if n >= _IN_PIECES:
            pieces = min(self.piece, 2 * n * self.factors)
        return strips + pieces + _TILE_COPIES * n * n * self.pair

    def contracting(self, n: int) -> int:
        """Contracting n examples at once, beyond their factors: steps are joined, triangles cut."""
        copies = self.strips
        if n > (self.step or n):  # several steps are joined
            copies += 1
        return round(copies * n * self.joined) + self.pieces

    def at_once(self, n: int, m: int) -> int:
        """A kernel of one tile.

        Memory that one phase has given back is not always there for the next: phases count as a
        sum.
        """
        factors = (n + m) * self.factors
        # The kernel is there twice: its strips, and what they are put together to.
        return factors + self.passing(max(n, m)) + self.contracting(n + m) + 2 * self.output

    def block(self, b: int) -> int:
        """Tiles of b by b examples, but for factors that are held: a block of columns, its tile."""
        # A block of columns counts twice while it is made: memory of its steps is not all reused.
        columns = b * self.factors + self.passing(b) + b * self.factors + self.writing(b)
        return self.output + columns + self.tile(b)

    def tile_is_useful(self, b: int) -> bool:
        """Whether a tile of b by b examples is not larger than makes products faster."""
        return b * b * self.pair <= _BYTES_OF_FLOAT32 * _LARGEST_TILE


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How examples are cut into blocks."""

    size: int  # tiles are `size` by `size` examples
    held: int  # blocks of rows whose factors are kept while the columns pass by
    n_rows: int  # blocks of rows
    n_columns: int  # blocks of columns; 0 where they are the rows
    peak: int  # bytes alive at once
    step: int  # examples differentiated at a time

    @property
    def one_tile(self) -> bool:
        """Whether one tile does it all."""
        return self.n_rows == 1 and self.n_columns <= 1

    @property
    def passes(self) -> float:
        """How many times an example is differentiated, on average."""
        # In every sweep all columns pass by.
        sweeps = math.ceil(self.n_rows / self.held)
        if self.n_columns:
            times = 1 if self.holds_columns else sweeps
            return (self.n_rows + self.n_columns * times) / (self.n_rows + self.n_columns)
        # Of a triangle, sweep s needs the columns behind its own rows again.
        again = 0
        for sweep in range(sweeps):
            again += self.n_rows - min(self.n_rows, (sweep + 1) * self.held)
        return (self.n_rows + again) / self.n_rows

    @property
    def holds_columns(self) -> bool:
        """Whether the factors of all columns are kept too."""
        return self.held >= self.n_rows + self.n_columns

    def at_most(self, size: int, n: int, m: int) -> "Blocks":
        """Blocks of at most so many examples that keep as many factors as were kept."""
        if size >= max(n, m):
            return self
        size = min(size, self.size)
        n_rows = math.ceil(n / size)
        n_columns = math.ceil(m / size)
        # As many examples are held as before, in more blocks; of one tile it was all of them.
        held = max(1, self.held * self.size // size)
        if self.one_tile:
            held = n_rows + n_columns
        return Blocks(size, held, n_rows, n_columns, self.peak, min(size, self.step))

    @staticmethod
    def largest(
        n: int, m: int, sizes: Sizes, budget: int, cheaper: Callable[[], str] | None = None
    ) -> "Blocks":
        """The blocks of n by m examples (0: the rows) with the fewest passes within the budget.

        `cheaper()` says what to do where there are none.
        """
        # One tile where everything fits at once, else the next best that does.
        at_once = sizes.at_once(n, m)
        if at_once <= budget:
            return Blocks(
                size=max(n, m),
                held=2,  # the block of rows, and that of columns
                n_rows=1,
                n_columns=1 if m else 0,
                peak=at_once,
                step=_even(max(n, m), sizes.step or max(n, m)),
            )
        _require_one_example(sizes, budget, cheaper)
        kept = _kept(n, m, sizes, budget)
        if kept is not None:
            return kept
        return _swept(n, m, sizes, budget)


def _require_one_example(sizes: Sizes, budget: int, cheaper: Callable[[], str] | None) -> None:
    """Refuse a budget in which not even a tile of one row and one column fits."""
    smallest = sizes.block(1) + sizes.factors  # of the row that is held
    if smallest > budget:
        kernel = f"The kernel alone takes {readable(sizes.output)}"
        if 2 * sizes.output > smallest:
            kernel += ", and less for fewer examples"
        raise errors.MemoryBudgetError(
            expected=f"a budget of at least {readable(_ROUNDED_UP * smallest)}",
            got=readable(budget),
            do=f"{kernel}. {cheaper() if cheaper else 'Raise memory=.'}",
        )


def _kept(n: int, m: int, sizes: Sizes, budget: int) -> Blocks | None:
    """Blocks whose factors all stay in memory, if tiles of a fair size fit beside them."""
    factors = (n + m) * sizes.factors

    def fits(b: int) -> bool:
        return sizes.block(b) + factors <= budget and sizes.tile_is_useful(b)

    largest = _bisect(fits, max(n, m))
    if sizes.block(largest) + factors > budget or largest < min(_SMALLEST_KEPT, n):
        return None
    # Blocks of equal size: a last block of few examples would cost as much as the others.
    size = _even(max(n, m), largest)
    n_rows = math.ceil(n / size)
    n_columns = math.ceil(m / size)
    return Blocks(
        size=size,
        held=n_rows + n_columns,
        n_rows=n_rows,
        n_columns=n_columns,
        peak=sizes.block(size) + factors,
        step=_even(size, sizes.step or size),
    )


def _swept(n: int, m: int, sizes: Sizes, budget: int) -> Blocks:
    """Blocks of which some rows are held while all columns pass by."""
    room = (budget - sizes.output) * _PART_OF_BLOCK

    def fits(b: int) -> bool:
        return sizes.block(b) - sizes.output <= room and sizes.tile_is_useful(b)

    largest = _bisect(fits, max(n, m))

    def blocks_of(at_most: int) -> Blocks:
        size = _even(max(n, m), at_most)
        n_rows = math.ceil(n / size)
        # What a block leaves of the budget holds factors of rows.
        affordable = (budget - sizes.block(size)) // max(1, size * sizes.factors)
        held = max(1, min(n_rows, affordable))
        return Blocks(
            size=size,
            held=held,
            n_rows=n_rows,
            n_columns=math.ceil(m / size),
            peak=sizes.block(size) + held * size * sizes.factors,
            step=_even(size, sizes.step or size),
        )

    def price(blocks: Blocks) -> float:
        # Somewhat smaller blocks may leave less of the budget unused and need fewer passes, but are
        # contracted more slowly: both cost alike.
        return blocks.passes * (1 + largest / blocks.size)

    # From the largest down to three quarters of it.
    smallest = max(0, largest * 3 // 4 - 1)
    stride = max(1, largest // _CHOICES)
    candidates = [blocks_of(size) for size in range(largest, smallest, -stride)]
    return min(candidates, key=price)


def in_pieces(n: int, contraction: Contraction) -> bool:
    """Whether Jacobians of a tile of n by n examples are contracted piece by piece.

    Products of a few dozen rows and a million columns are far slower than their pieces; "full" has
    more rows, and fewer columns.
    """
    return n >= _IN_PIECES and contraction != "full"


def _bisect(fits: Callable[[int], bool], limit: int) -> int:
    """The largest size that fits, at least 1."""
    low, high = 1, max(limit, 1)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _even(total: int, block: int) -> int:
    """A block no larger than `block` that cuts `total` into nearly equal parts."""
    n_blocks = math.ceil(total / min(block, total))
    return math.ceil(total / n_blocks)
