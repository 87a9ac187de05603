"""How a kernel, or a tile of one, is laid out: one place that knows where its axes are.

full       [n k m l]   every direction of a row with every direction of a column
trace      [n m]       equal directions, added up
diagonal   [n m k]     equal directions, side by side
"""

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from ntkdiag.kernel.reduction import Reduction
from ntkdiag.kernel.tied_outputs import Contraction

# The order of axes that exchanges rows and columns.
_MIRROR = {"full": (2, 3, 0, 1), "trace": (1, 0), "diagonal": (1, 0, 2)}


@dataclasses.dataclass(frozen=True)
class Tile:
    """The kernel of n row examples and m column examples.

    Attributes:
        contraction: Which output directions are paired.
        n: Row examples.
        m: Column examples.
        k: Directions of a row.
        l: Directions of a column.
    """

    contraction: Contraction
    n: int
    m: int
    k: int
    l: int  # noqa: E741

    @staticmethod
    def of(reduction: Reduction, n: int, m: int) -> "Tile":
        """The tile of n by m examples under a reduction, before it is finished."""
        return Tile(reduction.contraction, n, m, reduction.rows.n, reduction.columns.n)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        if self.contraction == "full":
            return self.n, self.k, self.m, self.l
        if self.contraction == "trace":
            return self.n, self.m
        return self.n, self.m, self.k

    @property
    def column_axis(self) -> int:
        """The axis of the column examples; that of the rows is the first."""
        return 2 if self.contraction == "full" else 1

    @property
    def product_rows(self) -> int:
        """Rows of the matrix product that gives the array."""
        return self.n * self.k if self.contraction == "full" else self.n

    def at(self, rows: slice, columns: slice) -> tuple[slice, ...]:
        """Where the entries of some rows and columns stand, as an index into the array."""
        if self.contraction == "full":
            return rows, slice(None), columns
        return rows, columns

    def mirrored(self, array: Float[Array | np.ndarray, "..."]) -> Float[Array | np.ndarray, "..."]:
        """An array of this layout with rows and columns exchanged."""
        return array.transpose(_MIRROR[self.contraction])
