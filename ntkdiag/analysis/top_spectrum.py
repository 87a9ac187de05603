"""The largest eigenvalues of a kernel that is too large to decompose, or to form."""

import dataclasses
import warnings
from typing import Any

import jax
import numpy as np

from ntkdiag.analysis import lanczos
from ntkdiag.analysis.spectrum import require_symmetric, square
from ntkdiag.kernels import arguments
from ntkdiag.kernels.convention import Convention
from ntkdiag.kernels.interaction import roundoff_of
from ntkdiag.kernels.operands.operand import KernelLike, coarsest, noise_floor, refuse, unpack
from ntkdiag.linearization import NTKOperator

_CALL = "top_spectrum(kernel, k)"


@dataclasses.dataclass(frozen=True, eq=False)
class TopSpectrum:
    """The largest eigenvalues of a kernel, each with a bound of its error.

    Attributes:
        eigenvalues: `[k]`, descending.
        residuals: `[k]`, ||K v - lambda v|| with the returned vector: an eigenvalue lies within this distance. The
            error itself is usually far smaller, of the order of its square.
        vectors: `[n k]`, orthonormal; rows are examples times outputs.
        noise_floor: Eigenvalues below it are not resolved: the unit roundoff of the model, or `Convention.noise_floor`
            of a kernel, times the largest eigenvalue.
        size: n, rows of the kernel.
        trace: Estimate of the sum of all eigenvalues; None without `trace_probes`.
        trace_error: Standard error of it.
        products: Products with the kernel it took.
        convention: Of the kernel; None for a bare array.
    """

    eigenvalues: np.ndarray
    residuals: np.ndarray
    vectors: np.ndarray
    noise_floor: float
    size: int
    trace: float | None
    trace_error: float | None
    products: int
    convention: Convention | None

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(self.eigenvalues[0])

    @property
    def rank(self) -> int:
        """Number of resolved eigenvalues among these: above the noise floor and known to better than themselves."""
        resolved = (self.eigenvalues > self.noise_floor) & (self.residuals < self.eigenvalues)
        return int(resolved.sum())

    @property
    def share(self) -> np.ndarray | None:
        """Share of the trace in the first 1, 2, ... k eigenvalues; None without a trace."""
        return None if self.trace is None else np.cumsum(self.eigenvalues) / self.trace

    def __repr__(self) -> str:
        k, rank = len(self.eigenvalues), self.rank
        values = ", ".join(f"{value:.4g}" for value in self.eigenvalues[: min(rank, 6)])
        more = ", ..." if rank > 6 else ""
        hidden = f", {k - rank} unresolved" if rank < k else ""
        lines = [f"TopSpectrum({k} of {self.size} eigenvalues: {values}{more}{hidden})"]
        worst = self.residuals[:rank].max(initial=0.0)
        lines.append(f"  residuals up to {worst:.2g}, noise floor {self.noise_floor:.2g}, {self.products} products")
        if self.trace is not None and self.share is not None:
            lines.append(f"  trace {self.trace:.4g} +- {self.trace_error:.2g}, of which {self.share[-1]:.3g} in these")
        return "\n".join(lines)


def top_spectrum(
    kernel: NTKOperator | KernelLike, k: int = 10, *, trace_probes: int = 0, tolerance: float = 1e-6, seed: int = 0
) -> TopSpectrum:
    """The k largest eigenvalues of a kernel, from products with it alone.

    For kernels that are too large for `spectrum`: an `NTKOperator` is never formed, and a kernel in memory is not
    decomposed. Lanczos iterations in float64 around products in the kernel's precision, then a search for what they
    missed: repeated eigenvalues, which kernels of networks with several outputs have nearly, are found.
    The search is strong evidence that no larger eigenvalue is missing, not a proof.
    Cost: some 50 to 200 products, for an `NTKOperator` about five forward passes over the data each, for a kernel in
    memory 2 n^2 operations each; 16 n k to 32 n k bytes on the host.
    Source: Lehoucq, Sorensen and Yang 1998 (ARPACK); the trace: Meyer et al. 2021 (arXiv 2010.09649).

    Args:
        kernel: An `NTKOperator` of examples with themselves, a `Kernel`, a matrix `[n n]`, or a full kernel
            `[n o n o]`.
        k: Number of eigenvalues.
        trace_probes: Random vectors for the trace: what these k leave of it is estimated by that many products. 0 for
            no trace; 10 are enough where the k eigenvalues hold most of it.
        tolerance: Of the residuals, relative to the largest eigenvalue. Below the unit roundoff nothing is gained.
        seed: Of the random vectors.

    Returns:
        Eigenvalues with residuals and vectors, as numpy float64.

    Raises:
        InvalidInputError: When the kernel is traced, not finite, not square or not symmetric, or a number is out of
            its range.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntkdiag
        >>> x = jnp.linspace(-1, 1, 500)[:, None]
        >>> K = ntkdiag.NTKOperator(lambda w, x: jnp.tanh(x @ w), jnp.ones((1, 1)), x)
        >>> print(ntkdiag.top_spectrum(K, 2).rank)
        1
    """
    _check_numbers(trace_probes, tolerance)
    product, size, convention, floor = _read(kernel)
    if not (isinstance(k, int | np.integer) and 1 <= k <= size):
        refuse(_CALL, expected=f"`k` from 1 to {size}, the rows of the kernel", got=repr(k), do="10 is the default.")
    found = largest_pairs(product, size, int(k), tolerance, seed)
    if len(found.values) < k:
        warnings.warn(
            f"{_CALL}: {len(found.values)} of {k} eigenvalues reached tolerance={tolerance:g}. Take a larger one.",
            RuntimeWarning,
            stacklevel=2,
        )
    trace, error = _trace(product, found, trace_probes, seed) if trace_probes else (None, None)
    floor *= float(np.abs(found.values).max(initial=0.0))
    products = found.products + trace_probes
    return TopSpectrum(found.values, found.residuals, found.vectors, floor, size, trace, error, products, convention)


def largest_pairs(
    product: lanczos.Product, rows: int, k: int, tolerance: float = 1e-6, seed: int = 0, call: str = _CALL
) -> lanczos.Found:
    """`lanczos.largest`, refused where it found nothing: at NaN, or when not a single eigenvalue converged."""
    found = lanczos.largest(product, rows, k, tolerance, seed)
    if not found.values.size:
        refuse(
            call,
            expected="an eigenvalue that converges",
            got=f"none within {found.products} products",
            do="Take a larger `tolerance`, or `spectrum` of the kernel if it fits into memory.",
        )
    if not np.isfinite(found.values).all():
        refuse(
            call,
            expected="finite products with the kernel",
            got="NaN or Inf",
            do="Look for NaN parameters or inputs, or overflow in a half-precision model.",
        )
    return found


def operator_product(kernel: NTKOperator, call: str) -> tuple[lanczos.Product, int]:
    """Products with an operator in float64, and its number of rows; cross operators and tracers are refused."""
    _require_concrete((kernel.params, kernel.x), call)
    if not kernel.symmetric:
        refuse(call, expected="an operator of examples with themselves", got="a cross operator", do="Leave out `x2`.")
    dtype = np.dtype(np.float64 if kernel.dtype == np.float64 else np.float32)
    return lambda v: np.asarray(kernel.mv(v.astype(dtype)), np.float64), kernel.shape[0]


def _check_numbers(trace_probes: int, tolerance: float) -> None:
    if not isinstance(trace_probes, int | np.integer) or trace_probes < 0 or trace_probes == 1:
        refuse(
            _CALL,
            expected="`trace_probes` 0, or 2 and more",
            got=repr(trace_probes),
            do="The error of the trace comes from the scatter between probes; take 10.",
        )
    if not 0 < tolerance < 1:
        refuse(_CALL, expected="a `tolerance` between 0 and 1", got=repr(tolerance), do="1e-6 is the default.")


def _read(kernel: NTKOperator | KernelLike) -> tuple[lanczos.Product, int, Convention | None, float]:
    """Products in float64, the number of rows, the convention and the relative noise floor."""
    if isinstance(kernel, NTKOperator):
        product, rows = operator_product(kernel, _CALL)
        convention = _convention(kernel)
        return product, rows, convention, convention.coarsest(kernel.dtype)
    array, convention, symmetric = unpack(kernel, _CALL, "kernel")
    _require_concrete(array, _CALL)
    matrix = np.asarray(square(array, symmetric, _CALL))
    matrix = matrix.astype(np.promote_types(matrix.dtype, np.float32), copy=False)
    size = np.abs(matrix).max() or 1.0  # norms overflow for kernels of 1e20
    asymmetry = float(np.linalg.norm((matrix - matrix.T) / size) / (np.linalg.norm(matrix / size) or 1.0))
    require_symmetric(asymmetry, coarsest(array, convention), _CALL)
    product = lambda v: np.asarray(matrix @ v.astype(matrix.dtype), np.float64)
    return product, matrix.shape[0], convention, noise_floor(array, convention, matrix.shape[0])


def _convention(kernel: NTKOperator) -> Convention:
    few = jax.tree.map(lambda leaf: leaf[: kernel.microbatch], kernel.x)
    return Convention(
        outputs="full",
        n_outputs=int(np.prod(kernel.output_shape)),
        mode=getattr(kernel.f, "mode", "unspecified"),
        model_roundoff=roundoff_of(kernel.f, kernel.params, few),
    )


def _require_concrete(arrays: Any, call: str) -> None:
    if arguments.is_traced(arrays):
        refuse(
            call,
            expected="a kernel with values",
            got="one inside jax.jit, jax.grad or jax.vmap",
            do="Call it outside; inside, decompose a kernel in memory with `spectrum`.",
        )


def _trace(product: lanczos.Product, found: lanczos.Found, probes: int, seed: int) -> tuple[float, float]:
    """Eigenvalues found, plus z^T K z for random signs z without what they span; with the standard error."""
    rng, basis = np.random.default_rng(seed + 1), found.vectors
    rest = []
    for _ in range(probes):
        z = rng.choice([-1.0, 1.0], size=basis.shape[0])
        z = z - basis @ (basis.T @ z)
        rest.append(float(z @ product(z)))
    return float(found.values.sum() + np.mean(rest)), float(np.std(rest, ddof=1) / probes**0.5)
