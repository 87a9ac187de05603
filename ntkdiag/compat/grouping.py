"""From tied output axes to the reductions of the engine, and to groups of outputs for what they do not cover."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.compat.axes import KernelAxes
from ntkdiag.kernels.reduction import Reduction


@dataclasses.dataclass(frozen=True, eq=False)
class Grouping:
    """How the outputs of an example are reduced by the engine.

    The engine contracts all outputs fully, or ties all of them (trace, diagonal). Where only some axes are tied, the
    outputs are cut into groups with the same tied indices: the kernel of each is contracted fully, those of traced
    indices are added up, those of diagonal ones are stacked. The full kernel is never formed.

    Attributes:
        contraction: "full", "trace" or "diagonal".
        labels: Of the axes of a result, those of examples left out: of groups, of rows, of columns.
        groups: Outputs of rows and columns as `[D T k]` indices, D diagonal and T traced groups; None for one group of
            all outputs.
        sizes: Length of every label.
    """

    contraction: str
    labels: tuple[list[int], list[int], list[int]]
    groups: tuple[np.ndarray, np.ndarray] | None
    sizes: dict[int, int]

    def directions(self, side: int, n_outputs: int) -> int:
        """Output directions of a group of rows (0) or columns (1)."""
        return n_outputs if self.groups is None else self.groups[side].shape[-1]

    def reduction(self, n_outputs: int) -> Reduction:
        """What the engine is asked for, as planning sees it."""
        if self.groups is None:
            return Reduction(self.contraction, self.contraction, n_outputs, n_outputs)
        return Reduction("projection", "full", n_outputs, self.groups[0].shape[-1])

    def basis(self, indices: Any, n_outputs: int, dtype: Any) -> jax.Array:
        """Output directions [k C] of one group."""
        if self.groups is None:
            return jnp.eye(n_outputs, dtype=dtype)
        return jax.nn.one_hot(indices, n_outputs, dtype=dtype)


def group_outputs(axes: KernelAxes, batch: tuple[int, int] | None) -> Grouping:
    """Group the outputs of one example.

    Args:
        axes: The axes of the kernel.
        batch: Example axes of rows and columns, which are no outputs; None for whole batches, where all axes are.

    Returns:
        The grouping.
    """
    sides = []
    for side, (shape, labels) in enumerate(((axes.shape1, axes.labels1), (axes.shape2, axes.labels2))):
        sides.append(
            [
                (label, n)
                for a, (label, n) in enumerate(zip(labels, shape, strict=True))
                if batch is None or a != batch[side]
            ]
        )
    tied = {label for label, _ in sides[0]} & {label for label, _ in sides[1]}
    free = [[label for label, n in side if label not in tied and n > 1] for side in sides]
    traced = [label for label, _ in sides[0] if label in tied & axes.traced_labels]
    diagonal = [label for label, _ in sides[0] if label in tied - axes.traced_labels]
    if not any(free):
        if not diagonal:
            return Grouping("trace", ([], [], []), None, axes.sizes)
        return Grouping("diagonal", ([label for label, _ in sides[0] if label in tied], [], []), None, axes.sizes)
    if not tied:
        return Grouping("full", ([], free[0], free[1]), None, axes.sizes)
    groups = tuple(_indices(side, diagonal, traced, own) for side, own in zip(sides, free, strict=True))
    return Grouping("full", (diagonal, free[0], free[1]), groups, axes.sizes)  # type: ignore[arg-type]


def _indices(side: list[tuple[int, int]], diagonal: list[int], traced: list[int], free: list[int]) -> np.ndarray:
    """Numbers of the outputs, [D T k]."""
    sizes = dict(side)
    position = {label: k for k, (label, _) in enumerate(side)}
    rest = [label for label, _ in side if label not in (*diagonal, *traced, *free)]  # of length 1
    numbers = np.arange(math.prod(sizes.values())).reshape([n for _, n in side])
    numbers = numbers.transpose([position[label] for label in (*diagonal, *traced, *free, *rest)])
    count = lambda labels: math.prod(sizes[label] for label in labels)
    return numbers.reshape(count(diagonal), count(traced), -1)
