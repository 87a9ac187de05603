"""Blocks of examples, so that a kernel of any size is computed within a memory budget."""

import dataclasses
import math

from ntkdiag import errors
from ntkdiag.kernels.ways import Way


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How examples are cut into blocks.

    Attributes:
        rows: Row examples of one block; its factors are kept while all columns pass by.
        columns: Column examples differentiated at a time.
    """

    rows: int
    columns: int

    @staticmethod
    def plan(
        n: int, m: int, per_example: int, working: int, pair: int, output: int, budget: int, call: str
    ) -> "Blocks":
        """The largest blocks the budget allows.

        Args:
            n: Row examples.
            m: Column examples.
            per_example: Bytes of the factors of one example.
            working: Bytes the network passes of one example need besides.
            pair: Bytes of one pair of examples in a tile.
            output: Bytes of the whole kernel.
            budget: Bytes allowed.
            call: For the message.

        Raises:
            MemoryBudgetError: Not even one example at a time fits; the message says what would.
        """
        room = budget - output
        everything = lambda r, c: (r + c) * per_example + c * working + 3 * r * c * pair
        if everything(1, 1) > room:
            raise errors.MemoryBudgetError(
                errors.message(
                    call,
                    expected=f"a budget of at least {_readable(output + everything(1, 1))}",
                    got=_readable(budget),
                    do=f"The kernel itself takes {_readable(output)}; raise memory=, or reduce outputs= or the batch.",
                )
            )
        if n * per_example + n * working + 3 * n * m * pair <= room:
            return Blocks(n, m)
        columns = _largest(lambda c: everything(c, c) <= room / 2, max(n, m))
        rows = _largest(lambda r: everything(max(r, columns), columns) <= room, n)
        return Blocks(_even(n, max(rows, columns)), _even(m, columns))


def bytes_per_example(ways: list[Way], itemsize: int) -> int:
    """Bytes of the factors of one example."""
    return sum(way.size for way in ways) * itemsize


def _largest(fits, limit: int) -> int:
    """The largest size that fits, by bisection; 1 if none is known to."""
    low, high = 1, max(limit, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _even(total: int, block: int) -> int:
    """A block no larger than `block` that cuts `total` into nearly equal parts."""
    return math.ceil(total / math.ceil(total / min(block, total)))


def _readable(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
