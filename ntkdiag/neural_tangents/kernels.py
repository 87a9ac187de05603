"""The NTK and the NNGP of all outputs, from examples to the layout of neural-tangents.

The NTK between an output of f on x1 and one on x2 is a kernel of the engine, its axes moved:

1. Tied axes, without those of the examples, are the engine's `TiedOutputs`.
2. The engine computes K[n, *free of x1, m, *free of x2, *diagonal]: what is tied is never formed.
3. The axes are ordered, and what was summed becomes a mean: `KernelAxes.laid_out`.

Where the examples themselves are tied, only the kernel of each with its partner is wanted: step 2
is mapped over these pairs, as many at a time as fit into memory. A whole batch is one example whose
outputs are all outputs of the batch.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import _jax
from ntkdiag import memory as budgets
from ntkdiag.engine.calls.call import Batch, Call, Memory, Options
from ntkdiag.engine.calls.preconditioner import Preconditioner
from ntkdiag.engine.ntk import kernel_array
from ntkdiag.engine.planning.planner import make_plan
from ntkdiag.engine.planning.task import Task
from ntkdiag.engine.tracing.program import trace
from ntkdiag.kernel.tied_outputs import TiedOutputs
from ntkdiag.neural_tangents.axes import KernelArray, KernelAxes
from ntkdiag.neural_tangents.examples import Examples
from ntkdiag.neural_tangents.route import Route

# Which output of the rows, which of the columns.
Outputs: TypeAlias = tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class NTK:
    """The NTK between one output on x1 and one on x2."""

    axes: KernelAxes  # its axes
    rows: Callable[..., Array]  # the output on x1: `(params, mapped, shared) -> [n ...]`
    # The output on x2; the very function `rows` where both are cut alike.
    columns: Callable[..., Array]
    # Labels of the example axes of rows and columns; empty for whole batches.
    examples: tuple[int, ...]
    memory: Memory | None  # budget as the user gave it
    tile: int | None  # most examples of a tile; None for as many as fit

    def __call__(self, params: PyTree, rows: Examples, columns: Examples | None) -> KernelArray:
        """The kernel, on the host where it takes several tiles; `columns` are None for x1."""
        if 0 in self.axes.rows + self.axes.columns or not _count(params):
            dtype = _jax.at_least_float32(jax.eval_shape(self.rows, params, *rows).dtype)
            # The mean over no output at all is NaN, as in numpy.
            return jnp.zeros(self.axes.shape, dtype) / jnp.asarray(self.axes.denominator, dtype)
        if columns is None and self.columns is not self.rows:
            columns = rows
        sides = [rows] if columns is None else [rows, columns]
        if self.is_of_partners:
            kernel = self._of_partners(params, sides)
        else:
            kernel = kernel_array(self._call(params, *sides))
        # On the host it stays there.
        return self._lay_out(kernel) if isinstance(kernel, np.ndarray) else self._laid_out(kernel)

    @property
    def is_of_partners(self) -> bool:
        """Whether the examples of rows and columns are tied to each other."""
        return len(self.examples) == 2 and self.examples[0] == self.examples[1]

    @functools.cached_property
    def ties(self) -> TiedOutputs:
        """The tied axes of the outputs of one example."""
        labels1, labels2 = self._output_labels
        traced, diagonal = [], []
        for axis, label in enumerate(labels1):
            if label in labels2:
                tied = traced if label in self.axes.traced_labels else diagonal
                tied.append((axis, labels2.index(label)))
        sizes = self.axes.sizes
        return TiedOutputs(
            rows=tuple(sizes[label] for label in labels1),
            columns=tuple(sizes[label] for label in labels2),
            traced=tuple(traced),
            diagonal=tuple(diagonal),
        )

    @functools.cached_property
    def _output_labels(self) -> tuple[list[int], list[int]]:
        """Labels of the outputs of one example, of the rows and of the columns."""
        labels1, labels2 = list(self.axes.labels1), list(self.axes.labels2)
        if self.examples:
            labels1.remove(self.examples[0])
            labels2.remove(self.examples[1])
        return labels1, labels2

    def _call(self, params: PyTree, rows: Examples, columns: Examples | None = None) -> Call:
        """The call of the engine."""
        options = Options(
            reduction=self.ties,
            examples="independent",
            memory=self.memory,
            check=False,
            most_examples=self.tile,
        )
        of_columns = None
        if columns is not None:
            of_columns = Batch(self.columns, columns[0], {"shared": columns[1]})
        of_rows = Batch(self.rows, rows[0], {"shared": rows[1]})
        return Call(params, of_rows, of_columns, Preconditioner("none", None), options)

    def _of_partners(self, params: PyTree, sides: list[Examples]) -> KernelArray:
        """The kernel of every example with its partner: [n *free of x1 *free of x2 *diagonal]."""
        first = [([leaf[:1] for leaf in mapped], shared) for mapped, shared in sides]
        call = self._call(params, *first)
        task = Task.of(call, *trace(call))
        n = sides[0][0][0].shape[0]
        if task.traced:  # a part of the caller's program
            return self._pair_by_pair(params, sides, n)
        budget = None if self.memory is None else budgets.budget(self.memory)
        bytes_of_pair = max(1, make_plan(task, budget).peak_bytes)
        if budget is None:
            budget = budgets.budget_for(n * bytes_of_pair)
        at_a_time = max(1, min(n, budget // bytes_of_pair, self.tile or n))
        return self._compiled_pair_by_pair(params, sides, at_a_time)

    @functools.cached_property
    def _compiled_pair_by_pair(self) -> Callable[..., KernelArray]:
        # The options for programs with reductions are right for any.
        options = _jax.compiler_options(reduces=True)
        return jax.jit(self._pair_by_pair, static_argnums=2, compiler_options=options)

    def _pair_by_pair(self, params: PyTree, sides: list[Examples], at_a_time: int) -> KernelArray:
        shared = [of_side[1] for of_side in sides]

        def of_pair(pair: list[list[Array]]) -> KernelArray:
            batches_of_one = jax.tree.map(lambda leaf: leaf[None], pair)
            return kernel_array(self._call(params, *zip(batches_of_one, shared, strict=True)))

        return jax.lax.map(of_pair, [of_side[0] for of_side in sides], batch_size=at_a_time)

    @functools.cached_property
    def _laid_out(self) -> Callable[[Array], Array]:
        return jax.jit(self._lay_out)

    def _lay_out(self, kernel: KernelArray) -> KernelArray:
        """The layout of the engine -> that of neural-tangents."""
        labels1, labels2 = self._output_labels
        free1 = [labels1[axis] for axis in self.ties.free_rows]
        free2 = [labels2[axis] for axis in self.ties.free_columns]
        diagonal = [labels1[axis] for axis, _ in self.ties.diagonal]
        rows, columns = list(self.examples[:1]), list(self.examples[1:])
        if self.is_of_partners:
            columns = []
        return self.axes.laid_out(kernel, [*rows, *free1, *columns, *free2, *diagonal])


def _count(params: PyTree) -> int:
    """How many parameters there are."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def ntks(
    f: Callable[..., PyTree],
    axes: dict[Outputs, KernelAxes],
    route: Route,
    memory: Memory | None,
    tile: int | None,
) -> Callable[..., list[KernelArray]]:
    """The function of parameters, row and column examples that computes the NTK of every pair."""
    kernels = []
    for (i, j), own in axes.items():
        axis_i, axis_j = (None, None) if route.axes is None else (route.axes[i], route.axes[j])
        rows = route.rows.output(f, i, axis_i)
        columns = rows
        if i != j or route.rows != route.columns:
            columns = route.columns.output(f, j, axis_j)
        examples = ()
        if axis_i is not None and axis_j is not None:
            examples = own.labels1[axis_i], own.labels2[axis_j]
        kernels.append(NTK(own, rows, columns, examples, memory, tile))

    def compute(params: PyTree, rows: Examples, columns: Examples | None) -> list[KernelArray]:
        return [kernel(params, rows, columns) for kernel in kernels]

    return compute


def nngps(
    f: Callable[..., PyTree], axes: dict[Outputs, KernelAxes], route: Route
) -> Callable[..., list[KernelArray]]:
    """The same for the NNGP, f(x1) f(x2)^T; f is evaluated once for each."""
    of_rows, of_columns = route.rows.applied(f), route.columns.applied(f)

    @functools.partial(jax.jit, compiler_options=_jax.compiler_options(reduces=False))
    def compute(params: PyTree, rows: Examples, columns: Examples | None) -> list[KernelArray]:
        with jax.default_matmul_precision("highest"):
            outputs1 = jax.tree.leaves(of_rows(params, *rows))
            outputs2 = outputs1
            if columns is not None:
                outputs2 = jax.tree.leaves(of_columns(params, *columns))
            products: list[KernelArray] = []
            for (i, j), own in axes.items():
                operands = outputs1[i], own.labels1, outputs2[j], own.labels2, own.labels
                products.append(jnp.einsum(*operands) / own.denominator)
        return products

    return compute
