"""The empirical NTK as a value that knows its convention."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernels.convention import Convention


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["array", "standard_error", "leaves"],
    meta_fields=["convention", "symmetric"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """An empirical neural tangent kernel.

    Attributes:
        array: The numbers, laid out as `convention.outputs` says (see `Convention`).
        convention: Reduction over outputs, mode, precision, probe.
        symmetric: True when rows and columns are the same examples.
        standard_error: Of each number, where it is an estimate (random output projections); None where it is exact.
        leaves: Path (or glob) -> kernel of those parameters alone, where they were asked for; they sum to the whole.
    """

    array: Any
    convention: Convention
    symmetric: bool = True
    standard_error: Any = None
    leaves: dict[str, "Kernel"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `array`."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
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
    def matrix(self) -> Any:
        """The kernel as a matrix: `[n m]`, or `[(n o) (m p)]` for the full and projected kernel.

        Raises:
            InvalidInputError: For ``outputs="diagonal"``, which is one matrix per output.
        """
        if self.ndim == 2:
            return self.array
        if self.ndim == 4:
            n, o, m, p = self.array.shape
            return self.array.reshape(n * o, m * p)
        raise errors.InvalidInputError(
            errors.message(
                "Kernel.matrix",
                expected='outputs "full", "mean", "trace", "sum-of-logits" or "projection"',
                got=f'outputs="{self.convention.outputs}" of shape {self.shape}',
                do="A diagonal kernel is one [n m] matrix per output: index `kernel.array[..., o]`.",
            )
        )

    @property
    def noise_floor(self) -> float:
        """Resolution of eigenvalues, relative to the largest: see `Convention.noise_floor`."""
        size = self.array.shape[0] * (self.array.shape[1] if self.ndim == 4 else 1)
        return self.convention.noise_floor(self.dtype, size)

    def __matmul__(self, v: jax.typing.ArrayLike) -> Any:
        """K v for v of shape `[m p]` or flat `[(m p)]`, or a matrix of flat columns `[(m p) k]`."""
        matrix, v = self.matrix, v if isinstance(v, jax.Array | np.ndarray) else np.asarray(v)
        shaped = (self.shape[2], self.shape[3]) if self.ndim == 4 else None
        if v.shape == shaped:
            return (matrix @ v.reshape(-1)).reshape(self.shape[0], self.shape[1])
        if v.shape[:1] == matrix.shape[1:] and v.ndim <= 2:
            return matrix @ v
        raise errors.InvalidInputError(
            errors.message(
                "Kernel @ v",
                expected=f"v of shape {f'{shaped}, ' if shaped else ''}({matrix.shape[1]},) or ({matrix.shape[1]}, k)",
                got=f"shape {v.shape}",
                do="Rows are examples times outputs, the outputs of an example next to each other.",
            )
        )

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.array, dtype=dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        leaves = f", {len(self.leaves)} leaf kernels" if self.leaves else ""
        error = ", with standard errors" if self.standard_error is not None else ""
        return f"Kernel({self.dtype}{list(self.shape)}, {self.convention}{leaves}{error})"
