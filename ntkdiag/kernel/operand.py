"""How the diagnostics read a kernel: a `Kernel` that knows its convention, or a bare array."""

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ntkdiag import _jax, errors
from ntkdiag.kernel.convention import Convention
from ntkdiag.kernel.kernel import Kernel

KernelLike: TypeAlias = Kernel | jax.typing.ArrayLike


@dataclasses.dataclass(frozen=True)
class Operand:
    """A kernel read for computing.

    Attributes:
        array: `[n m]`, `[n o m p]`, or `[n m o]` for the diagonal kernel; at least float32.
        noise_floor: Resolution of eigenvalues, relative to the largest: see `Convention.noise_floor`.
        convention: The kernel's convention; None for a bare array.
        symmetric: False for a `Kernel` between two different sets of examples.
    """

    array: jax.Array
    noise_floor: float
    convention: Convention | None
    symmetric: bool

    @property
    def n_examples(self) -> int:
        """Number of row examples."""
        return self.array.shape[0]

    @property
    def n_outputs(self) -> int:
        """Outputs per example that the array itself holds: 1 for a reduced kernel or a bare matrix."""
        return self.array.shape[1] if self.array.ndim == 4 else 1

    @property
    def matrix(self) -> jax.Array:
        """`[(n o) (m p)]`."""
        rows = self.n_examples * self.n_outputs
        return self.array.reshape(rows, -1)

    @property
    def symmetric_matrix(self) -> jax.Array:
        """(K + K^T) / 2 as a matrix."""
        return 0.5 * (self.matrix + self.matrix.T)


def is_concrete(value: Any) -> bool:
    """Whether a value is known now, that is outside `jax.jit`, `jax.vmap` and `jax.grad`."""
    return not isinstance(value, Tracer)


def read(
    kernel: KernelLike, name: str = "kernel", *, diagonal: bool = False, finite: bool = True
) -> Operand:
    """Read one kernel.

    Cost: one pass over the kernel for the check of finiteness (skipped under `jax.jit`).

    Args:
        kernel: A `Kernel`, a matrix `[n m]`, or a full kernel `[n o m p]`.
        name: The argument's name, for the message.
        diagonal: Whether the caller can use a kernel with ``reduction="diagonal"``.
        finite: Whether NaN and Inf are refused.

    Returns:
        The operand.

    Raises:
        InvalidInputError: When the kernel is no real array of 2 or 4 axes, is empty, or holds NaN or Inf.
    """
    array, convention, symmetric = unpack(kernel, name)
    is_diagonal = convention is not None and convention.reduction == "diagonal" and array.ndim == 3
    if not (array.ndim in (2, 4) or (is_diagonal and diagonal)) or 0 in array.shape:
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape [n m] or [n o m p], not empty",
            got=f"shape {tuple(array.shape)}"
            + (' with reduction="diagonal"' if is_diagonal else ""),
            do="Index a diagonal kernel by output: `kernel.array[..., o]`."
            if is_diagonal
            else "Pass one kernel at a time.",
        )
    full = ("full", "projection")
    if convention is not None and (array.ndim == 4) != (convention.reduction in full):
        raise errors.InvalidInputError(
            expected=f"`{name}` with the axes its convention states: 4 for {' and '.join(full)}, else fewer",
            got=f"shape {tuple(array.shape)} with reduction={convention.reduction!r}",
            do="Pass the Kernel that `ntk` returned, or state the right Convention.",
        )
    if finite and is_concrete(array):
        bad = int(np.sum(~np.isfinite(np.asarray(array, np.float64))))
        if bad:
            raise errors.InvalidInputError(
                expected=f"a finite `{name}`",
                got=f"{bad} NaN or Inf of {array.size} entries",
                do="Look for NaN parameters or inputs, or overflow in a half-precision model.",
            )
    wide = _jax.at_least_float32(array.dtype)
    rows = array.shape[0] * (array.shape[1] if array.ndim == 4 else 1)
    converted = jnp.asarray(array, wide)  # float64 becomes float32 in the 32-bit mode
    resolution = max(noise_floor(array, convention, rows), noise_floor(converted, convention, rows))
    return Operand(converted, resolution, convention, symmetric)


def read_square(
    kernel: KernelLike, name: str = "kernel", *, diagonal: bool = False, finite: bool = True
) -> Operand:
    """Read one kernel of a set of examples with itself.

    Cost: as `read`.

    Args:
        kernel: As for `read`.
        name: The argument's name, for the message.
        diagonal: As for `read`.
        finite: As for `read`; asymmetry is refused with it.

    Returns:
        The operand.

    Raises:
        InvalidInputError: As `read`, and when rows and columns are different examples.
    """
    operand = read(kernel, name, diagonal=diagonal, finite=finite)
    rows, columns = operand.array.shape[0], operand.array.shape[2 if operand.array.ndim == 4 else 1]
    square = rows == columns and (
        operand.array.ndim != 4 or operand.array.shape[1] == operand.array.shape[3]
    )
    if not (square and operand.symmetric):
        raise errors.InvalidInputError(
            expected=f"`{name}` of a set of examples with itself",
            got=f"shape {operand.array.shape}" + (" of a cross kernel" if square else ""),
            do="Compute it as `ntk(f, params, x)`, without `x2`.",
        )
    if finite and is_concrete(operand.array):
        rows = operand.n_examples * operand.n_outputs
        require_symmetric(np.asarray(operand.array).reshape(rows, rows), operand.noise_floor, name)
    return operand


def require_symmetric(matrix: np.ndarray, resolution: float, name: str = "kernel") -> None:
    """Refuse a matrix that is no kernel of a set of examples with itself; rounding of separate blocks is let through.

    Cost: one pass over the matrix.

    Args:
        matrix: `[n n]`, finite.
        resolution: Of its eigenvalues, relative to the largest.
        name: The argument's name, for the message.

    Raises:
        InvalidInputError: When it differs from its transpose.
    """
    apart, size = np.max(np.abs(matrix - matrix.T)), np.max(np.abs(matrix))
    if apart > max(10.0 * resolution, 1e-4) * size:  # mixed batch sizes leave up to 1e-6 in float32
        raise errors.InvalidInputError(
            expected=f"a symmetric `{name}`",
            got=f"entries that differ from the transpose by {apart / size:.2g} of the largest",
            do="Rows and columns must be the same examples in the same order, under the same parameters.",
        )


def refuse_trace(operand: Operand) -> None:
    """Refuse a kernel that sums outputs, where the scale of one output is wanted.

    Args:
        operand: The kernel.

    Raises:
        InvalidInputError: When it is a trace over several outputs.
    """
    convention = operand.convention
    if (
        convention is not None
        and convention.reduction in ("trace", "random-projections")
        and convention.n_outputs > 1
    ):
        raise errors.InvalidInputError(
            expected='the full kernel, or a reduction on the scale of one output such as reduction="mean"',
            got=f'reduction="{convention.reduction}", which sums {convention.n_outputs} outputs',
            do='Use reduction="mean", which is the trace divided by C.',
        )


def noise_floor(array: Any, convention: Convention | None, rows: int) -> float:
    """Resolution of the eigenvalues of a kernel, relative to the largest: see `Convention.noise_floor`.

    Cost: none.

    Args:
        array: The kernel's array; integers count as float32.
        convention: The kernel's convention, or None.
        rows: Rows of the kernel as a matrix.

    Returns:
        The resolution.
    """
    return (convention or Convention()).noise_floor(_floating(array), rows)


def coarsest(array: Any, convention: Convention | None) -> float:
    """The largest unit roundoff of all that a kernel went through; arguments as of `noise_floor`."""
    return (convention or Convention()).coarsest(_floating(array))


def _floating(array: Any) -> Any:
    return array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.float32


def unpack(kernel: KernelLike, name: str) -> tuple[Any, Convention | None, bool]:
    """Split a kernel into array, convention and symmetry.

    Cost: none.

    Args:
        kernel: A `Kernel` or anything `numpy.asarray` takes.
        name: The argument's name, for the message.

    Returns:
        The array as it came (numpy or JAX), the convention or None, and whether rows and columns may be the same.

    Raises:
        InvalidInputError: When the entries are not real numbers.
    """
    if isinstance(kernel, Kernel):
        array, convention, symmetric = kernel.array, kernel.convention, kernel.symmetric
    else:
        array, convention, symmetric = kernel, None, True
    if not isinstance(array, jax.Array | np.ndarray):
        array = np.asarray(array)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise errors.InvalidInputError(
            expected=f"real numbers in `{name}`",
            got=f"dtype {array.dtype}" if array.dtype != object else type(kernel).__name__,
            do="Pass a Kernel or a real array. `top_spectrum`, the rates and margins, `gradient_flow`, "
            "`gradient_descent`, `iterate_descent` and `integrate_flow` take operators.",
        )
    if (
        convention is None
        and array.ndim == 4
        and array.shape[0] == array.shape[1] != array.shape[2] == array.shape[3]
    ):
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape [n o m p], the outputs of an example beside it",
            got=f"shape {tuple(array.shape)}, which is the layout [n m o p] of neural-tangents",
            do=f"Pass `{name}.transpose(0, 2, 1, 3)`.",
        )
    return array, convention, symmetric
