"""How the diagnostics read a kernel: a `Kernel` that knows its convention, a `Spectrum`, an array.

`unpack` takes the argument apart, whatever it is: an array, a convention if it states one, and
whether rows and columns may be the same examples. `read` refuses what cannot be computed with, and
widens half precision; `read_square` refuses what is no kernel of a set of examples with itself,
too. What comes out is an `KernelArgument`.
"""

import dataclasses
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.arrays import as_array
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.kernel.kernel import Convention, Kernel
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.scalars import AnyArray, Number, is_concrete

KernelLike: TypeAlias = Kernel | Spectrum | jax.typing.ArrayLike

_PASS_A_KERNEL = (
    "Pass a Kernel or a real array. `top_spectrum`, the rates and margins, `iterate_descent` and "
    "`integrate_flow` take operators."
)

# Reductions that keep axes of outputs: [n o m p].
_FULL = ("full", "projection")


@dataclasses.dataclass(frozen=True)
class KernelArgument:
    """A kernel read for computing."""

    # `[n m]`, `[n o m p]`, or `[n m o]` for the diagonal kernel; at least float32.
    array: Float[Array, "..."]
    # Resolution of eigenvalues, relative to the largest: see `Convention.noise_floor`.
    noise_floor: float
    convention: Convention | None  # the kernel's convention; None for a bare array
    symmetric: bool  # false for a `Kernel` between two different sets of examples
    # The spectrum, where the kernel came as one, so that it need not be decomposed again; None
    # otherwise.
    spectrum: Spectrum | None = None

    @property
    def n_examples(self) -> int:
        """Number of row examples."""
        return self.array.shape[0]

    @property
    def n_outputs(self) -> int:
        """Outputs per example that the array holds: 1 for a reduced kernel or a bare matrix."""
        return self.array.shape[1] if self.array.ndim == 4 else 1

    @property
    def matrix(self) -> Float[Array, "rows columns"]:
        """`[(n o) (m p)]`."""
        rows = self.n_examples * self.n_outputs
        return self.array.reshape(rows, -1)

    @property
    def symmetric_matrix(self) -> Float[Array, "rows rows"]:
        """(K + K^T) / 2 as a matrix."""
        return 0.5 * (self.matrix + self.matrix.T)


def read(kernel: KernelLike, name: str = "kernel", *, diagonal: bool = False) -> KernelArgument:
    """Read one kernel, `[n m]` or `[n o m p]`; `diagonal` allows ``reduction="diagonal"``."""
    array, convention, symmetric = unpack(kernel, name)
    _require_axes(array, convention, name, diagonal)
    if is_concrete(array):
        _require_finite(array, name)
    # Outside x64 mode float64 becomes float32 here: the coarser of the two decides the resolution.
    converted = jnp.asarray(array, at_least_float32(array.dtype))
    rows = array.shape[0]
    if array.ndim == 4:
        rows *= array.shape[1]
    resolution = max(noise_floor(array, convention, rows), noise_floor(converted, convention, rows))
    handed_in = kernel if isinstance(kernel, Spectrum) else None
    return KernelArgument(converted, resolution, convention, symmetric, handed_in)


def _require_axes(
    array: AnyArray, convention: Convention | None, name: str, diagonal: bool
) -> None:
    """Refuse axes that no kernel has, or that its convention does not state."""
    reduction = None if convention is None else convention.reduction
    is_diagonal = reduction == "diagonal" and array.ndim == 3
    is_known = array.ndim in (2, 4) or (is_diagonal and diagonal)
    if not is_known or 0 in array.shape:
        got = f"shape {tuple(array.shape)}"
        do = "Pass one kernel at a time."
        if is_diagonal:
            got += ' with reduction="diagonal"'
            do = "Index a diagonal kernel by output: `kernel.array[..., o]`."
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape [n m] or [n o m p], not empty", got=got, do=do
        )
    if reduction is not None and (array.ndim == 4) != (reduction in _FULL):
        raise errors.InvalidInputError(
            expected=f"`{name}` with the axes its convention states: 4 for {' and '.join(_FULL)}, "
            "else fewer",
            got=f"shape {tuple(array.shape)} with reduction={reduction!r}",
            do="Pass the Kernel that `ntk` returned, or state the right Convention.",
        )


def _require_finite(array: AnyArray, name: str) -> None:
    """Refuse NaN and Inf."""
    n_bad = int(np.sum(~np.isfinite(np.asarray(array, np.float64))))
    if n_bad:
        raise errors.InvalidInputError(
            expected=f"a finite `{name}`",
            got=f"{n_bad} NaN or Inf of {array.size} entries",
            do="Look for NaN parameters or inputs, or overflow in a half-precision model.",
        )


def read_square(kernel: KernelLike) -> KernelArgument:
    """Read one kernel of a set of examples with itself, refused where it is not symmetric."""
    operand = read(kernel)
    matrix = square_matrix(operand.array, operand.symmetric)
    if is_concrete(matrix):
        on_host = np.asarray(matrix, np.float64)
        difference = on_host - on_host.T
        roundoff = coarsest(operand.array, operand.convention)
        # By the largest entry, too: of a large kernel, a few wrong entries hardly move the norm.
        for norm in (np.linalg.norm, _largest_entry):
            require_symmetric(norm(difference) / (norm(on_host) or 1.0), roundoff)
    return operand


def _largest_entry(matrix: Float[np.ndarray, "k k"]) -> float:
    """max |K_ij|, the norm that no sum hides an entry in."""
    return np.abs(matrix).max()


def square_matrix(array: AnyArray, symmetric: bool) -> Float[AnyArray, "k k"]:
    """A kernel as a matrix, refused if it is not one of examples with themselves."""
    shape = tuple(array.shape)
    half = len(shape) // 2
    is_square = len(shape) in (2, 4) and shape[:half] == shape[half:] and 0 not in shape
    if is_square and symmetric:
        k = math.prod(shape[:half])
        return array.reshape(k, k)  # [n o n o] -> [(n o) (n o)]
    got = f"shape {shape}"
    if is_square:
        got += " of a cross kernel"
    raise errors.InvalidInputError(
        expected="a square kernel [n n] or [n o n o] of examples with themselves",
        got=got,
        do="Compute it as `ntk(f, params, x)`, without `x2`; index a diagonal kernel by output.",
    )


def require_symmetric(asymmetry: Number, roundoff: float) -> None:
    """Refuse a matrix further from its transpose than arithmetic of this roundoff leaves it."""
    # Rounding leaves about one roundoff; mixed batch sizes up to 1e-6 in float32.
    tolerance = max(1e-4, 8 * roundoff)
    if asymmetry > tolerance:
        raise errors.InvalidInputError(
            expected=f"a symmetric kernel, ||K - K^T|| <= {tolerance:.0e} ||K||",
            got=f"||K - K^T|| = {asymmetry:.2g} ||K||",
            do="A cross kernel has no eigenvalues; otherwise compute all rows in one call and one "
            "batch size.",
        )


def refuse_gradient_kernel(operand: KernelArgument) -> None:
    """Refuse a kernel of the losses of single examples where that of f is meant."""
    if operand.convention is not None and operand.convention.reduction == "gradient":
        raise errors.InvalidInputError(
            expected="the tangent kernel of f",
            got='reduction="gradient": the kernel of the losses of single examples',
            do="Compute it as `ntk(f, params, x)`.",
        )


def refuse_trace(operand: KernelArgument) -> None:
    """Refuse a kernel that sums several outputs, where the scale of one output is wanted."""
    refuse_gradient_kernel(operand)
    convention = operand.convention
    if convention is None or convention.n_outputs == 1:
        return
    if convention.reduction in ("trace", "random-projections"):
        raise errors.InvalidInputError(
            expected="the full kernel, or a reduction on the scale of one output such as "
            'reduction="mean"',
            got=f'reduction="{convention.reduction}", which sums {convention.n_outputs} outputs',
            do='Use reduction="mean", which is the trace divided by C.',
        )


def noise_floor(array: AnyArray, convention: Convention | None, rows: int) -> float:
    """Resolution of the eigenvalues of a kernel of so many rows: see `Convention.noise_floor`."""
    return (convention or Convention()).noise_floor(_floating_dtype(array), rows)


def coarsest(array: AnyArray, convention: Convention | None) -> float:
    """The largest unit roundoff of all that a kernel went through."""
    return (convention or Convention()).coarsest(_floating_dtype(array))


def _floating_dtype(array: AnyArray) -> DTypeLike:
    """The dtype of a kernel; integers count as float32."""
    return array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.float32


def unpack(kernel: KernelLike, name: str) -> tuple[AnyArray, Convention | None, bool]:
    """A kernel taken apart: array as it came, convention, and whether it may be symmetric."""
    if isinstance(kernel, Spectrum):
        kernel = kernel.kernel
    array = kernel
    convention = None
    symmetric = True  # as far as a bare array says
    if isinstance(kernel, Kernel):
        array = kernel.array
        convention = kernel.convention
        symmetric = kernel.symmetric
    array = as_array(array, name, _PASS_A_KERNEL)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise errors.InvalidInputError(
            expected=f"real numbers in `{name}`", got=f"dtype {array.dtype}", do=_PASS_A_KERNEL
        )
    # neural-tangents lays kernels out as [n m o p], with n = m and o = p among the same examples.
    # Read as [n o m p] that would silently be another kernel. (Where n = o too, nothing tells.)
    shape = array.shape
    in_pairs = len(shape) == 4 and shape[0] == shape[1] and shape[2] == shape[3]
    if convention is None and in_pairs and shape[0] != shape[2]:
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape [n o m p], the outputs of an example beside it",
            got=f"shape {tuple(shape)}, which is the layout [n m o p] of neural-tangents",
            do=f"Pass `{name}.transpose(0, 2, 1, 3)`.",
        )
    return array, convention, symmetric
