"""`trace_axes` and `diagonal_axes`: which output axes are tied, and how a kernel is laid out.

Every axis of a kernel has a label. Those of f(x1) are labelled 0, 1, ...; an axis of f(x2) that is
tied shares the label of its partner, any other is numbered on. With f(x1) [n a b], f(x2) [m c b']
and b traced:

    labels1 = 0 1 2      labels2 = 3 4 2      labels = 0 3 1 4: the kernel is [n m a c]
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.kernel.tied_outputs import Pairs

AxesLike: TypeAlias = int | Sequence[int]
Shape: TypeAlias = tuple[int, ...]
KernelArray: TypeAlias = Float[Array | np.ndarray, "..."]


@dataclasses.dataclass(frozen=True)
class KernelAxes:
    """The axes of a kernel between two outputs: `zip(shape1, shape2)` with pairs of axes tied.

    Attributes:
        shape1: Shape of f(x1).
        shape2: Shape of f(x2).
        traced: Pairs of axes (of shape1, of shape2) averaged over.
        diagonal: Pairs of axes that appear once.
    """

    shape1: Shape
    shape2: Shape
    traced: Pairs
    diagonal: Pairs

    @property
    def labels1(self) -> list[int]:
        """Labels of the axes of f(x1)."""
        return list(range(len(self.shape1)))

    @property
    def labels2(self) -> list[int]:
        """Labels of the axes of f(x2)."""
        partners = {column: row for row, column in self.traced + self.diagonal}
        n1 = len(self.shape1)
        return [partners.get(axis, n1 + axis) for axis in range(len(self.shape2))]

    @property
    def traced_labels(self) -> set[int]:
        """Labels that are averaged over."""
        return {row for row, _ in self.traced}

    @property
    def sizes(self) -> dict[int, int]:
        """Length of the axis of every label."""
        columns = dict(zip(self.labels2, self.shape2, strict=True))
        return columns | dict(zip(self.labels1, self.shape1, strict=True))

    @property
    def labels(self) -> list[int]:
        """Labels of the kernel: rows and columns in turn, diagonal axes once, no traced ones."""
        n1 = len(self.shape1)
        order = []
        for axis in range(max(n1, len(self.shape2))):
            if axis < n1 and axis not in self.traced_labels:
                order.append(axis)
            # A label of f(x1) among those of f(x2) is that of a tied axis: it stands there already.
            if axis < len(self.shape2) and self.labels2[axis] >= n1:
                order.append(self.labels2[axis])
        return order

    @property
    def shape(self) -> Shape:
        """Shape of the kernel."""
        return tuple(self.sizes[label] for label in self.labels)

    @property
    def denominator(self) -> int:
        """How many entries a traced one is the mean of."""
        return math.prod(self.shape1[row] for row, _ in self.traced)

    @property
    def is_empty(self) -> bool:
        """Whether an output has no entries."""
        return 0 in self.shape1 or 0 in self.shape2

    def laid_out(self, array: KernelArray, labels: list[int]) -> KernelArray:
        """Products of Jacobians with axes of these labels, as the kernel.

        A tied label may stand there once, twice, or have been summed over already.
        """
        array = array.reshape([self.sizes[label] for label in labels])
        # einsum takes few letters: labels are numbered anew.
        letters = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        einsum = np.einsum if isinstance(array, np.ndarray) else jnp.einsum
        ordered = einsum(
            array,
            [letters[label] for label in labels],
            [letters[label] for label in self.labels],
        )
        return ordered / self.denominator


def read_axes(
    trace_axes: AxesLike, diagonal_axes: AxesLike, shape1: Shape, shape2: Shape, output: str
) -> KernelAxes:
    """Read both for a pair of outputs; `output` names it in messages: " at 'logits'".

    Raises:
        InvalidInputError: An axis is out of range, both traced and diagonal, of different lengths
            on x1 and x2, or a negative axis that turns out to be the examples.
    """
    # Rows and columns are canonicalised by themselves: -1 is the last axis of each.
    traced = [_canonical(trace_axes, "trace_axes", s, output) for s in (shape1, shape2)]
    diagonal = [_canonical(diagonal_axes, "diagonal_axes", s, output) for s in (shape1, shape2)]
    for side, shape in enumerate((shape1, shape2)):
        common = set(traced[side]) & set(diagonal[side])
        if common:
            raise errors.InvalidInputError(
                expected="`trace_axes` and `diagonal_axes` without an axis in common",
                got=f"axis {min(common)} of the output{output} of shape {shape} in both",
                do="A traced axis is gone, a diagonal one appears once: choose. trace_axes is "
                "(-1,) unless given.",
            )
    return KernelAxes(
        shape1,
        shape2,
        _pairs(traced, "trace_axes", shape1, shape2, output),
        _pairs(diagonal, "diagonal_axes", shape1, shape2, output),
    )


def _canonical(axes: AxesLike, name: str, shape: Shape, output: str) -> list[int]:
    """Distinct non-negative axes, sorted."""
    numbers = _integers(axes, name)
    for axis in numbers:
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
    return sorted({axis % len(shape) for axis in numbers})


def _integers(axes: AxesLike, name: str) -> list[int]:
    """One integer or several, as a list."""
    listed: list[Any] = list(axes) if isinstance(axes, tuple | list) else [axes]
    for axis in listed:
        if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
            raise errors.InvalidInputError(
                expected=f"`{name}` as an integer or a tuple of integers",
                got=repr(axes),
                do="They are axes of the outputs of f.",
            )
    return [int(axis) for axis in listed]


def _pairs(axes: list[list[int]], name: str, shape1: Shape, shape2: Shape, output: str) -> Pairs:
    """Axes of the rows with their partners among the columns."""
    rows, columns = axes
    if len(rows) != len(columns):
        raise errors.InvalidInputError(
            expected=f"`{name}` that name as many axes of both outputs",
            got=f"axes {rows} and {columns}{output}",
            do=f"Pass {name}=() for cross terms between outputs of different shapes.",
        )
    for row, column in zip(rows, columns, strict=True):
        if shape1[row] != shape2[column]:
            lengths = f"{shape1[row]} and {shape2[column]}"
            raise errors.InvalidInputError(
                expected=f"f(x1) and f(x2) of the same length along `{name}`",
                got=f"shapes {shape1} and {shape2}{output}, lengths {lengths}",
                do="Only axes that x1 and x2 share can be traced or diagonalised.",
            )
    return tuple(zip(rows, columns, strict=True))
