"""Blocks of examples, so that a kernel of any size is computed within a memory budget."""

import dataclasses
import math

from ntkdiag import errors

# Tiles alive at once: the running sum, the term being added, and the one before on its way to the host.
_TILE_COPIES = 4
# Examples of a tile from which on its pieces are contracted faster than the whole.
_IN_PIECES = 16
# Sizes of blocks that are compared.
_CHOICES = 48
# Beyond this many numbers a larger tile makes no product faster.
_LARGEST_TILE = 2**24


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes that decide how examples are cut into blocks.

    Attributes:
        factors: Factors of one example.
        working: What the network passes of one example need at their peak, its factors included.
        pair: One pair of examples in a tile.
        output: The whole kernel.
        step: Examples the device differentiates best at a time; 0 for as many as there are.
        in_flight: Steps that are under way at the same time.
        joined: Of the factors of one example, what is copied to join several steps of a kernel of one tile.
        pieces: Of Jacobians that are contracted piece by piece, in a kernel of one tile.
        piece: The same in one of several tiles; see `in_pieces`.
        strips: Whether triangles are cut into strips.
        shared: What the network passes need at their peak that does not depend on the example.
    """

    factors: int
    working: int
    pair: int
    output: int
    step: int = 0
    in_flight: int = 1
    joined: int = 0
    pieces: int = 0
    piece: int = 0
    strips: bool = False
    shared: int = 0

    def passing(self, n: int) -> int:
        """Bytes of the network passes of n examples, beyond their factors."""
        step = min(self.step or n, n)
        steps = min(math.ceil(n / step), self.in_flight)
        return steps * (step * max(0, self.working - self.factors) + self.shared)

    def writing(self, n: int) -> int:
        """Bytes of the factors of steps that are on their way into a block of n examples."""
        step = min(self.step or n, n)
        return min(math.ceil(n / step), self.in_flight) * step * self.factors if n > step else 0

    def tile(self, n: int) -> int:
        """Bytes of contracting a tile of n by n examples, beyond their factors: strips, pieces, and the tile."""
        pieces = min(self.piece, 2 * n * self.factors) if n >= _IN_PIECES else 0
        return n * self.joined * self.strips + pieces + _TILE_COPIES * n * n * self.pair

    def contracting(self, n: int) -> int:
        """Bytes of contracting the factors of n examples, beyond them: steps are joined, triangles cut in strips."""
        steps = n > (self.step or n)
        return n * self.joined * (steps + self.strips) + self.pieces


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How examples are cut into blocks.

    Attributes:
        size: Tiles are `size` by `size` examples.
        held: Blocks of rows whose factors are kept while the columns pass by.
        n_rows: Blocks of rows.
        n_columns: Blocks of columns; 0 where they are the rows.
        peak: Bytes alive at once.
        step: Examples differentiated at a time.
        spilled: Whether the factors of blocks that are needed again wait in a file.
    """

    size: int
    held: int
    n_rows: int
    n_columns: int
    peak: int
    step: int
    spilled: bool = False

    @property
    def whole(self) -> bool:
        """One block does it all."""
        return self.n_rows == 1 and self.n_columns <= 1

    @property
    def passes(self) -> float:
        """How many times an example is differentiated, on average."""
        if self.spilled:
            return 1.0
        sweeps = math.ceil(self.n_rows / self.held)
        if self.n_columns:
            total = self.n_rows + self.n_columns * (1 if self.holds_columns else sweeps)
            return total / (self.n_rows + self.n_columns)
        streamed = sum(self.n_rows - min(self.n_rows, (s + 1) * self.held) for s in range(sweeps))
        return (self.n_rows + streamed) / self.n_rows

    @property
    def holds_columns(self) -> bool:
        """Whether the factors of all columns are kept too."""
        return self.held >= self.n_rows + self.n_columns

    @property
    def again(self) -> int:
        """Blocks that are needed again after their factors had to go."""
        if self.holds_columns or self.held >= self.n_rows:
            return 0
        return self.n_columns or self.n_rows - self.held

    @property
    def with_file(self) -> "Blocks":
        """The same, with a file for the factors of what is needed again."""
        return dataclasses.replace(self, spilled=self.again > 0)

    @staticmethod
    def largest(n: int, m: int, sizes: Sizes, budget: int, call: str) -> "Blocks":
        """The blocks with the fewest passes over the examples that the budget allows.

        Args:
            n: Row examples.
            m: Column examples; 0 where they are the rows.
            sizes: Bytes per example and pair.
            budget: Bytes allowed.
            call: For the message.

        Raises:
            MemoryBudgetError: Not even one example at a time fits; the message says what would.
        """
        # Memory that one phase has given back is not always there for the next: phases count as a sum.
        at_once = (n + m) * sizes.factors + sizes.passing(max(n, m)) + sizes.contracting(n + m) + 2 * sizes.output
        if at_once <= budget:
            return Blocks(max(n, m), 2, 1, 1 if m else 0, at_once, _even(max(n, m), sizes.step or max(n, m)))
        block = lambda b: (
            sizes.output + b * sizes.factors + sizes.passing(b) + b * sizes.factors + sizes.writing(b) + sizes.tile(b)
        )
        smallest = block(1) + sizes.factors  # of the row that is held
        if smallest > budget:
            raise errors.MemoryBudgetError(
                errors.message(
                    call,
                    expected=f"a budget of at least {readable(1.005 * smallest)}",  # not less when it is rounded
                    got=readable(budget),
                    do=f"The kernel takes {readable(sizes.output)}: raise memory=, or reduce outputs= or the batch.",
                )
            )
        everything = (n + m) * sizes.factors
        enough = _bisect(lambda b: block(b) + everything <= budget and _useful(b, sizes), max(n, m))
        if block(enough) + everything <= budget and enough >= min(8, n):
            size = _even(max(n, m), enough)
            n_rows, n_columns = math.ceil(n / size), math.ceil(m / size)
            step = _even(size, sizes.step or size)
            return Blocks(size, n_rows + n_columns, n_rows, n_columns, block(size) + everything, step)
        room = budget - sizes.output
        largest = _bisect(lambda b: block(b) - sizes.output <= room * 0.4 and _useful(b, sizes), max(n, m))

        def of(largest: int) -> Blocks:
            size = _even(max(n, m), largest)
            n_rows, n_columns = math.ceil(n / size), math.ceil(m / size)
            held = max(1, min(n_rows, (budget - block(size)) // max(1, size * sizes.factors)))
            step = _even(size, sizes.step or size)
            return Blocks(size, held, n_rows, n_columns, block(size) + held * size * sizes.factors, step)

        # Somewhat smaller blocks may leave less of the budget unused, but are contracted more slowly; both cost alike.
        choices = [of(b) for b in range(largest, max(0, largest * 3 // 4 - 1), -max(1, largest // _CHOICES))]
        return min(choices, key=lambda blocks: blocks.passes * (1 + largest / blocks.size))


def in_pieces(n: int, contraction: str) -> bool:
    """Whether Jacobians of a tile of n by n examples are contracted piece by piece.

    Products of a few dozen rows and a million columns are far slower than their pieces; "full" has more rows, and fewer
    columns.
    """
    return n >= _IN_PIECES and contraction != "full"


def readable(size: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _useful(size: int, sizes: Sizes) -> bool:
    return size * size * sizes.pair <= 4 * _LARGEST_TILE


def _bisect(fits, limit: int) -> int:
    """The largest size that fits, at least 1."""
    low, high = 1, max(limit, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _even(total: int, block: int) -> int:
    """A block no larger than `block` that cuts `total` into nearly equal parts."""
    return math.ceil(total / math.ceil(total / min(block, total)))
