"""Output axes of which only equal indices are paired.

The full kernel of examples with outputs of shape (A, B) is K[n, a, b, m, a', b']. Tying an axis
keeps only the entries where its two indices are equal. A *traced* axis is summed over them, a
*diagonal* axis appears once:

    nothing tied   K[n, a, b, m, a', b']                      all pairs of outputs
    b traced       sum_b K[n, a, b, m, a', b]                 [n, a, m, a']
    b diagonal     K[n, a, b, m, a', b]                       [n, a, m, a', b]

The full kernel is never formed for this. Where every axis is tied, only equal outputs are paired,
which costs as much as a trace. Where some are tied, the outputs are cut into groups with the same
tied indices: the kernel of a group is a full kernel of few outputs, traced groups are added up and
diagonal ones are put side by side.
"""

import dataclasses
import functools
import math
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Array, Float, Int, Shaped

# (axis of the outputs of a row example, axis of those of a column example)
Pairs: TypeAlias = tuple[tuple[int, int], ...]
Contraction: TypeAlias = Literal["full", "trace", "diagonal"]


@dataclasses.dataclass(frozen=True)
class OutputGroups:
    """The outputs of one example cut into D x T groups of equal tied indices."""

    # Numbers of the outputs of a row example, by diagonal group, traced group and free index.
    rows: Int[np.ndarray, "D T k"]
    columns: Int[np.ndarray, "D T l"]  # the same of a column example

    @property
    def n_diagonal(self) -> int:
        """D: groups whose kernels are put side by side."""
        return self.rows.shape[0]

    @property
    def n_traced(self) -> int:
        """T: groups whose kernels are added up."""
        return self.rows.shape[1]


@dataclasses.dataclass(frozen=True)
class TiedOutputs:
    """Which output axes of a row example and of a column example are tied, and how."""

    rows: tuple[int, ...]  # shape of the outputs of one row example
    columns: tuple[int, ...]  # shape of the outputs of one column example
    # Pairs (axis of the rows, axis of the columns) whose equal indices are summed over.
    traced: Pairs = ()
    diagonal: Pairs = ()  # pairs of axes whose equal indices appear once

    @property
    def free_rows(self) -> tuple[int, ...]:
        """Axes of the rows that are not tied."""
        tied = {row for row, _ in self.traced + self.diagonal}
        return tuple(axis for axis in range(len(self.rows)) if axis not in tied)

    @property
    def free_columns(self) -> tuple[int, ...]:
        """Axes of the columns that are not tied."""
        tied = {column for _, column in self.traced + self.diagonal}
        return tuple(axis for axis in range(len(self.columns)) if axis not in tied)

    @functools.cached_property
    def contraction(self) -> Contraction:
        """Which outputs of a group are paired: all ("full"), or equal ones (otherwise)."""
        if not self._pairs_equal_outputs_only:
            return "full"
        return "diagonal" if self.diagonal else "trace"

    @functools.cached_property
    def groups(self) -> OutputGroups | None:
        """The groups of equal tied indices; None where one contraction does it all."""
        if self._pairs_equal_outputs_only or not self.traced + self.diagonal:
            return None
        # Axes in the order diagonal, traced, free: they become the three axes [D T k].
        tied = self.diagonal + self.traced
        rows = _numbers(self.rows, [row for row, _ in tied], self.free_rows)
        columns = _numbers(self.columns, [column for _, column in tied], self.free_columns)
        n_diagonal = math.prod(self.rows[row] for row, _ in self.diagonal)
        n_traced = math.prod(self.rows[row] for row, _ in self.traced)
        return OutputGroups(
            rows.reshape(n_diagonal, n_traced, -1), columns.reshape(n_diagonal, n_traced, -1)
        )

    @property
    def _pairs_equal_outputs_only(self) -> bool:
        """Whether the outputs of rows and columns, numbered alike, are paired one by one."""
        free = [self.rows[axis] for axis in self.free_rows]
        free += [self.columns[axis] for axis in self.free_columns]
        # Nothing is free (but axes of length 1), and the tied axes follow each other in one order
        # on both sides: then an output has the same number in a row and in a column example.
        columns_in_order = [column for _, column in sorted(self.traced + self.diagonal)]
        return math.prod(free) == 1 and columns_in_order == sorted(columns_in_order)

    def unfolded(
        self, kernel: Float[Array | np.ndarray, "..."]
    ) -> Shaped[Array | np.ndarray, "..."]:
        """[n k m l], [n m], [n m o] or [n k m l D] -> [n *free_rows m *free_columns *diagonal]."""
        free_rows = tuple(self.rows[axis] for axis in self.free_rows)
        free_columns = tuple(self.columns[axis] for axis in self.free_columns)
        diagonal = tuple(self.rows[axis] for axis, _ in self.diagonal)
        n = kernel.shape[0]
        if self.contraction == "full":
            m = kernel.shape[2]
        else:
            m = kernel.shape[1]
        if self.contraction == "diagonal":
            # [n m o] -> [n m *rows]: the outputs o are all axes of the rows. Sum over the traced.
            kernel = kernel.reshape(n, m, *self.rows)
            kernel = kernel.sum(axis=tuple(2 + axis for axis, _ in self.traced))
            # What is left stands in the order of the rows: move the diagonal axes to the end.
            order = [*self.free_rows, *(axis for axis, _ in self.diagonal)]
            left = sorted(order)
            kernel = kernel.transpose(0, 1, *(2 + left.index(axis) for axis in order))
        shape = n, *free_rows, m, *free_columns, *diagonal
        return kernel if kernel.shape == shape else kernel.reshape(shape)


def _numbers(
    shape: tuple[int, ...], tied: list[int], free: tuple[int, ...]
) -> Int[np.ndarray, "..."]:
    """The outputs of an example, numbered in order, as an array with its tied axes first."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers.transpose([*tied, *free])
