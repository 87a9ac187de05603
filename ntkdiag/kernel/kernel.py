"""The empirical NTK as a value that knows its convention: what its numbers mean.

A kernel is an array with what its numbers mean. It behaves as the array where one is expected, has
a matrix form for linear algebra, and prints, plots and exports itself.
"""

import dataclasses
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, PyTree

from ntkdiag import display, errors
from ntkdiag.kernel.reduction import KernelArray
from ntkdiag.pytree_dataclass import pytree

# The least number of rows in the noise floor: rounding of smaller kernels was measured to be no
# smaller.
_FEWEST_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Convention:
    """The convention a kernel was computed in; it travels with every result.

    With K[n,o,m,p] = <J[n,o], J[m,p]> and C outputs per example, `reduction` is one of

    - ``"full"``: K itself, `[n o m p]`;
    - ``"mean"``: sum_o K[n,o,m,o] / C, `[n m]` (neural-tangents' default convention);
    - ``"trace"``: sum_o K[n,o,m,o], `[n m]`;
    - ``"diagonal"``: K[n,o,m,o], `[n m o]`;
    - ``"sum-of-logits"``: the kernel of sum_o f_o / sqrt(C), `[n m]` (pseudo-NTK);
    - ``"random-projections"``: an unbiased estimate of the trace from k random output directions,
      `[n m]`;
    - ``"gradient"``: sum_op l'_no K[n,o,m,p] l'_mp, `[n m]`, contracted with the derivatives l' of
      the losses of single examples: the Gram matrix of their gradients (`gradient_kernel`).

    Attributes:
        reduction: The reduction over outputs.
        n_outputs: C, outputs of one example.
        examples: "independent", or "joint" when a batch was differentiated as a whole.
        mode: The mode of the model ("eval", "dropout", "train", "unspecified").
        precision: Of the products of Jacobians, as `jax.default_matmul_precision` takes it.
        unit_roundoff: Of those products; None is that of the kernel's dtype.
        model_roundoff: Unit roundoff of the coarsest dtype on the model's way from parameters to
            outputs; None where it is not known.
        preconditioner: "none", "scalar", "per leaf" or "elementwise": K is then J P^-1 J^T.
        probe: SHA-256 of the row examples; None inside a jit, where they are not known.
    """

    reduction: str = "mean"
    n_outputs: int = 1
    examples: str = "independent"
    mode: str = "unspecified"
    precision: str = "highest"
    unit_roundoff: float | None = None
    model_roundoff: float | None = None
    preconditioner: str = "none"
    probe: str | None = None

    def noise_floor(self, dtype: DTypeLike, n: int) -> float:
        """Resolution of the eigenvalues of an n x n kernel, relative to the largest one.

        Rounding of the entries is an error of the kernel of norm sqrt(n) eps lambda_1 at most, the
        norm of a matrix being at least its Frobenius norm over sqrt(n). Rounding in products and
        sums is random: 0.3 to 6 eps lambda_1 were measured, for 64 to 1200 rows and up to 1e5
        parameters, so no kernel counts as one of less than 64 rows.

        Rounding in the model is an error of the Jacobian J: it moves the singular values of J,
        which are the roots of the eigenvalues, by about eps times the length of its rows, and J J^T
        stays a kernel. That does not grow with n, and eps_model lambda_1 leaves room: eigenvalues
        of networks in bfloat16 and float16 were found to be off by a tenth from a fifth of it
        downwards, by half from a thousandth.

        Args:
            dtype: Of the kernel.
            n: Its rows.

        Returns:
            A fraction of the largest eigenvalue.
        """
        eps = max(float(jnp.finfo(dtype).eps), self.unit_roundoff or 0.0)
        of_entries = max(n, _FEWEST_ROWS) ** 0.5 * eps
        return max(of_entries, self.model_roundoff or 0.0)

    def coarsest(self, dtype: DTypeLike) -> float:
        """The largest unit roundoff of all that a kernel of this dtype went through.

        Args:
            dtype: Of the kernel.

        Returns:
            The unit roundoff.
        """
        eps = float(jnp.finfo(dtype).eps)
        return max(eps, self.unit_roundoff or 0.0, self.model_roundoff or 0.0)

    def to_dict(self) -> dict[str, str | int | float | None]:
        """Its attributes by name, as JSON has them."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """One line for tables and reports."""
        parts = [
            f"reduction={self.reduction} (C={self.n_outputs})",
            f"examples={self.examples}",
            f"mode={self.mode}",
        ]
        if self.precision != "highest":
            parts.append(f"precision={self.precision}")
        if self.preconditioner != "none":
            parts.append(f"preconditioner={self.preconditioner}")
        if self.probe:
            parts.append(f"probe {self.probe[:8]}")
        return ", ".join(parts)


def digest(x: PyTree) -> str:
    """SHA-256 of a batch: shapes, dtypes and bytes of its leaves, in tree order."""
    state = hashlib.sha256()
    for leaf in jax.tree.leaves(x):
        array = host_numbers(leaf)
        state.update(repr((array.shape, array.dtype.str)).encode())
        state.update(array.tobytes())
    return state.hexdigest()


def host_numbers(leaf: ArrayLike) -> np.ndarray:
    """An array on the host, contiguous; of random keys the numbers they are made of."""
    with jax.ensure_compile_time_eval():  # inside someone's jit too
        dtype = getattr(leaf, "dtype", np.float32)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.ascontiguousarray(leaf)


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
        """The kernel as a matrix: `[n m]`, or `[(n o) (m p)]` for the full kernel.

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
            expected='reduction "full", "mean", "trace" or "sum-of-logits"',
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
