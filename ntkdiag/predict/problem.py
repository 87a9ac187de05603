"""What goes into a prediction, checked and laid out as matrices, and what comes out.

A full kernel couples all outputs: one column with a row for each example and output (n, o). A
reduced kernel stands for K kron I_C: a row for each example, and a column for each output.

    full       kernel [k k], k = n o    outputs [k 1]
    reduced    kernel [n n]             outputs [n o]    k = n, c = o

Likewise for the test examples, with l rows instead of k.
"""

import dataclasses
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ntkdiag import errors
from ntkdiag.arrays import AnyScalar, Number, as_array, is_concrete
from ntkdiag.kernel.kernel_argument import (
    KernelArgument,
    KernelLike,
    read,
    read_labels,
    read_square,
    refuse_trace,
)
from ntkdiag.losses import MSE
from ntkdiag.losses.loss_argument import denominator_of
from ntkdiag.pytree_dataclass import pytree

Columns: TypeAlias = Float[Array, "k c"]
TestColumns: TypeAlias = Float[Array, "l c"]


@pytree(
    "kernel",
    "noise_floor",
    "residual",
    "start",
    "cross",
    "start_test",
    "denominator",
)
@dataclasses.dataclass(frozen=True)
class Problem:
    """A regression problem in function space."""

    # `[k k]`, symmetrized; k = n o for a full kernel, n for a reduced one.
    kernel: Float[Array, "k k"]
    noise_floor: float  # resolution of its eigenvalues, relative to the largest
    # `[k c]`, f_0 - y; c = 1 for a full kernel, the number of columns for a reduced one.
    residual: Columns
    start: Columns  # `[k c]`, f_0
    cross: Float[Array, "l k"] | None  # `[l k]` test by train, or None
    start_test: TestColumns | None  # `[l c]`, or None
    denominator: Number  # d of the loss
    shape: tuple[int, ...]  # shape of y
    shape_test: tuple[int, ...]  # shape of the test outputs


def read_problem(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    *,
    kernel_test: KernelLike | None,
    f0: jax.typing.ArrayLike | None,
    f0_test: jax.typing.ArrayLike | None,
    loss: MSE,
) -> Problem:
    """Check the arguments of a prediction and lay them out as matrices."""
    # The training set: kernel, targets and initial outputs.
    y = as_array(y, "y")
    operand = read_square(kernel)
    refuse_trace(operand)
    labels = read_labels(y, operand)
    # Rows of a bare matrix may be examples, or examples times outputs.
    is_bare_matrix = operand.convention is None and operand.array.ndim == 2
    is_known = y.ndim == 2 or not is_bare_matrix
    denominator = denominator_of(loss, labels.shape if is_known else None)
    rows = operand.matrix.shape[0]
    dtype = operand.array.dtype
    # Outputs come back shaped like y: [n] where it is one number for each example.
    is_column = y.ndim != 2 and labels.shape[1] == 1
    shape = (labels.shape[0],) if is_column else labels.shape
    start = _lay_out(f0, "f0", shape, rows, dtype)

    # The test set, if there is one.
    cross, m = _read_cross(kernel_test, operand)
    shape_test = (m, *shape[1:])
    start_test = None
    if cross is not None:
        _require_both(f0, f0_test)
        rows_test = cross.shape[0]
        start_test = _lay_out(f0_test, "f0_test", shape_test, rows_test, dtype)
    return Problem(
        kernel=operand.symmetric_matrix,
        noise_floor=operand.resolution,
        residual=start - labels.reshape(rows, -1),
        start=start,
        cross=cross,
        start_test=start_test,
        denominator=denominator,
        shape=shape,
        shape_test=shape_test,
    )


def _lay_out(
    value: jax.typing.ArrayLike | None,
    name: str,
    shape: tuple[int, ...],
    rows: int,
    dtype: DTypeLike,
) -> Float[Array, "rows c"]:
    """Outputs of a shape as a matrix, 0 for None; refused where they do not fit."""
    if value is None:
        return jnp.zeros(shape, dtype).reshape(rows, -1)
    array = jnp.asarray(as_array(value, name), dtype)
    if array.shape[:1] != shape[:1] or array.size != math.prod(shape):
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape {shape}, like y",
            got=f"shape {array.shape}",
            do="Pass the model's outputs on the same examples.",
        )
    if is_concrete(array) and not np.isfinite(np.asarray(array)).all():
        raise errors.InvalidInputError(
            expected=f"finite `{name}`",
            got="NaN or Inf",
            do="Look for overflow in the model's outputs.",
        )
    return array.reshape(rows, -1)


def _require_both(f0: jax.typing.ArrayLike | None, f0_test: jax.typing.ArrayLike | None) -> None:
    """Refuse initial outputs of one of the two sets."""
    if (f0 is None) != (f0_test is None):
        raise errors.InvalidInputError(
            expected="`f0` and `f0_test`, or neither (both are 0 then)",
            got=f"only `{'f0' if f0_test is None else 'f0_test'}`",
            do="Pass f(params, x) and f(params, x_test).",
        )


def _read_cross(
    kernel: KernelLike | None, train: KernelArgument
) -> tuple[Float[Array, "l k"] | None, int]:
    """The kernel of test by training examples as a matrix, and the number of test examples."""
    if kernel is None:
        return None, 0
    cross = read(kernel, "kernel_test")
    array = cross.array
    columns = train.array.shape[1:]
    if array.ndim != train.array.ndim or array.shape[1:] != columns:
        raise errors.InvalidInputError(
            expected=f"`kernel_test` of shape (m, {', '.join(map(str, columns))})",
            got=f"shape {cross.array.shape}",
            do="Rows are test examples, columns the training examples: "
            "`ntk(f, params, x_test, x)`.",
        )
    _require_same_convention(train, cross)
    matrix = array.reshape(-1, train.matrix.shape[0])  # [m p n o] -> [(m p) (n o)]
    _refuse_transposed(train, cross, matrix)
    return matrix, array.shape[0]


def _require_same_convention(train: KernelArgument, test: KernelArgument) -> None:
    """Refuse kernels that were reduced in different ways."""
    a = train.convention
    b = test.convention
    if a is None or b is None:  # a bare array says nothing
        return
    if (a.reduction, a.n_outputs) != (b.reduction, b.n_outputs):
        raise errors.InvalidInputError(
            expected="both kernels in the same convention",
            got=f"reduction={a.reduction!r} (C={a.n_outputs}) and "
            f"reduction={b.reduction!r} (C={b.n_outputs})",
            do="Compute both with the same `reduction`.",
        )


def _refuse_transposed(
    train: KernelArgument, test: KernelArgument, matrix: Float[Array, "l k"]
) -> None:
    """Refuse a kernel of training by test examples, which has the digest of training rows."""
    if train.convention is None or test.convention is None:
        return
    # The digest of a kernel is that of its rows: that of the training examples stands beside a
    # symmetric kernel, or beside the transpose.
    has_training_rows = test.convention.probe == train.convention.probe
    if not has_training_rows or train.convention.probe is None:
        return
    if not is_concrete(matrix) or matrix.shape[0] != matrix.shape[1]:
        return
    # A symmetric one is the training kernel itself: tested on the training examples.
    values = np.asarray(matrix)
    if np.max(np.abs(values - values.T)) > 1e-3 * np.max(np.abs(values)):
        raise errors.InvalidInputError(
            expected="`kernel_test` with the test examples as rows",
            got="one with the training examples as rows",
            do="Compute it as `ntk(f, params, x_test, x)`.",
        )


def warn_above_critical(rate: Number, curvature: Number) -> None:
    """Warn of a rate above the critical one at lambda_max / D plus the penalty, where known."""
    if not (is_concrete(rate) and is_concrete(curvature)) or float(curvature) <= 0.0:
        return
    critical = 2.0 / float(curvature)
    if float(rate) > critical * (1 + 1e-6):
        errors.warn(
            f"{errors.current_call()}: learning_rate {float(rate):.6g} is above the critical "
            f"{critical:.6g}: the outputs grow without bound, as they would in training.",
            RuntimeWarning,
        )


@pytree("train", "test", "unlearned", "unresolved")
@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """Outputs of the linearized model.

    Attributes:
        train: `[... n o]`, shaped like y behind the axes of the time.
        test: `[... m o]` likewise; None without a test kernel.
        unlearned: Root mean square of the part of the initial residual that lies in modes whose
            eigenvalue is not resolved, and stays at t = infinity; None where it was not computed.
        unresolved: Number of those modes; None where it was not computed.
    """

    train: Float[Array, "..."]
    test: Float[Array, "..."] | None = None
    unlearned: AnyScalar | None = None
    unresolved: Int[Array, ""] | None = None

    def __repr__(self) -> str:
        test = "" if self.test is None else f", test {list(np.shape(self.test))}"
        left_out = ""
        if self.unlearned is not None and is_concrete(self.unlearned):
            unlearned = float(self.unlearned)
            left_out = f", residual in {self.unresolved} unresolved modes: {unlearned:.3g}"
        return f"Prediction(train {list(np.shape(self.train))}{test}{left_out})"
