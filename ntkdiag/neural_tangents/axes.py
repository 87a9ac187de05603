"""`trace_axes` and `diagonal_axes`: which output axes are tied, and how a kernel is laid out.

Every axis of a kernel has a label, and in the kernel they stand in ascending order. Axis k of f(x1)
is labelled 2 k, axis k of f(x2) 2 k + 1; a tied axis of f(x2) shares the label of its partner. With
f(x1) [n a b], f(x2) [m c b'] and b traced:

    labels1 = 0 2 4      labels2 = 1 3 4      labels = 0 1 2 3: the kernel is [n m a c]
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors

AxesLike: TypeAlias = int | Sequence[int]
# (axis of f(x1), axis of f(x2))
Pairs: TypeAlias = tuple[tuple[int, int], ...]
Shape: TypeAlias = tuple[int, ...]
KernelArray: TypeAlias = Float[Array | np.ndarray, "..."]


@dataclasses.dataclass(frozen=True)
class KernelAxes:
    """The axes of a kernel between two outputs, and which of them are tied."""

    rows: Shape  # of f(x1), with the axis of its examples
    columns: Shape  # of f(x2), likewise
    traced: Pairs  # pairs of axes whose equal indices are averaged over
    diagonal: Pairs  # pairs of axes whose equal indices appear once

    @property
    def labels1(self) -> list[int]:
        """Labels of the axes of f(x1)."""
        return [2 * axis for axis in range(len(self.rows))]

    @property
    def labels2(self) -> list[int]:
        """Labels of the axes of f(x2)."""
        partners = {column: 2 * row for row, column in self.traced + self.diagonal}
        return [partners.get(axis, 2 * axis + 1) for axis in range(len(self.columns))]

    @property
    def traced_labels(self) -> set[int]:
        """Labels that are averaged over."""
        return {2 * row for row, _ in self.traced}

    @property
    def labels(self) -> list[int]:
        """Labels of the kernel: rows and columns in turn, diagonal axes once, no traced ones."""
        return sorted({*self.labels1, *self.labels2} - self.traced_labels)

    @property
    def sizes(self) -> dict[int, int]:
        """Length of the axis of every label."""
        return dict(zip(self.labels1 + self.labels2, self.rows + self.columns, strict=True))

    @property
    def shape(self) -> Shape:
        """Shape of the kernel."""
        return tuple(self.sizes[label] for label in self.labels)

    @property
    def denominator(self) -> int:
        """How many entries a traced one is the mean of."""
        return math.prod(self.rows[row] for row, _ in self.traced)

    def laid_out(self, array: KernelArray, labels: list[int]) -> KernelArray:
        """Products with axes of these labels, tied ones once, twice or summed, as the kernel."""
        array = array.reshape([self.sizes[label] for label in labels])
        einsum = np.einsum if isinstance(array, np.ndarray) else jnp.einsum
        return einsum(array, labels, self.labels) / self.denominator


def read_axes(
    trace_axes: AxesLike, diagonal_axes: AxesLike, shape1: Shape, shape2: Shape, output: str
) -> KernelAxes:
    """Read both for a pair of outputs; `output` names it in messages: " at 'logits'"."""
    traced = _pairs(trace_axes, "trace_axes", shape1, shape2, output)
    diagonal = _pairs(diagonal_axes, "diagonal_axes", shape1, shape2, output)
    for side, shape in enumerate((shape1, shape2)):
        common = {pair[side] for pair in traced} & {pair[side] for pair in diagonal}
        if common:
            raise errors.InvalidInputError(
                expected="`trace_axes` and `diagonal_axes` without an axis in common",
                got=f"axis {min(common)} of the output{output} of shape {shape} in both",
                do="A traced axis is gone, a diagonal one appears once: choose. trace_axes is "
                "(-1,) unless given.",
            )
    return KernelAxes(shape1, shape2, traced, diagonal)


def _canonical(axes: AxesLike, name: str, shape: Shape, output: str) -> list[int]:
    """One axis or several as distinct non-negative integers, sorted."""
    listed: list[Any] = list(axes) if isinstance(axes, tuple | list) else [axes]
    for axis in listed:
        if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
            raise errors.InvalidInputError(
                expected=f"`{name}` as an integer or a tuple of integers",
                got=repr(axes),
                do="They are axes of the outputs of f.",
            )
        if not -len(shape) <= axis < len(shape):
            raise errors.InvalidInputError(
                expected=f"`{name}` among the {len(shape)} axes of the output{output} of shape "
                f"{shape}",
                got=f"axis {axis}",
                do=f"Pass {name}=() to leave all axes as they are.",
            )
        if axis < 0 and len(shape) == 1:
            raise errors.InvalidInputError(
                expected=f"an output axis for `{name}` behind that of the examples",
                got=f"axis {axis} of the output{output} of shape {shape}, whose only axis is the "
                "first",
                do=f"Pass {name}=() for a kernel [N N], or {name}=(0,) if you mean the first axis.",
            )
    return sorted({int(axis) % len(shape) for axis in listed})


def _pairs(axes: AxesLike, name: str, shape1: Shape, shape2: Shape, output: str) -> Pairs:
    """Axes of the rows with their partners among the columns; -1 is the last axis of each."""
    rows = _canonical(axes, name, shape1, output)
    columns = _canonical(axes, name, shape2, output)
    if len(rows) != len(columns):
        raise errors.InvalidInputError(
            expected=f"`{name}` that name as many axes of both outputs",
            got=f"axes {rows} and {columns}{output}",
            do=f"Pass {name}=() where x1 and x2 have outputs of different ranks.",
        )
    for row, column in zip(rows, columns, strict=True):
        if shape1[row] != shape2[column]:
            lengths = f"{shape1[row]} and {shape2[column]}"
            raise errors.InvalidInputError(
                expected=f"f(x1) and f(x2) of the same length along `{name}`",
                got=f"shapes {shape1} and {shape2}{output}, lengths {lengths}",
                do="Only axes that x1 and x2 share can be traced or diagonal.",
            )
    return tuple(zip(rows, columns, strict=True))
