"""The empirical NTK as a value that knows its convention.

A kernel is an array with what its numbers mean. It behaves as the array where one is expected, has
a matrix form for linear algebra, and prints, plots and exports itself.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from ntkdiag import display, errors
from ntkdiag.arrays import as_array
from ntkdiag.kernel.convention import Convention
from ntkdiag.kernel.reduction import KernelArray
from ntkdiag.pytree_dataclass import pytree


@pytree("array", "standard_error", "leaves")
@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """An empirical neural tangent kernel.

    Its arrays are of JAX where it was computed in one block, and of numpy, on the host, where it
    was computed in several. They are leaves of a pytree: kernels go through transformations of JAX.

    Attributes:
        array: The numbers, laid out as `convention.reduction` says (see `Convention`).
        convention: Reduction over outputs, mode, precision, probe.
        symmetric: True when rows and columns are the same examples.
        standard_error: Of each number, where it is an estimate (random output projections); None
            where it is exact.
        leaves: Path (or glob) -> kernel of those parameters alone, where they were asked for; they
            sum to the kernel.
    """

    array: KernelArray
    convention: Convention
    symmetric: bool = True
    standard_error: KernelArray | None = None
    leaves: dict[str, "Kernel"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `array`."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of `array`."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of axes of `array`."""
        return self.array.ndim

    @property
    def n_examples(self) -> int:
        """Number of row examples."""
        return self.array.shape[0]

    @property
    def matrix(self) -> Float[Array | np.ndarray, "rows columns"]:
        """The kernel as a matrix: `[n m]`, or `[(n o) (m p)]` for the full and projected kernel.

        Raises:
            InvalidInputError: For ``reduction="diagonal"``, which is one matrix per output.
        """
        if self.ndim == 2:
            return self.array
        if self.ndim == 4:
            n, o, m, p = self.array.shape
            return self.array.reshape(n * o, m * p)
        raise errors.InvalidInputError(
            call="Kernel.matrix",
            expected='reduction "full", "mean", "trace", "sum-of-logits" or "projection"',
            got=f'reduction="{self.convention.reduction}" of shape {self.shape}',
            do="A diagonal kernel is one [n m] matrix per output: index `kernel.array[..., o]`.",
        )

    @property
    def noise_floor(self) -> float:
        """Resolution of eigenvalues, relative to the largest: see `Convention.noise_floor`."""
        rows = self.array.shape[0]
        if self.ndim == 4:
            rows *= self.array.shape[1]
        return self.convention.noise_floor(self.dtype, rows)

    @errors.public
    def __matmul__(self, v: ArrayLike) -> Float[Array | np.ndarray, "..."]:
        """K v for v of shape `[m p]` or flat `[(m p)]`, or a matrix of flat columns `[(m p) k]`."""
        v = as_array(v, "v")
        matrix = self.matrix
        # A full kernel takes v laid out as outputs are, too.
        shape_of_outputs = self.shape[2:] if self.ndim == 4 else None
        if v.shape == shape_of_outputs:  # [m p] -> [n o]
            return (matrix @ v.reshape(-1)).reshape(self.shape[:2])
        if v.shape[:1] == matrix.shape[1:] and v.ndim <= 2:  # [(m p)] or [(m p) k]
            return matrix @ v
        m = matrix.shape[1]
        shapes = f"({m},) or ({m}, k)"
        if shape_of_outputs is not None:
            shapes = f"{shape_of_outputs}, {shapes}"
        raise errors.InvalidInputError(
            call="Kernel @ v",
            expected=f"v of shape {shapes}",
            got=f"shape {v.shape}",
            do="Rows are examples times outputs, the outputs of an example next to each other.",
        )

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Plain values as JSON has them: arrays as nested lists, the convention by name."""
        leaves = None
        if self.leaves is not None:
            leaves = {path: kernel.to_dict() for path, kernel in self.leaves.items()}
        return {
            "array": display.plain(self.array),
            "standard_error": display.plain(self.standard_error),
            "symmetric": self.symmetric,
            "convention": display.plain(self.convention.to_dict()),
            "leaves": leaves,
        }

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.array)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.array, dtype=dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        leaves = f", {len(self.leaves)} leaf kernels" if self.leaves else ""
        error = ", with standard errors" if self.standard_error is not None else ""
        return f"Kernel({self.dtype}{list(self.shape)}, {self.convention}{leaves}{error})"
