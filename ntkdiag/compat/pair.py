"""The kernel between one output on x1 and one output on x2, by the tangent engine."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.compat.axes import KernelAxes
from ntkdiag.compat.grouping import Grouping
from ntkdiag.kernels import one_tile, tile_by_tile
from ntkdiag.kernels.gram import Gram
from ntkdiag.kernels.plan import Plan
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.task import Side, Task
from ntkdiag.kernels.tiles import Blocks
from ntkdiag.kernels.ways import Way

Arrays = tuple[list[Any], list[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Half:
    """Rows or columns: one output of f, traced by the engine.

    Attributes:
        f: One output as a function of parameters, examples and shared arrays.
        program: The engine's program of it.
        ways: How its parts are contracted.
        n: Number of examples; 1 for a whole batch.
        labels: Of the example axis in the kernel; empty for a whole batch.
    """

    f: Callable
    program: Program
    ways: tuple[Way, ...]
    n: int
    labels: tuple[int, ...]

    @property
    def n_outputs(self) -> int:
        """Outputs of one example."""
        return self.program.tangents.n_outputs

    @property
    def dtype(self) -> Any:
        """Dtype of the outputs."""
        return self.program.tangents.dtype

    def side(self, arrays: Arrays) -> Side:
        """These examples, as the engine's tiling takes them."""
        return Side(self.f, self.program, arrays[0], self.n, self.ways, {"shared": arrays[1]})


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A kernel between two outputs, planned; call it inside a trace, or `in_blocks`.

    Attributes:
        axes: Its axes.
        rows: Rows.
        columns: Columns.
        symmetric: Whether the columns are the rows.
        grouping: How outputs are reduced.
        gram: The engine's products.
        dtype: Of the kernel.
        chunk: Examples at a time where only the kernel of each example with its partner is wanted; None otherwise.
        blocks: Blocks of examples; None to compute everything at once.
        plan: The engine's plan where everything at once can go step by step; None where it cannot.
        call: For messages.
    """

    axes: KernelAxes
    rows: Half
    columns: Half
    symmetric: bool
    grouping: Grouping
    gram: Gram
    dtype: Any
    chunk: int | None
    blocks: Blocks | None
    plan: Plan | None
    call: str

    @property
    def reduces(self) -> bool:
        """Whether the compiler options of reductions apply, see `_compat.compiler_options`."""
        return self.rows.program.reduces or self.columns.program.reduces

    def __call__(self, params: Any, first: Arrays, second: Arrays | None) -> jax.Array:
        """The kernel, in the layout of neural-tangents.

        Args:
            params: Parameters.
            first: Row examples, and what they share.
            second: Column examples likewise; None where they are the rows.
        """
        kernel = self._block if self.chunk is None else self._one_by_one
        result = self._over_groups(functools.partial(kernel, params, first, second))
        return self._finish(result).astype(self.dtype)

    def in_blocks(self, params: Any, first: Arrays, second: Arrays | None) -> np.ndarray:
        """The same on the host, tile by tile.

        Args:
            params: Parameters.
            first: As for a call.
            second: As for a call.
        """
        groups = self.grouping.groups
        if groups is None:
            return self._finish(self._tiles(params, first, second, None))
        n_diagonal, n_traced, _ = groups[0].shape
        total: list[Any] = [0.0] * n_diagonal
        for d, t in itertools.product(range(n_diagonal), range(n_traced)):
            total[d] = total[d] + self._tiles(params, first, second, groups[0][d, t])
        return self._finish(np.stack(total))

    def in_steps(self, params: Any, first: Arrays, second: Arrays | None) -> jax.Array:
        """The same as a call, outside of traces, as the engine runs its own kernels.

        Args:
            params: Parameters.
            first: As for a call.
            second: As for a call.
        """
        assert self.plan is not None
        task = self._task(params, first, second, self.grouping.reduction(self.rows.n_outputs))
        return self._finished(one_tile.compute(task, self.plan)[0])

    @functools.cached_property
    def _finished(self) -> Callable:
        return jax.jit(lambda result: self._finish(result).astype(self.dtype))

    def _finish(self, result: Any) -> Any:
        """[D n k m l], or [n m], or [n m o] -> the kernel."""
        groups, first, second = self.grouping.labels
        columns = [] if self.chunk else list(self.columns.labels)
        labels = [*groups, *self.rows.labels, *first, *columns, *second]
        if self.grouping.contraction == "diagonal":
            labels = [*self.rows.labels, *columns, *groups]
        return self.axes.finish(result.reshape([self.grouping.sizes[label] for label in labels]), labels)

    def _over_groups(self, kernel: Callable) -> jax.Array:
        """Add up over traced groups, stack diagonal ones."""
        if self.grouping.groups is None:
            return kernel(None, None)
        indices = tuple(jnp.asarray(index) for index in self.grouping.groups)

        def of_one(traced):
            zero = jax.eval_shape(kernel, *(index[0] for index in traced))
            add = lambda total, index: (total + kernel(*index), None)
            return jax.lax.scan(add, jnp.zeros(zero.shape, zero.dtype), traced)[0]

        return jax.lax.map(of_one, indices)

    def _block(self, params: Any, first: Arrays, second: Arrays | None, index1: Any, index2: Any) -> jax.Array:
        """All examples with all: [n k m l], [n m] or [n m o]."""
        rows, n = self._factors(self.rows, params, first, index1)
        if second is None:
            return self.gram.symmetric(rows, self._shape(n, n))[0]
        columns, m = self._factors(self.columns, params, second, index2)
        return jnp.broadcast_to(self.gram(rows, columns)[0], self._shape(n, m))

    def _one_by_one(self, params: Any, first: Arrays, second: Arrays | None, index1: Any, index2: Any) -> jax.Array:
        """Every example with its partner: [n 1 k 1 l], [n 1 1] or [n 1 1 o]."""

        def one(mapped):
            row, column = jax.tree.map(lambda leaf: leaf[None], mapped)
            partner = None if second is None else (column, second[1])
            return self._block(params, (row, first[1]), partner, index1, index2)

        return jax.lax.map(one, (first[0], second and second[0]), batch_size=self.chunk)

    def _factors(self, half: Half, params: Any, arrays: Arrays, index: Any) -> tuple[list, int]:
        mapped, shared = arrays
        basis = self.grouping.basis(index, half.n_outputs, half.dtype)
        return half.program.factors(half.ways, params, basis, {"shared": shared}, mapped)[0], mapped[0].shape[0]

    def _shape(self, n: int, m: int) -> tuple[int, ...]:
        halves = enumerate((self.rows, self.columns))
        k, other = (self.grouping.directions(side, half.n_outputs) for side, half in halves)
        return {"full": (n, k, m, other), "trace": (n, m), "diagonal": (n, m, k)}[self.gram.contraction]

    def _tiles(self, params: Any, first: Arrays, second: Arrays | None, index: Any) -> np.ndarray:
        """One group by the engine's tiling."""
        reduction = self.grouping.reduction(self.rows.n_outputs)
        if index is not None:
            directions = np.eye(self.rows.n_outputs, dtype=self.rows.dtype)[index].T  # [C k]
            reduction = dataclasses.replace(reduction, source=directions)
        assert self.blocks is not None
        return tile_by_tile.compute(self._task(params, first, second, reduction), self.blocks, progress=False)[0]

    def _task(self, params: Any, first: Arrays, second: Arrays | None, reduction: Reduction) -> Task:
        columns = None if second is None else self.columns.side(second)
        return Task(self.rows.side(first), columns, params, {}, reduction, self.gram, [], None, False, self.call)
