"""The kernel between one output on x1 and one output on x2, by the engine."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ntkdiag.engine.calls.call import Batch, Call, Options
from ntkdiag.engine.calls.preconditioner import Preconditioner
from ntkdiag.engine.planning.plan import Plan
from ntkdiag.engine.planning.task import Task
from ntkdiag.engine.running.run import run
from ntkdiag.kernel.tied_outputs import TiedOutputs
from ntkdiag.neural_tangents.axes import KernelAxes

Arrays = tuple[list[Any], list[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Half:
    """Rows or columns: one output of f.

    Attributes:
        f: One output as a function of parameters, examples and shared arrays.
        n: Number of examples; 1 for a whole batch.
        labels: Of the example axis in the kernel; empty for a whole batch.
    """

    f: Callable
    n: int
    labels: tuple[int, ...]

    def batch(self, arrays: Arrays) -> Batch:
        """These examples, as the engine takes them."""
        return Batch(self.f, arrays[0], {"shared": arrays[1]})


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A kernel between two outputs, planned; call it inside a trace, or `in_blocks`.

    Attributes:
        axes: Its axes.
        rows: Rows.
        columns: Columns.
        symmetric: Whether the columns are the rows.
        task: What the engine computes.
        chunk: Examples at a time where only the kernel of each example with its partner is wanted; None otherwise.
        plan: The engine's plan; None where it is not run by itself, but as a part of a program.
    """

    axes: KernelAxes
    rows: Half
    columns: Half
    symmetric: bool
    task: Task
    chunk: int | None
    plan: Plan | None

    @property
    def ties(self) -> TiedOutputs:
        """The tied axes of the outputs."""
        assert self.task.reduction.ties is not None
        return self.task.reduction.ties

    @property
    def reduces(self) -> bool:
        """Whether the compiler options of reductions apply, see `_jax.compiler_options`."""
        return any(side.program.reduces for side in self.task.sides)

    @property
    def tiled(self) -> bool:
        """Whether it takes several tiles."""
        return self.plan is not None and not self.plan.blocks.one_tile

    @property
    def in_steps(self) -> bool:
        """Whether the engine runs it by itself, as one tile."""
        return self.plan is not None and self.plan.blocks.one_tile and self.ties.groups is None

    def __call__(self, params: Any, first: Arrays, second: Arrays | None) -> jax.Array:
        """The kernel inside a trace, in the layout of neural-tangents.

        Args:
            params: Parameters.
            first: Row examples, and what they share.
            second: Column examples likewise; None where they are the rows.
        """
        if self.chunk is None:
            return self._finish(self._kernel(params, first, second))
        return self._finish(self._one_by_one(params, first, second))

    def alone(self, params: Any, first: Arrays, second: Arrays | None) -> Any:
        """The same outside of traces; on the host where it takes several tiles.

        Args:
            params: Parameters.
            first: As for a call.
            second: As for a call.
        """
        kernel = self._kernel(params, first, second, self.plan)
        return self._finish(kernel) if isinstance(kernel, np.ndarray) else self._finished(kernel)

    def _kernel(
        self, params: Any, first: Arrays, second: Arrays | None, plan: Plan | None = None
    ) -> Any:
        """The kernel in the layout of the engine."""
        task = self.task.at(
            call_of(params, self.rows, first, self.columns, second, self.task.call.options)
        )
        [array] = run(task, plan)
        return task.finish(array)[0]

    def _one_by_one(self, params: Any, first: Arrays, second: Arrays | None) -> jax.Array:
        """Every example with its partner."""

        def one(mapped):
            row, column = jax.tree.map(lambda leaf: leaf[None], mapped)
            partner = None if second is None else (column, second[1])
            return self._kernel(params, (row, first[1]), partner)

        return jax.lax.map(one, (first[0], second and second[0]), batch_size=self.chunk)

    @functools.cached_property
    def _finished(self) -> Callable:
        return jax.jit(self._finish)

    def _finish(self, result: Any) -> Any:
        """The engine's layout -> that of neural-tangents."""
        labels1, labels2 = output_labels(self.axes, self.rows.labels, self.columns.labels)
        ties = self.ties
        diagonal = [labels1[a] for a, _ in ties.diagonal]
        free = [labels1[a] for a in ties.free_rows], [labels2[b] for b in ties.free_columns]
        columns = [] if self.chunk else list(self.columns.labels)
        labels = [*self.rows.labels, *free[0], *columns, *free[1], *diagonal]
        return self.axes.finish(
            result.reshape([self.axes.sizes[label] for label in labels]), labels
        )


def call_of(
    params: Any,
    rows: Half,
    first: Arrays,
    columns: Half,
    second: Arrays | None,
    options: Options,
) -> Call:
    """A call of the engine; without `second` the columns are the rows."""
    batch = None if second is None else columns.batch(second)
    return Call(params, rows.batch(first), batch, Preconditioner("none", None), options)


def output_labels(
    axes: KernelAxes, rows: tuple[int, ...], columns: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Labels of the outputs of rows and columns: all but those of the examples."""
    return (
        [label for label in axes.labels1 if label not in rows],
        [label for label in axes.labels2 if label not in columns],
    )


def tie_outputs(axes: KernelAxes, rows: tuple[int, ...], columns: tuple[int, ...]) -> TiedOutputs:
    """The tied axes of the outputs of one example, where rows and columns have these example labels."""
    labels1, labels2 = output_labels(axes, rows, columns)
    shapes = [tuple(axes.sizes[label] for label in labels) for labels in (labels1, labels2)]
    tied = [(a, labels2.index(label), label) for a, label in enumerate(labels1) if label in labels2]
    return TiedOutputs(
        *shapes,
        traced=tuple((a, b) for a, b, label in tied if label in axes.traced_labels),
        diagonal=tuple((a, b) for a, b, label in tied if label not in axes.traced_labels),
    )
