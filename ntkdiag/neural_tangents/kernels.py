"""The NTK and the NNGP of all outputs, from examples to the layout of neural-tangents.

The NTK of an output of f on x1 and on x2 is a kernel of the engine, its axes moved. The
full kernel of examples with outputs of shape (A, B) is K[n, a, b, m, a', b']. A tied axis keeps
only the entries where its two indices are equal: traced, their sum; diagonal, each of them once.

    tied        computed by the engine
    no axis     reduction="full"
    all axes    reduction="trace", or "diagonal", whose traced axes are summed afterwards
    some axes   a full kernel for each group of outputs with equal tied indices, in a loop

The axes are then ordered, and what was summed becomes a mean: `KernelAxes.laid_out`.

Where the examples themselves are tied, only the kernel of each with its partner is wanted: the
engine is mapped over these pairs, as many at a time as fit into memory. A whole batch is one
example whose outputs are all outputs of the batch.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import memory as budgets
from ntkdiag.engine import inputs
from ntkdiag.engine.inputs import Batch, Inputs, Memory
from ntkdiag.engine.ntk import kernel_array
from ntkdiag.engine.plan import make_plan
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import is_traced
from ntkdiag.neural_tangents.axes import KernelArray, KernelAxes
from ntkdiag.neural_tangents.examples import Examples
from ntkdiag.neural_tangents.route import Route


@dataclasses.dataclass(frozen=True, eq=False)
class NTK:
    """The NTK of one output on x1 and on x2."""

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
        if 0 in self.axes.rows + self.axes.columns or not sum(
            leaf.size for leaf in jax.tree.leaves(params)
        ):
            dtype = at_least_float32(jax.eval_shape(self.rows, params, *rows).dtype)
            # The mean over no outputs is NaN, as in numpy.
            return jnp.zeros(self.axes.shape, dtype) / jnp.asarray(self.axes.denominator, dtype)
        if columns is None and self.columns is not self.rows:
            columns = rows
        sides = [rows] if columns is None else [rows, columns]
        if self.is_of_partners:
            kernel = self._of_partners(params, sides)
        else:
            kernel = self._kernel(params, sides)
        # On the host it stays there.
        return self._lay_out(kernel) if isinstance(kernel, np.ndarray) else self._laid_out(kernel)

    @property
    def is_of_partners(self) -> bool:
        """Whether the examples of rows and columns are tied to each other."""
        return len(self.examples) == 2 and self.examples[0] == self.examples[1]

    @functools.cached_property
    def _outputs(self) -> "_Outputs":
        """The axes of the outputs of one example."""
        labels1, labels2 = list(self.axes.labels1), list(self.axes.labels2)
        if self.examples:
            labels1.remove(self.examples[0])
            labels2.remove(self.examples[1])
        return _Outputs(self.axes, labels1, labels2)

    def _kernel(self, params: PyTree, sides: list[Examples]) -> KernelArray:
        """[n m], [n m o], [n k m l], or by groups [n k m l D]."""
        if self._outputs.reduction is not None:
            return kernel_array(self._inputs(params, sides))
        n_diagonal = self._outputs.length(self._outputs.diagonal)
        n_traced = self._outputs.length(self._outputs.traced)

        def of_group(number: int | Array) -> KernelArray:
            return kernel_array(self._inputs(params, sides, number))

        # The groups of one diagonal index follow each other, and are added up.
        if is_traced((params, sides)):
            return _stacked_in_a_trace(of_group, n_diagonal, n_traced)
        stacked = []
        for first in range(0, n_diagonal * n_traced, n_traced):
            total = functools.reduce(operator.add, map(of_group, range(first, first + n_traced)))
            # A budget is for one kernel on the device.
            if self.memory is not None and n_diagonal > 1 and not is_traced(total):
                total = np.asarray(total)
            stacked.append(total)
        stack = np.stack if isinstance(stacked[0], np.ndarray) else jnp.stack
        return stack(stacked, axis=-1)

    def _inputs(self, params: PyTree, sides: list[Examples], group: int | Array = 0) -> Inputs:
        """The inputs of the engine, for a group of outputs where there are groups."""
        functions, keywords = [self.rows, self.columns], {}
        if self._outputs.reduction is None:
            functions, keywords = self._functions_of_groups, {"group": jnp.asarray(group)}
        batches = []
        for function, (mapped, shared) in zip(functions, sides, strict=False):
            n = jax.tree.leaves(mapped)[0].shape[0]
            batches.append(Batch(function, mapped, {"shared": shared, **keywords}, n))
        reduction = self._outputs.reduction or "full"
        return inputs.trace(
            params, batches, reduction=reduction, memory=self.memory, most_examples=self.tile
        )

    @functools.cached_property
    def _functions_of_groups(self) -> list[Callable[..., Array]]:
        """One group of the outputs on x1 and on x2: `(params, mapped, shared, group) -> [n k]`."""
        outputs = self._outputs
        rows = outputs.of_a_group(self.rows, outputs.labels1)
        shapes = [outputs.shape(labels) for labels in (outputs.labels1, outputs.labels2)]
        if self.columns is self.rows and shapes[0] == shapes[1]:
            return [rows, rows]
        return [rows, outputs.of_a_group(self.columns, outputs.labels2)]

    def _of_partners(self, params: PyTree, sides: list[Examples]) -> KernelArray:
        """The kernel of every example with its partner: [n *free of x1 *free of x2 *diagonal]."""
        first = [([leaf[:1] for leaf in mapped], shared) for mapped, shared in sides]
        of_pair = self._inputs(params, first)
        n = sides[0][0][0].shape[0]
        if of_pair.in_a_trace:  # a part of the caller's program
            return self._pair_by_pair(params, sides, n)
        budget = None if self.memory is None else budgets.budget(self.memory)
        outputs = self._outputs
        n_results = outputs.length(outputs.free1 + outputs.free2 + outputs.diagonal)
        bytes_of_pair = make_plan(of_pair, budget).peak_bytes + n_results * of_pair.dtype.itemsize
        if budget is None:
            budget = budgets.budget_for(n * bytes_of_pair)
        at_a_time = max(1, min(n, budget // bytes_of_pair, self.tile or n))
        return self._compiled_pair_by_pair(params, sides, at_a_time)

    @functools.cached_property
    def _compiled_pair_by_pair(self) -> Callable[..., KernelArray]:
        # The options for programs with reductions are right for all programs.
        options = compiler_options(reduces=True)
        return jax.jit(self._pair_by_pair, static_argnums=2, compiler_options=options)

    def _pair_by_pair(self, params: PyTree, sides: list[Examples], at_a_time: int) -> KernelArray:
        shared = [of_side[1] for of_side in sides]

        def of_pair(pair: list[list[Array]]) -> KernelArray:
            batches_of_one = jax.tree.map(lambda leaf: leaf[None], pair)
            return self._kernel(params, list(zip(batches_of_one, shared, strict=True)))

        return jax.lax.map(of_pair, [of_side[0] for of_side in sides], batch_size=at_a_time)

    @functools.cached_property
    def _laid_out(self) -> Callable[[Array], Array]:
        return jax.jit(self._lay_out)

    def _lay_out(self, kernel: KernelArray) -> KernelArray:
        """The layout of the engine -> that of neural-tangents."""
        outputs = self._outputs
        rows, columns = list(self.examples[:1]), list(self.examples[1:])
        if self.is_of_partners:
            columns = []
        # reduction="diagonal" has all outputs in the order of x1.
        tied = outputs.tied if outputs.reduction == "diagonal" else outputs.diagonal
        return self.axes.laid_out(kernel, [*rows, *outputs.free1, *columns, *outputs.free2, *tied])


@dataclasses.dataclass(frozen=True, eq=False)
class _Outputs:
    """The output axes of one example on x1 and on x2, by their labels."""

    axes: KernelAxes
    labels1: list[int]
    labels2: list[int]

    @property
    def tied(self) -> list[int]:
        """Labels of tied axes, in the order of x1."""
        return [label for label in self.labels1 if label in self.labels2]

    @property
    def traced(self) -> list[int]:
        """Labels of axes that are summed over."""
        return [label for label in self.tied if label in self.axes.traced_labels]

    @property
    def diagonal(self) -> list[int]:
        """Labels of axes that appear once."""
        return [label for label in self.tied if label not in self.axes.traced_labels]

    @property
    def free1(self) -> list[int]:
        """Labels of the axes on x1 that are not tied."""
        return [label for label in self.labels1 if label not in self.tied]

    @property
    def free2(self) -> list[int]:
        """Labels of the axes on x2 that are not tied."""
        return [label for label in self.labels2 if label not in self.tied]

    def shape(self, labels: list[int]) -> tuple[int, ...]:
        """The lengths of axes of these labels."""
        return tuple(self.axes.sizes[label] for label in labels)

    def length(self, labels: list[int]) -> int:
        """The product of their lengths."""
        return math.prod(self.shape(labels))

    @functools.cached_property
    def reduction(self) -> str | None:
        """The reduction of the engine that pairs these outputs; None where groups of them do."""
        # Output number o on x1 is number o on x2 where all axes but those of length 1 are tied, and
        # follow each other in one order.
        in_order_of_x2 = [label for label in self.labels2 if label in self.tied]
        if self.length(self.free1 + self.free2) == 1 and self.tied == in_order_of_x2:
            return "diagonal" if self.diagonal else "trace"
        return None if self.tied else "full"

    def of_a_group(self, function: Callable[..., Array], labels: list[int]) -> Callable[..., Array]:
        """The outputs whose diagonal and traced indices have this number: [n ...] -> [n k]."""
        tied = self.diagonal + self.traced
        shape = self.shape(labels)
        axes = [1 + labels.index(label) for label in tied]

        def of_group(
            params: PyTree, mapped: list[Array], shared: list[Array], group: Array
        ) -> Array:
            outputs = function(params, mapped, shared).reshape(-1, *shape)
            # [n ...] -> [n *tied *free] -> [n group k]
            outputs = jnp.moveaxis(outputs, axes, range(1, 1 + len(axes)))
            outputs = outputs.reshape(outputs.shape[0], self.length(tied), -1)
            return jax.lax.dynamic_index_in_dim(outputs, group, axis=1, keepdims=False)

        return of_group


def _stacked_in_a_trace(
    of_group: Callable[[Array], KernelArray], n_diagonal: int, n_traced: int
) -> Array:
    """The kernels of groups, those of one diagonal index added up: [n k m l D], by loops of XLA."""
    shape = jax.eval_shape(of_group, jnp.asarray(0))

    def of_diagonal(first: Array) -> Array:
        def with_group(number: Array, total: Array) -> Array:
            return total + of_group(first + number)

        return jax.lax.fori_loop(0, n_traced, with_group, jnp.zeros(shape.shape, shape.dtype))

    return jnp.moveaxis(jax.lax.map(of_diagonal, n_traced * jnp.arange(n_diagonal)), 0, -1)


def ntks(
    f: Callable[..., PyTree],
    axes: list[KernelAxes],
    route: Route,
    memory: Memory | None,
    tile: int | None,
) -> Callable[..., list[KernelArray]]:
    """The function of parameters, row and column examples that computes the NTK of every output."""
    kernels = []
    example_axes = [None] * len(axes) if route.axes is None else route.axes
    for number, (pair, axis) in enumerate(zip(axes, example_axes, strict=True)):
        rows = route.rows.output(f, number, axis)
        columns = rows
        if route.rows != route.columns:
            columns = route.columns.output(f, number, axis)
        examples = () if axis is None else (pair.labels1[axis], pair.labels2[axis])
        kernels.append(NTK(pair, rows, columns, examples, memory, tile))

    def compute(params: PyTree, rows: Examples, columns: Examples | None) -> list[KernelArray]:
        return [kernel(params, rows, columns) for kernel in kernels]

    return compute


def nngps(
    f: Callable[..., PyTree], axes: list[KernelAxes], route: Route
) -> Callable[..., list[KernelArray]]:
    """The same for the NNGP, f(x1) f(x2)^T; f is evaluated once for each."""
    of_rows, of_columns = route.rows.applied(f), route.columns.applied(f)

    @functools.partial(jax.jit, compiler_options=compiler_options(reduces=False))
    def compute(params: PyTree, rows: Examples, columns: Examples | None) -> list[KernelArray]:
        with jax.default_matmul_precision("highest"):
            outputs1 = jax.tree.leaves(of_rows(params, *rows))
            outputs2 = outputs1
            if columns is not None:
                outputs2 = jax.tree.leaves(of_columns(params, *columns))
            products: list[KernelArray] = []
            for y1, y2, pair in zip(outputs1, outputs2, axes, strict=True):
                product = jnp.einsum(y1, pair.labels1, y2, pair.labels2, pair.labels)
                products.append(product / pair.denominator)
        return products

    return compute
