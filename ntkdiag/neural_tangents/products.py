"""Kernels without the engine: from outputs alone, and by NTK-vector products (`implementation=2`)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _jax
from ntkdiag.engine.jacobian.channels_last import channels_last
from ntkdiag.neural_tangents.axes import KernelAxes
from ntkdiag.neural_tangents.output_pair import Arrays
from ntkdiag.neural_tangents.planning import Source
from ntkdiag.neural_tangents.vector_product import gradients_of, kernel_by_products


@dataclasses.dataclass(frozen=True, eq=False)
class Products:
    """A kernel between two outputs, column by column; called like a `Pair`.

    Attributes:
        f: The function.
        axes: Axes of the kernel.
        rows: Rows.
        columns: Columns.
        symmetric: Whether the columns are the rows.
    """

    f: Callable
    axes: KernelAxes
    rows: Source
    columns: Source
    symmetric: bool

    def __call__(self, params: Any, first: Arrays, second: Arrays | None) -> jax.Array:
        """The kernel, inside a trace.

        Args:
            params: Parameters.
            first: Row examples, and what they share.
            second: Column examples likewise; None where they are the rows.
        """
        second = first if second is None else second
        return channels_last(self._kernel)(params, first, second)

    def _kernel(self, params: Any, first: Arrays, second: Arrays) -> jax.Array:
        batch = self.rows.axis, self.columns.axis
        with jax.default_matmul_precision("highest"):
            if None not in batch and self.axes.labels1[batch[0]] == self.axes.labels2[batch[1]]:  # type: ignore[index]
                return self._one_by_one(params, first, second)
            rows = lambda p: _output(self.f, self.rows, first, self.axes.shape1, p)
            return self._finish(
                *kernel_by_products(rows, self._gradients(params, second), params, self.axes)
            )

    def _gradients(self, params: Any, arrays: Arrays) -> Callable[[tuple], Any]:
        """Index of an output of the columns -> its gradient; where examples do not interact, from its example alone."""
        source, axis = self.columns, self.columns.axis
        if axis is None:
            return gradients_of(
                lambda p: _output(self.f, source, arrays, self.axes.shape2, p), params
            )

        def gradient(index):
            example = jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index[axis], 1), arrays[0]
            )
            of_one = lambda p: source.cut.output(self.f, source.leaf, axis)(p, example, arrays[1])[
                0
            ]
            return gradients_of(of_one, params)((*index[:axis], *index[axis + 1 :]))

        return gradient

    def _one_by_one(self, params: Any, first: Arrays, second: Arrays) -> jax.Array:
        """Every example with its partner only."""
        without = self.rows.axis, self.columns.axis
        labels: list[int] = []

        def one(mapped):
            row, column = jax.tree.map(lambda leaf: leaf[None], mapped)
            rows, columns = (
                lambda p, source=source, arrays=arrays: source.cut.output(
                    self.f, source.leaf, source.axis
                )(p, *arrays)[0]
                for source, arrays in (
                    (self.rows, (row, first[1])),
                    (self.columns, (column, second[1])),
                )
            )
            gradient = gradients_of(columns, params)
            result, own = kernel_by_products(rows, gradient, params, self.axes, without)  # type: ignore[arg-type]
            labels[:] = own
            return result

        result = jax.lax.map(one, (first[0], second[0]))
        return self._finish(result, [self.axes.labels1[without[0]], *labels])  # type: ignore[index]

    def _finish(self, result: jax.Array, labels: list[int]) -> jax.Array:
        dtype = _jax.at_least_float32(result.dtype)
        return self.axes.finish(result.astype(dtype), labels)


@dataclasses.dataclass(frozen=True, eq=False)
class OutputProducts:
    """The NNGP between two outputs; called like a `Pair`.

    Attributes:
        f: The function.
        axes: Axes of the kernel.
        rows: Rows.
        columns: Columns.
        symmetric: Whether the columns are the rows.
    """

    f: Callable
    axes: KernelAxes
    rows: Source
    columns: Source
    symmetric: bool

    def __call__(self, params: Any, first: Arrays, second: Arrays | None) -> jax.Array:
        """The kernel, inside a trace.

        Args:
            params: Parameters.
            first: Row examples, and what they share.
            second: Column examples likewise; None where they are the rows.
        """
        axes = self.axes
        with jax.default_matmul_precision("highest"):
            rows = _output(self.f, self.rows, first, axes.shape1, params)
            columns = _output(
                self.f, self.columns, first if second is None else second, axes.shape2, params
            )
            return (
                jnp.einsum(rows, axes.labels1, columns, axes.labels2, axes.labels)
                / axes.denominator
            )


def _output(
    f: Callable, source: Source, arrays: Arrays, shape: tuple[int, ...], params: Any
) -> jax.Array:
    """One output of the whole batch."""
    y = source.cut.output(f, source.leaf, source.axis)(params, *arrays)
    return y.reshape(shape) if source.axis is None else jnp.moveaxis(y, 0, source.axis)
