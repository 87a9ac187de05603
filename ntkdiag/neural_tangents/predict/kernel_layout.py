"""Kernels laid out as `zip(y.shape, y.shape)` without traced axes, as matrices, and outputs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.arrays import as_array
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.neural_tangents.axes import AxesLike, read_axes

AnyArray: TypeAlias = jax.Array | np.ndarray
# Numbers as a user writes them.
Numbers: TypeAlias = jax.typing.ArrayLike | Sequence
KernelNumbers: TypeAlias = Kernel | Numbers


@dataclasses.dataclass(frozen=True)
class Layout:
    """How outputs `[n ...]` become `[r c]`: r runs over kernel axes, c over traced ones."""

    shape: tuple[int, ...]  # shape of the training outputs
    traced: tuple[int, ...]  # axes the kernel lacks: it stands for K kron I along them

    @property
    def kept(self) -> tuple[int, ...]:
        """Axes of the kernel."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.traced)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Their lengths."""
        return tuple(self.shape[axis] for axis in self.kept)

    def columns(
        self, outputs: Numbers | None, name: str, shape: tuple[int, ...] | None = None
    ) -> AnyArray:
        """Outputs, or what is broadcast to them (None is 0), as `[r c]`."""
        wanted = self.shape if shape is None else shape
        outputs = 0.0 if outputs is None else outputs
        if isinstance(outputs, int | float):
            outputs = np.asarray(outputs, jnp.result_type(float))
        outputs = array(outputs, name)
        lengths = zip(outputs.shape, wanted, strict=False)
        fits = outputs.ndim == len(wanted) and all(n in (1, m) for n, m in lengths)
        if outputs.ndim and not fits:
            raise errors.InvalidInputError(
                expected=f"`{name}` of shape {wanted}, or one number",
                got=f"shape {tuple(outputs.shape)}",
                do="Outputs have the shape of the targets.",
            )
        library = jnp if isinstance(outputs, jax.Array) else np
        spread = library.broadcast_to(outputs, wanted)
        # [n ...] -> [kept ... traced ...] -> [r c]
        rows = math.prod(wanted[axis] for axis in self.kept)
        return spread.transpose((*self.kept, *self.traced)).reshape(rows, -1)

    def read_test(
        self, fx_test_0: Numbers | None, k_test_train: KernelNumbers | None
    ) -> tuple[AnyArray | None, AnyArray | None, tuple[int, ...]]:
        """Test kernel as a matrix, initial test outputs as columns, and their shape."""
        if fx_test_0 is None:
            return None, None, ()
        if k_test_train is None:
            raise errors.InvalidInputError(
                expected="`k_test_train` beside `fx_test_0`",
                got="None",
                do="Pass ntk_fn(x_test, x_train, params).",
            )
        kernel, kept = array(k_test_train, "k_test_train"), self.kept_shape
        if kernel.ndim != 2 * len(kept) or tuple(kernel.shape[1::2]) != kept or 0 in kernel.shape:
            expected = str(_zipped(("m", *kept[1:]), kept)).replace("'", "")
            raise errors.InvalidInputError(
                expected=f"`k_test_train` of shape {expected}",
                got=f"shape {tuple(kernel.shape)}",
                do="It is zip(y_test.shape, y_train.shape) without the trace_axes.",
            )
        shape = list(self.shape)
        for axis, length in zip(self.kept, kernel.shape[::2], strict=True):
            shape[axis] = length
        cross = unzip(kernel).reshape(-1, math.prod(kept))  # [l r]
        return cross, self.columns(fx_test_0, "fx_test_0", tuple(shape)), tuple(shape)

    def outputs(self, matrix: AnyArray, shape: tuple[int, ...] | None = None) -> AnyArray:
        """`[... r c]` back to `[... n ...]`: the inverse of `columns`."""
        wanted = self.shape if shape is None else shape
        lead, order = matrix.ndim - 2, (*self.kept, *self.traced)
        split = matrix.reshape(*matrix.shape[:lead], *(wanted[axis] for axis in order))
        back = sorted(range(len(order)), key=order.__getitem__)
        return split.transpose((*range(lead), *(lead + k for k in back)))


def array(value: KernelNumbers, name: str) -> AnyArray:
    """Numbers as a numpy or JAX array; a `Kernel`, full or a mean, in neural-tangents' layout."""
    return as_array(_of_kernel(value) if isinstance(value, Kernel) else value, name)


def read_training(
    k_train_train: KernelNumbers, y_train: Numbers, trace_axes: AxesLike
) -> tuple[Layout, AnyArray, AnyArray]:
    """The layout, the training kernel as a matrix [r r], and the targets."""
    kernel = array(k_train_train, "k_train_train")
    y = array(y_train, "y_train")
    # In the 32-bit mode targets are no more precise than the kernel: rows of `np.eye` are float64.
    is_wide = isinstance(y, np.ndarray) and y.dtype == np.float64 and kernel.dtype != np.float64
    if is_wide and not jax.config.read("jax_enable_x64"):
        y = y.astype(kernel.dtype)
    shape = tuple(y.shape)
    axes = read_axes(trace_axes, (), shape, shape, "")
    layout = Layout(shape, tuple(row for row, _ in axes.traced))
    expected = _zipped(layout.kept_shape, layout.kept_shape)
    if tuple(kernel.shape) != expected:
        raise errors.InvalidInputError(
            expected=f"`k_train_train` of shape {expected}, which is "
            f"zip(y_train.shape, y_train.shape) without trace_axes={trace_axes}",
            got=f"shape {tuple(kernel.shape)}",
            do="Pass the trace_axes that the kernel was computed with.",
        )
    return layout, unzip(kernel).reshape(-1, math.prod(layout.kept_shape)), y


def _of_kernel(kernel: Kernel) -> AnyArray:
    convention = kernel.convention
    if convention.reduction not in ("full", "mean") and convention.n_outputs > 1:
        raise errors.InvalidInputError(
            expected='a kernel with reduction="full" or "mean"',
            got=f'reduction="{convention.reduction}" of {convention.n_outputs} outputs',
            do='"mean" is neural-tangents\' trace_axes=(-1,), "full" is trace_axes=().',
        )
    if kernel.array.ndim == 4:
        return kernel.array.transpose(0, 2, 1, 3)  # [n o m p] -> [n m o p]
    return kernel.array


def unzip(kernel: AnyArray) -> AnyArray:
    """[n m o p ...] -> [n o ... m p ...]."""
    return kernel.transpose((*range(0, kernel.ndim, 2), *range(1, kernel.ndim, 2)))


def _zipped(first: tuple, second: tuple) -> tuple:
    return tuple(length for pair in zip(first, second, strict=True) for length in pair)
