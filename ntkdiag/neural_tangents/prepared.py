"""A kernel function at fixed shapes: everything checked, planned and compiled once."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _jax
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.neural_tangents.axes import KernelAxes
from ntkdiag.neural_tangents.cut import Cut
from ntkdiag.neural_tangents.inputs import widen
from ntkdiag.neural_tangents.output_pair import Pair
from ntkdiag.neural_tangents.products import OutputProducts, Products


@dataclasses.dataclass(frozen=True, eq=False)
class Empty:
    """A kernel without an entry or without a parameter; called like a `Pair`.

    Attributes:
        axes: Its axes.
        dtype: Its dtype.
        symmetric: Irrelevant.
    """

    axes: KernelAxes
    dtype: Any
    symmetric: bool = True

    def __call__(self, params: Any, first: Any, second: Any) -> jax.Array:
        """Zeros; NaN for the mean over no output at all, as in numpy.

        Args:
            params: Not used.
            first: Not used.
            second: Not used.
        """
        return jnp.zeros(self.axes.shape, self.dtype) / jnp.asarray(
            self.axes.denominator, self.dtype
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """Kernels of all outputs, ready for arguments of the shapes they were planned for.

    Attributes:
        per_input: Names of keyword arguments whose tuples of two are one value each.
        cuts: How the arguments of rows and of columns are cut into examples.
        kernels: One for every output or pair of outputs.
        arrange: From the list of kernels to the tree that is returned.
        devices: Over how many devices the rows are spread.
        on_host: Whether results are numpy arrays.
        closes_over_tracers: Whether f does: this is inside someone's trace then, also where no argument is traced.
    """

    per_input: frozenset[str]
    cuts: tuple[Cut, Cut]
    kernels: list[Pair | Products | OutputProducts | Empty]
    arrange: Callable[[list], Any]
    devices: int
    on_host: bool
    closes_over_tracers: bool

    def __call__(
        self, params: Any, rows: tuple[Any, dict], columns: tuple[Any, dict] | None
    ) -> Any:
        """The kernels.

        Args:
            params: Parameters.
            rows: x1 and its keyword arguments.
            columns: x2 and its keyword arguments; None where they are the rows.
        """
        arrays = (
            self.cuts[0].arrays(*rows),
            None if columns is None else self.cuts[1].arrays(*columns),
        )
        if self.closes_over_tracers or is_traced(params, arrays):
            return self.arrange(self._at_once(params, *arrays))
        if self.devices == 1 and all(
            isinstance(kernel, Pair) and kernel.in_steps for kernel in self.kernels
        ):
            arguments = self._examples(params, *arrays)
            results = [
                self._run(kernel.alone, *arguments, symmetric=kernel.symmetric)  # type: ignore[union-attr]
                for kernel in self.kernels
            ]
        elif not any(self._tiled):
            results = self._compiled(params, self._spread(arrays[0]), arrays[1])
        else:
            results = self._in_blocks(params, *arrays)
        return self.arrange([np.asarray(kernel) for kernel in results] if self.on_host else results)

    @functools.cached_property
    def _tiled(self) -> list[bool]:
        return [isinstance(kernel, Pair) and kernel.tiled for kernel in self.kernels]

    @functools.cached_property
    def _compiled(self) -> Callable:
        """Factors, products, reductions and layout as one program."""
        reduces = any(isinstance(kernel, Pair) and kernel.reduces for kernel in self.kernels)
        return jax.jit(self._at_once, compiler_options=_jax.compiler_options(reduces=reduces))

    def _spread(self, arrays: list) -> list:
        """Rows over devices, as many as divide them."""
        cut = self.cuts[0]
        count = max(d for d in range(1, self.devices + 1) if cut.n % d == 0)
        if count == 1:
            return arrays
        mesh = jax.sharding.Mesh(jax.local_devices()[:count], "n")
        spec = lambda axis: (
            jax.sharding.PartitionSpec(*[None] * axis, "n")
            if axis is not None
            else jax.sharding.PartitionSpec()
        )
        place = lambda leaf, axis: jax.device_put(
            leaf, jax.sharding.NamedSharding(mesh, spec(axis))
        )
        return [place(leaf, axis) for leaf, axis in zip(arrays, cut.axes, strict=True)]

    def _at_once(self, params: Any, first: list, second: list | None) -> list:
        arguments = self._examples(params, first, second)
        return [self._run(kernel, *arguments) for kernel in self.kernels]

    def _in_blocks(self, params: Any, first: list, second: list | None) -> list:
        arguments = self._examples(params, first, second)
        results = []
        for kernel, tiled in zip(self.kernels, self._tiled, strict=True):
            run = kernel.alone if tiled else kernel  # type: ignore[union-attr]
            found = self._run(run, *arguments, symmetric=kernel.symmetric)
            results.append(found if self.on_host else jnp.asarray(found))
        return results

    def _examples(self, params: Any, first: list, second: list | None) -> tuple:
        rows = self.cuts[0].examples(widen(first))
        return widen(params), rows, rows if second is None else self.cuts[1].examples(widen(second))

    def _run(
        self, kernel: Any, params: Any, rows: Any, columns: Any, symmetric: bool | None = None
    ) -> Any:
        symmetric = kernel.symmetric if symmetric is None else symmetric
        return kernel(params, rows, None if symmetric else columns)
