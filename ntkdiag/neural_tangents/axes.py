"""`trace_axes` and `diagonal_axes`: which pairs of output axes are tied, and how the kernel is laid out."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from ntkdiag import errors

AxesLike = int | tuple[int, ...] | list[int]


@dataclasses.dataclass(frozen=True)
class KernelAxes:
    """The axes of a kernel between two outputs, `zip(shape1, shape2)` with pairs of axes tied.

    Every axis has a label: that of an axis of the rows is its number, a tied axis of the columns shares the label of
    its partner, and any other axis of the columns is numbered on behind the rows.

    Attributes:
        shape1: Shape of f(x1).
        shape2: Shape of f(x2).
        traced: Pairs of axes (of shape1, of shape2) averaged over.
        diagonal: Pairs of axes that appear once.
    """

    shape1: tuple[int, ...]
    shape2: tuple[int, ...]
    traced: tuple[tuple[int, int], ...]
    diagonal: tuple[tuple[int, int], ...]

    @property
    def labels1(self) -> list[int]:
        """Labels of the axes of the rows."""
        return list(range(len(self.shape1)))

    @property
    def labels2(self) -> list[int]:
        """Labels of the axes of the columns."""
        partner = {b: a for a, b in self.traced + self.diagonal}
        return [partner.get(b, len(self.shape1) + b) for b in range(len(self.shape2))]

    @property
    def traced_labels(self) -> set[int]:
        """Labels that are averaged over."""
        return {a for a, _ in self.traced}

    @property
    def sizes(self) -> dict[int, int]:
        """Length of every label."""
        columns = dict(zip(self.labels2, self.shape2, strict=True))
        return columns | dict(zip(self.labels1, self.shape1, strict=True))

    @property
    def labels(self) -> list[int]:
        """Labels of the kernel, in order: rows and columns interleaved, a diagonal axis once, traced ones gone."""
        n1, order = len(self.shape1), []
        for axis in range(max(n1, len(self.shape2))):
            if axis < n1 and axis not in self.traced_labels:
                order.append(axis)
            if axis < len(self.shape2) and self.labels2[axis] >= n1:
                order.append(self.labels2[axis])
        return order

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel."""
        return tuple(self.sizes[label] for label in self.labels)

    @property
    def denominator(self) -> int:
        """What a trace is divided by to be a mean."""
        return math.prod(self.shape1[a] for a, _ in self.traced)

    def finish(self, array: Any, labels: list[int]) -> Any:
        """Average, diagonalise and order an array into the kernel.

        Args:
            array: Products of Jacobians, numpy or JAX.
            labels: Of its axes. Labels of length 1 may be missing, a tied one may appear twice or be summed already.

        Returns:
            The kernel, of the same kind of array.
        """
        short = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        wanted = [short[label] for label in self.labels if label in short]
        einsum = np.einsum if isinstance(array, np.ndarray) else jnp.einsum
        ordered = einsum(array, [short[label] for label in labels], wanted)
        return ordered.reshape(self.shape) / self.denominator


def read_axes(
    trace_axes: AxesLike,
    diagonal_axes: AxesLike,
    shape1: tuple[int, ...],
    shape2: tuple[int, ...],
    output: str,
) -> KernelAxes:
    """Read `trace_axes` and `diagonal_axes` for one pair of outputs.

    Args:
        trace_axes: As the user gave them.
        diagonal_axes: As the user gave them.
        shape1: Shape of the output on x1.
        shape2: Shape of the output on x2.
        output: Name of the output for messages: " at 'logits'", or "" for the only one.

    Returns:
        The axes.

    Raises:
        InvalidInputError: An axis is out of range, both traced and diagonal, of different length on x1 and x2, or a
            negative axis that turns out to be the examples.
    """
    names = {"trace_axes": trace_axes, "diagonal_axes": diagonal_axes}
    read = {
        name: [_canonical(axes, name, shape, output) for shape in (shape1, shape2)]
        for name, axes in names.items()
    }
    pairs = {
        name: tuple(zip(*_same_number(both, name, output), strict=True))
        for name, both in read.items()
    }
    for side, shape in enumerate((shape1, shape2)):
        both = set(read["trace_axes"][side]) & set(read["diagonal_axes"][side])
        if both:
            raise errors.InvalidInputError(
                expected="`trace_axes` and `diagonal_axes` without an axis in common",
                got=f"axis {min(both)} of the output{output} of shape {shape} in both",
                do="A traced axis is gone, a diagonal one appears once: choose. trace_axes is (-1,) unless given.",
            )
    for name, tied in pairs.items():
        for a, b in tied:
            if shape1[a] != shape2[b]:
                raise errors.InvalidInputError(
                    expected=f"f(x1) and f(x2) of the same length along `{name}`",
                    got=f"shapes {shape1} and {shape2}{output}, lengths {shape1[a]} and {shape2[b]}",
                    do="Only axes that x1 and x2 share can be traced or diagonalised.",
                )
    return KernelAxes(shape1, shape2, pairs["trace_axes"], pairs["diagonal_axes"])


def _canonical(axes: Any, name: str, shape: tuple[int, ...], output: str) -> list[int]:
    """Distinct non-negative axes, sorted."""
    numbers = _integers(axes, name)
    for axis in numbers:
        if not -len(shape) <= axis < len(shape):
            raise errors.InvalidInputError(
                expected=f"`{name}` among the {len(shape)} axes of the output{output} of shape {shape}",
                got=f"axis {axis}",
                do=f"Pass {name}=() to leave all axes as they are.",
            )
        if axis < 0 and len(shape) == 1:
            raise errors.InvalidInputError(
                expected=f"an output axis for `{name}` behind that of the examples",
                got=f"axis {axis} of the output{output} of shape {shape}, whose only axis is the first",
                do=f"Pass {name}=() for a kernel [N N], or {name}=(0,) if you mean the first axis.",
            )
    return sorted({axis % len(shape) for axis in numbers})


def _integers(axes: Any, name: str) -> list[int]:
    listed = [axes] if isinstance(axes, int | np.integer) else axes
    integers = isinstance(listed, tuple | list) and all(
        isinstance(axis, int | np.integer) and not isinstance(axis, bool) for axis in listed
    )
    if not integers or isinstance(axes, bool):
        raise errors.InvalidInputError(
            expected=f"`{name}` as an integer or a tuple of integers",
            got=repr(axes),
            do="They are axes of the outputs of f.",
        )
    return [int(axis) for axis in listed]


def _same_number(both: list[list[int]], name: str, output: str) -> list[list[int]]:
    if len(both[0]) != len(both[1]):
        raise errors.InvalidInputError(
            expected=f"`{name}` that name as many axes of both outputs",
            got=f"axes {both[0]} and {both[1]}{output}",
            do=f"Pass {name}=() for cross terms between outputs of different shapes.",
        )
    return both
