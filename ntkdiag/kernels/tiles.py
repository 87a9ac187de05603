"""Blocks of examples, so that a kernel of any size is computed within a memory budget."""

import dataclasses
import math

from ntkdiag import errors

# Tiles alive at once: the running sum, the term being added, and the one before on its way to the host.
_TILE_COPIES = 4
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
        pieces: Of Jacobians that are formed while they are contracted.
        strips: Whether triangles are cut into strips.
    """

    factors: int
    working: int
    pair: int
    output: int
    step: int = 0
    in_flight: int = 1
    joined: int = 0
    pieces: int = 0
    strips: bool = False

    def passing(self, n: int) -> int:
        """Bytes of the network passes of n examples, beyond their factors."""
        step = min(self.step or n, n)
        busy = min(math.ceil(n / step), self.in_flight) * step
        return busy * max(0, self.working - self.factors)

    def copies(self, n: int) -> int:
        """How often the factors of n examples exist again while they are joined: freed steps are not all reused."""
        return 2 if n > (self.step or n) else 1

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
    """

    size: int
    held: int
    n_rows: int
    n_columns: int
    peak: int
    step: int

    @property
    def whole(self) -> bool:
        """One block does it all."""
        return self.n_rows == 1 and self.n_columns <= 1

    @property
    def passes(self) -> float:
        """How many times an example is differentiated, on average."""
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
            sizes.output
            + b * sizes.factors
            + max(sizes.passing(b) + b * sizes.factors * sizes.copies(b), 2 * b * sizes.factors * sizes.strips)
            + _TILE_COPIES * b * b * sizes.pair
        )
        if block(1) > budget:
            raise errors.MemoryBudgetError(
                errors.message(
                    call,
                    expected=f"a budget of at least {readable(block(1))}",
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
        size = _bisect(lambda b: block(b) - sizes.output <= room * 0.4 and _useful(b, sizes), max(n, m))
        size = _even(max(n, m), size)
        n_rows, n_columns = math.ceil(n / size), math.ceil(m / size)
        held = max(1, min(n_rows, (budget - block(size)) // max(1, size * sizes.factors)))
        step = _even(size, sizes.step or size)
        return Blocks(size, held, n_rows, n_columns, block(size) + held * size * sizes.factors, step)


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
