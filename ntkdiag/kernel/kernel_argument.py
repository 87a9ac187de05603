"""How the diagnostics read a kernel: a `Kernel` that knows its convention, a `Spectrum`, an array.

`unpack` takes the argument apart, whatever it is: an array, a convention if it states one, and
whether rows and columns may be the same examples. `read` refuses what cannot be computed with, and
widens half precision; `read_square` also refuses what is not the kernel of a set of examples with
itself. What comes out is a `KernelArgument`.
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
from ntkdiag.arrays import AnyArray, as_array, is_concrete
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.kernel.kernel import Convention, Kernel
from ntkdiag.kernel.spectrum import Spectrum, decompose, require_decomposable
from ntkdiag.losses.targets import are_class_numbers, as_numbers, is_integer, read_targets

KernelLike: TypeAlias = Kernel | Spectrum | jax.typing.ArrayLike

_PASS_A_KERNEL = (
    "Pass a Kernel or a real array. `top_spectrum`, the rates and margins, `iterate_descent` and "
    "`integrate_flow` take operators."
)


@dataclasses.dataclass(frozen=True, eq=False)
class KernelArgument:
    """A kernel read for computing."""

    # `[n m]`, `[n o m p]`, or `[n m o]` for the diagonal kernel; at least float32.
    array: Float[Array, "..."]
    # Resolution of eigenvalues, relative to the largest: see `Convention.noise_floor`.
    resolution: float
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
        """`[(n o) (m p)]`; there is none of a diagonal kernel."""
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
    if reduction is not None and (array.ndim == 4) != (reduction == "full"):
        raise errors.InvalidInputError(
            expected=f"`{name}` with the axes its convention states: 4 for full, else fewer",
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
    require_symmetric(matrix, coarsest(operand.array, operand.convention))
    return operand


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


def require_symmetric(matrix: Float[AnyArray, "k k"], roundoff: float) -> None:
    """Refuse a matrix further from its transpose than arithmetic of this roundoff leaves it."""
    scale = np.abs(np.asarray(matrix)).max() if is_concrete(matrix) else np.nan
    if not 0 < scale < np.inf:  # traced, not finite or zero
        return
    # Divided by the largest entry: norms overflow at 1e20.
    scaled = np.asarray(matrix, np.promote_types(matrix.dtype, np.float32)) / scale
    difference = scaled - scaled.T
    # In a large kernel, a few wrong entries hardly move the norm: they are looked at, too.
    of_norms = np.linalg.norm(difference) / np.linalg.norm(scaled)
    asymmetry = max(of_norms, np.abs(difference).max())
    # Rounding leaves about one roundoff; mixed batch sizes up to 1e-6 in float32.
    tolerance = max(1e-4, 8 * roundoff)
    if asymmetry > tolerance:
        raise errors.InvalidInputError(
            expected=f"a symmetric kernel, ||K - K^T|| <= {tolerance:.0e} ||K||",
            got=f"K - K^T of {asymmetry:.2g} times K, in norm or in its largest entry",
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


def kernel_of(kernel: KernelLike, name: str = "kernel") -> Kernel | jax.typing.ArrayLike:
    """The kernel that a spectrum is of; any other argument as it is."""
    if not isinstance(kernel, Spectrum):
        return kernel
    if kernel.kernel is None:
        raise errors.InvalidInputError(
            expected=f"`{name}` in memory, or the spectrum of one",
            got="the largest eigenvalues of an operator",
            do=_PASS_A_KERNEL,
        )
    return kernel.kernel


def unpack(kernel: KernelLike, name: str) -> tuple[AnyArray, Convention | None, bool]:
    """A kernel taken apart: array as it came, convention, and whether it may be symmetric."""
    array = kernel = kernel_of(kernel, name)
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
    # Read as [n o m p] that would silently be another kernel. (With n = o too, they cannot be
    # distinguished.)
    shape = array.shape
    in_pairs = len(shape) == 4 and shape[0] == shape[1] and shape[2] == shape[3]
    if convention is None and in_pairs and shape[0] != shape[2]:
        raise errors.InvalidInputError(
            expected=f"`{name}` of shape [n o m p], with outputs next to their example",
            got=f"shape {tuple(shape)}, which is the layout [n m o p] of neural-tangents",
            do=f"Pass `{name}.transpose(0, 2, 1, 3)`.",
        )
    return array, convention, symmetric


# From a kernel to its `Spectrum`: for the user, and for every function that needs eigenvalues.
#
# Whoever passes a `Spectrum` has paid for the decomposition already, and gets it back as it is.
# Only where vectors are wanted and it has none is the kernel it keeps decomposed again.


@errors.public
def spectrum(kernel: KernelLike, *, vectors: bool = False) -> Spectrum:
    """Eigenvalues of a kernel, descending, and with them its ranks.

    Concrete kernels are decomposed in float64 on the host by divide and conquer (LAPACK syevd),
    tracers by `jnp.linalg.eigh` in their own precision; both from (K + K^T) / 2. The noise floor is
    set by what the kernel was computed in: float64 arithmetic does not bring back digits that a
    float32 kernel never had.

    A spectrum can be passed to every function of a kernel, which then does not decompose it again.
    Those that work with modes (`analysis.modes`, `analysis.leave_one_out`, `predict`) need
    the vectors; without them they decompose the kernel that the spectrum keeps.

    Cost: about 9 (NC)^3 operations with vectors, a third of that without.

    Args:
        kernel: A `Kernel`, a matrix `[n n]`, a full kernel `[n o n o]`, or their `Spectrum`.
        vectors: Also return the eigenvectors.

    Returns:
        The spectrum. A kernel with NaN or Inf gives ``status="nonfinite"``, not an exception.

    Raises:
        InvalidInputError: When the kernel is not square or not symmetric.

    Example:
        >>> import numpy as np
        >>> import ntkdiag
        >>> found = ntkdiag.spectrum(np.diag([3.0, 1.0]))
        >>> found.rank, round(found.stable_rank, 3)
        (2, 1.333)
    """
    if isinstance(kernel, Spectrum) and _holds(kernel, vectors):
        return kernel
    kernel = kernel_of(kernel)
    array, convention, symmetric = unpack(kernel, "kernel")
    matrix = square_matrix(array, symmetric)
    if is_concrete(matrix):  # before symmetry is looked at, which takes memory, too
        require_decomposable(matrix.shape[0], vectors=vectors)
    require_symmetric(matrix, coarsest(array, convention))
    resolution = noise_floor(array, convention, matrix.shape[0])
    kept = kernel if isinstance(kernel, Kernel) else array
    return decompose(matrix, resolution, vectors=vectors, kernel=kept)


def decomposed(operand: KernelArgument, *, vectors: bool = True) -> Spectrum:
    """The spectrum of a kernel that was read: the one passed, where it has what is wanted."""
    if operand.spectrum is not None and _holds(operand.spectrum, vectors):
        return operand.spectrum
    return decompose(operand.matrix, operand.resolution, vectors=vectors)


def _holds(spectrum: Spectrum, vectors: bool) -> bool:
    """Whether a spectrum has all eigenvalues, and the vectors where these are wanted."""
    return spectrum.is_complete and (spectrum.vectors is not None or not vectors)


# Labels beside a kernel, as numbers `[n o]` that fit its rows.
#
# What labels are is decided in `ntkdiag.losses.targets`, from the shape of the outputs. Here that
# shape is found: a full kernel `[n o m p]` and a convention state it.


def read_labels(
    y: jax.typing.ArrayLike, operand: KernelArgument, name: str = "y"
) -> Float[Array, "n o"]:
    """Targets for a kernel: regression values, one-hot rows, or class numbers where C is known."""
    numbers = as_numbers(y, name)
    n, o = operand.n_examples, operand.n_outputs
    # How many classes class numbers may name; None where the kernel does not say it.
    n_classes = o if operand.array.ndim == 4 else None
    if operand.convention is not None:
        n_classes = operand.convention.n_outputs
    # Class numbers become one-hot rows, where it is known how many classes there are.
    if n_classes is not None and are_class_numbers(numbers, (n, n_classes)):
        numbers = read_targets(numbers, (n, n_classes), name)
    if n_classes is None and is_integer(numbers) and numbers.ndim == 1:
        raise errors.InvalidInputError(
            expected=f"`{name}` as floating point targets, since a bare array does not say how "
            "many classes there are",
            got=f"integers of shape {tuple(numbers.shape)}",
            do=f"Pass `jax.nn.one_hot({name}, n_classes)`, or `{name}.astype(float)` if these are "
            "targets.",
        )
    # Targets have to fit the axes of the kernel.
    targets = jnp.asarray(numbers, operand.array.dtype)
    if targets.shape == (n * o,):
        return targets.reshape(n, o)
    if targets.ndim == 2 and targets.shape[0] == n:
        # A matrix [n n] stands for every output: labels may have any number of columns.
        is_full = operand.array.ndim == 4
        if targets.shape[1] == o or not is_full:
            return targets
    raise errors.InvalidInputError(
        expected=f"`{name}` of shape {_accepted(operand, n_classes)}",
        got=f"shape {tuple(numbers.shape)}",
        do="Labels have one row for each probe example of the kernel.",
    )


def _accepted(operand: KernelArgument, n_classes: int | None) -> str:
    """The shapes that labels of this kernel may have, in words."""
    n = operand.n_examples
    if operand.array.ndim != 4:
        return f"({n},) or ({n}, C)"
    targets = f"({n}, {operand.n_outputs})"
    if n_classes is not None and n_classes > 1:
        return f"{targets}, or integer class numbers ({n},)"
    return targets
