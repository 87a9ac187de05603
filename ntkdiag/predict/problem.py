"""Kernels, targets and initial outputs, checked and laid out as matrices."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.denominator import denominator_of
from ntkdiag.kernel.labels import read_labels
from ntkdiag.kernel.operand import (
    KernelLike,
    Operand,
    is_concrete,
    read,
    read_square,
    refuse_trace,
)
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.predict.origin import Origin
from ntkdiag.scalars import Number


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "kernel",
        "noise_floor",
        "residual",
        "start",
        "cross",
        "start_test",
        "pull",
        "pull_test",
        "denominator",
    ],
    meta_fields=["shape", "shape_test", "full"],
)
@dataclasses.dataclass(frozen=True)
class Problem:
    """A regression problem in function space.

    Attributes:
        kernel: `[k k]`, symmetrised; k = n o for a full kernel, n for a reduced one.
        noise_floor: Resolution of its eigenvalues, relative to the largest.
        residual: `[k c]`, f_0 - y; c = 1 for a full kernel, the number of columns for a reduced one.
        start: `[k c]`, f_0.
        cross: `[l k]` test by train, or None.
        start_test: `[l c]`, or None.
        pull: `[k c]`, J theta_0, or None.
        pull_test: `[l c]`, or None.
        denominator: D of the loss.
        shape: Shape of y.
        shape_test: Shape of the test outputs.
        full: Whether outputs are coupled: the kernel is that of all outputs, not reduced.
    """

    kernel: jax.Array
    noise_floor: float
    residual: jax.Array
    start: jax.Array
    cross: jax.Array | None
    start_test: jax.Array | None
    pull: jax.Array | None
    pull_test: jax.Array | None
    denominator: Number
    shape: tuple[int, ...]
    shape_test: tuple[int, ...]
    full: bool


def read_problem(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    *,
    kernel_test: KernelLike | NTKOperator | None,
    f0: jax.typing.ArrayLike | None,
    f0_test: jax.typing.ArrayLike | None,
    origin: Origin | None,
    loss_denominator: Number | None,
) -> Problem:
    """Check the arguments of a prediction and lay them out as matrices.

    Cost: one pass over the kernels.

    Args:
        kernel: Train by train.
        y: `[n]` or `[n o]`.
        kernel_test: Test by train, or None.
        f0: f_0 on the training examples, shaped like y; None for 0.
        f0_test: f_0 on the test examples; None for 0.
        origin: J theta_0, or None.
        loss_denominator: D, or None for the number of examples.

    Returns:
        The problem.

    Raises:
        InvalidInputError: When arrays are not finite or do not fit each other, or conventions differ.
    """
    operand = read_square(kernel)
    refuse_trace(operand)
    denominator = (
        denominator_of(operand, loss_denominator) if loss_denominator is not None else None
    )
    operand, labels = read_labels(y, operand)
    if denominator is None:
        denominator = float(labels.shape[0]) if jnp.ndim(y) == 2 else denominator_of(operand, None)
    rows, dtype = operand.matrix.shape[0], operand.array.dtype
    shape = labels.shape if jnp.ndim(y) == 2 or labels.shape[1] > 1 else (labels.shape[0],)
    cross, m = _read_cross(kernel_test, operand)
    shape_test = (m, *shape[1:])

    def lay_out(value: Any, name: str, wanted: tuple[int, ...], matrix_rows: int) -> jax.Array:
        array = (
            jnp.zeros(wanted, dtype) if value is None else _read_outputs(value, name, wanted, dtype)
        )
        return array.reshape(matrix_rows, -1)

    lines = None if cross is None else cross.shape[0]
    start = lay_out(f0, "f0", shape, rows)
    if cross is None and (f0_test is not None or (origin is not None and origin.test is not None)):
        raise errors.InvalidInputError(
            expected="`kernel_test` beside outputs on test examples",
            got="None",
            do="Pass `ntk(f, params, x_test, x)`.",
        )
    if cross is not None and (f0 is None) != (f0_test is None):
        raise errors.InvalidInputError(
            expected="`f0` and `f0_test`, or neither (both are 0 then)",
            got=f"only `{'f0' if f0_test is None else 'f0_test'}`",
            do="Pass f(params, x) and f(params, x_test).",
        )
    require_origin(cross is not None, origin)
    return Problem(
        kernel=operand.symmetric_matrix,
        noise_floor=operand.noise_floor,
        residual=start - labels.reshape(rows, -1),
        start=start,
        cross=cross,
        start_test=None if lines is None else lay_out(f0_test, "f0_test", shape_test, lines),
        pull=None if origin is None else lay_out(origin.train, "origin.train", shape, rows),
        pull_test=None
        if origin is None or lines is None
        else lay_out(origin.test, "origin.test", shape_test, lines),
        denominator=denominator,
        shape=shape,
        shape_test=shape_test,
        full=operand.array.ndim == 4 or rows != shape[0],
    )


def require_origin(tests: bool, origin: Origin | None) -> None:
    """Refuse an origin without the test examples that are asked for.

    Args:
        tests: Whether they are.
        origin: The origin, or None.

    Raises:
        InvalidInputError: When it holds nothing for them.
    """
    if tests and origin is not None and origin.test is None:
        raise errors.InvalidInputError(
            expected="an `origin` with the test examples, beside `kernel_test`",
            got="one of the training examples only",
            do="Make it by origin(f, params, x, x_test).",
        )


def _read_cross(
    kernel: KernelLike | NTKOperator | None, train: Operand
) -> tuple[jax.Array | None, int]:
    if kernel is None:
        return None, 0
    if isinstance(kernel, NTKOperator):
        raise errors.InvalidInputError(
            expected="`kernel_test` as an array, like the kernel",
            got="an NTKOperator",
            do="Pass `ntk(f, params, x_test, x)`, or NTKOperator(f, params, x) as the kernel too.",
        )
    cross = read(kernel, "kernel_test")
    n, o = train.n_examples, train.n_outputs
    array = cross.array
    if (
        array.ndim == 2
        and train.array.ndim == 4
        and array.shape[1] == n * o
        and array.shape[0] % o == 0
    ):
        array = array.reshape(-1, o, n, o)
    if array.ndim != train.array.ndim or array.shape[1:] != (train.array.shape[1:]):
        raise errors.InvalidInputError(
            expected=f"`kernel_test` of shape {('m', *train.array.shape[1:])}".replace("'", ""),
            got=f"shape {cross.array.shape}",
            do="Rows are test examples, columns the training examples: `ntk(f, params, x_test, x)`.",
        )
    a, b = train.convention, cross.convention
    if a is not None and b is not None and (a.reduction, a.n_outputs) != (b.reduction, b.n_outputs):
        raise errors.InvalidInputError(
            expected="both kernels in the same convention",
            got=f"reduction={a.reduction!r} (C={a.n_outputs}) and reduction={b.reduction!r} (C={b.n_outputs})",
            do="Compute both with the same `reduction`.",
        )
    matrix = array.reshape(-1, n * o)
    turned = a is not None and b is not None and a.probe == b.probe and a.probe is not None
    if turned and is_concrete(cross.array) and matrix.shape[0] == matrix.shape[1]:
        values = np.asarray(cross.array).reshape(matrix.shape)
        if np.max(np.abs(values - values.T)) > 1e-3 * np.max(np.abs(values)):
            raise errors.InvalidInputError(
                expected="`kernel_test` with the test examples as rows",
                got="one with the training examples as rows",
                do="Compute it as `ntk(f, params, x_test, x)`.",
            )
    return matrix, array.shape[0]


def _read_outputs(value: Any, name: str, wanted: tuple[int, ...], dtype: Any) -> jax.Array:
    array = jnp.asarray(value, dtype)
    if array.shape[:1] != wanted[:1] or array.size != np.prod(wanted):
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape {wanted}, like y",
            got=f"shape {array.shape}",
            do="Pass the model's outputs on the same examples.",
        )
    if is_concrete(array) and not np.isfinite(np.asarray(array)).all():
        raise errors.InvalidInputError(
            expected=f"finite `{name}`",
            got="NaN or Inf",
            do="Look for overflow in the model's outputs.",
        )
    return array
