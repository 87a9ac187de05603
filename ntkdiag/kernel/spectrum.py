"""The eigenvalues of a kernel, and which of them the arithmetic can resolve.

A kernel J J^T has no negative eigenvalues, but a computed one may: rounding moves every eigenvalue
by up to the noise floor. So all that is said of a spectrum distinguishes three kinds,

    lambda > floor              resolved: safe to divide by,
    -floor <= lambda <= floor   unresolved: rounding noise,
    lambda < -floor             negative: the matrix is not J J^T.

A spectrum holds all eigenvalues, or the largest of them, which `top_spectrum` finds by products.
`decompose` is the one solver for all. A kernel whose numbers are known is decomposed in
float64 on the host, whatever it came in: a small eigenvalue is then as good as the kernel allows. A
traced one is decomposed by JAX, in its own dtype. `Spectrum` derives ranks and condition numbers
from them; how an argument becomes one is in `kernel.kernel_argument`.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ntkdiag import errors, memory
from ntkdiag.arrays import AnyArray, Number, is_concrete
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.kernel.kernel import Convention, Kernel
from ntkdiag.pytree_dataclass import pytree

# Matrices of float64 that are there at once while one is decomposed: the kernel, the same scaled
# and symmetrized, and the memory of LAPACK, which has three more with vectors.
_COPIES = 5
_COPIES_WITH_VECTORS = 8
_MOST_SHOWN = 6  # eigenvalues in a `repr`


@pytree("eigenvalues", "vectors", "noise_floor", "kernel", "residuals", "trace", "trace_error")
@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues in descending order, and the size below which they are rounding noise.

    `spectrum` computes all of them. Such a spectrum stands for its kernel: every function of a
    kernel takes it instead, and does not decompose that kernel again. `top_spectrum` finds the
    largest ones by products with the kernel, each with a bound of its error.

    Its numbers follow from the eigenvalues, and are computed by the library these came in: NumPy
    for a kernel decomposed on the host, JAX for a traced one.

    Attributes:
        eigenvalues: `[k]`, descending; NaN throughout when the kernel was not finite.
        vectors: `[n k]`, orthonormal: column j belongs to eigenvalue j, rows are examples times
            outputs; None unless asked for.
        noise_floor: Eigenvalues below it are not resolved: lambda_max times
            `Convention.noise_floor`, which is eps sqrt(n) for a model in the dtype of its kernel,
            or times the unit roundoff of the model, for an `NTKOperator`.
        size: n, rows of the kernel: all its eigenvalues are known where k is n.
        kernel: The kernel itself, as it came; None for an `NTKOperator`.
        convention: Of the kernel; None for a bare array.
        residuals: `[k]`, ||K v - lambda v|| with the returned vector, from `top_spectrum`: an
            eigenvalue lies within this distance. The error itself is usually far smaller, of the
            order of its square. None where all eigenvalues were computed.
        tolerance: Of the residuals, relative to the largest eigenvalue: that asked for, or 8 unit
            roundoffs of what the kernel was computed in, where that is more.
        trace: The sum of all eigenvalues; an estimate from `top_spectrum`, or None.
        trace_error: Standard error of an estimated trace; None otherwise.
        products: Products with the kernel that were needed.
    """

    eigenvalues: Float[AnyArray, " k"]
    vectors: Float[AnyArray, "n k"] | None
    noise_floor: Number
    size: int
    kernel: Kernel | AnyArray | None
    convention: Convention | None
    residuals: Float[AnyArray, " k"] | None = None
    tolerance: float | None = None
    trace: Number | None = None
    trace_error: Number | None = None
    products: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all eigenvalues of the kernel are known."""
        return self.eigenvalues.shape[-1] == self.size

    @property
    def is_resolved(self) -> Bool[AnyArray, " k"]:
        """Which eigenvalues are above the noise floor, and known to within their own size."""
        above = self.eigenvalues > self.noise_floor
        if self.residuals is None:
            return above
        return above & (self.residuals < self.eigenvalues)

    @property
    def converged(self) -> Bool[AnyArray, " k"]:
        """Which residuals meet the tolerance; all eigenvalues without residuals."""
        if self.residuals is None or self.tolerance is None:
            xp = self.eigenvalues.__array_namespace__()
            return ~xp.isnan(self.eigenvalues)
        return self.residuals <= self.tolerance * abs(self.eigenvalues).max()

    @property
    def rank(self) -> Number:
        """Number of resolved eigenvalues."""
        return _number(self.is_resolved.sum())

    @property
    def negative(self) -> Number:
        """Number of eigenvalues below minus the noise floor: 0 for a sound kernel J J^T."""
        return _number((self.eigenvalues < -self.noise_floor).sum())

    @property
    def status(self) -> str:
        """Whether the kernel is valid: "ok", "indefinite" or "nonfinite"."""
        if not np.isfinite(np.asarray(self.eigenvalues)).all():
            return "nonfinite"
        return "indefinite" if self.negative else "ok"

    @property
    def largest(self) -> Number:
        """The largest eigenvalue."""
        return _number(self.eigenvalues[0])

    @property
    def resolved(self) -> Float[AnyArray, " k"]:
        """The eigenvalues, 0 in place of those that are not resolved; NaN stays."""
        xp = self.eigenvalues.__array_namespace__()
        is_kept = self.is_resolved | ~xp.isfinite(self.eigenvalues)
        return xp.where(is_kept, self.eigenvalues, 0.0)

    # Effective ranks: the Renyi family, stable <= participation <= entropy <= rank.
    #
    # With the shares p_j = lambda_j / sum lambda, the Renyi rank of order alpha is
    # (sum p^alpha)^(1 / (1 - alpha)):
    #
    #     order 2          participation ratio    1 / sum p^2
    #     order 1          entropy rank           exp(-sum p log p)
    #     order infinity   stable rank            1 / max p

    @property
    def participation_ratio(self) -> Number:
        """Participation ratio (sum lambda)^2 / sum lambda^2 over the resolved eigenvalues.

        A number in [1, rank], NaN for a zero kernel, and where only the largest eigenvalues are
        known. Near 1 one mode dominates, often the constant one.
        """
        p = self._shares()
        return _number(1.0 / (p**2).sum())

    @property
    def entropy_rank(self) -> Number:
        """Entropy rank exp(-sum p log p), p = lambda / sum lambda, over the resolved eigenvalues.

        A number in [1, rank], NaN where the participation ratio is. It falls during training when
        the kernel compresses onto few directions. Source: Roy and Vetterli 2007; Baratin et al.
        2021 (arXiv 2008.00938) for kernels.
        """
        p = self._shares()
        xp = p.__array_namespace__()
        # 0 log 0 = 0. A logarithm of 1 in place of that of 0: its derivative is finite, too.
        log_p = xp.log(xp.where(p == 0, 1.0, p))
        return _number(xp.exp(-(p * log_p).sum()))

    @property
    def stable_rank(self) -> Number:
        """Stable rank sum lambda / lambda_max over the resolved eigenvalues.

        The smallest of the effective ranks, in [1, rank], NaN where the participation ratio
        is. For K = J J^T it is ||J||_F^2 / ||J||^2.
        """
        return _number(1.0 / self._shares().max())

    @property
    def condition_number(self) -> Number | None:
        """lambda_max / lambda_min, or None when lambda_min is not resolved (NaN under `jax.jit`).

        A quotient by an unresolved eigenvalue is noise; see `resolved_condition_number` for what is
        known.
        """
        is_full = self.rank == self.size
        if is_concrete(is_full):
            return self.resolved_condition_number if is_full else None
        return jnp.where(is_full, self.resolved_condition_number, jnp.nan)

    @property
    def resolved_condition_number(self) -> Number:
        """lambda_max over the smallest resolved eigenvalue: no more than the condition number.

        NaN where no eigenvalue is resolved.
        """
        xp = self.eigenvalues.__array_namespace__()
        smallest = xp.where(self.is_resolved, self.eigenvalues, xp.inf).min()
        return _number(self.eigenvalues[0] / xp.where(smallest < xp.inf, smallest, xp.nan))

    def require_semidefinite(self) -> "Spectrum":
        """This spectrum, refused where it has eigenvalues below minus the noise floor.

        Returns:
            This spectrum; inside a trace, with NaN for every eigenvalue instead of an error.

        Raises:
            InvalidInputError: When eigenvalues are below minus the noise floor.
        """
        negative = self.negative
        # Nothing can be raised inside a trace: the result is NaN.
        if not is_concrete(negative):
            eigenvalues = jnp.where(negative > 0, jnp.nan, self.eigenvalues)
            return dataclasses.replace(self, eigenvalues=eigenvalues)
        if negative > 0:
            raise errors.InvalidInputError(
                expected="a kernel J J^T, which has no negative eigenvalues",
                got=f"{int(negative)} eigenvalues below minus the noise floor, "
                f"{-float(self.noise_floor):.2g}",
                do="Compute all rows in one call and one batch size.",
            )
        return self

    def _shares(self) -> Float[AnyArray, " k"]:
        """p = lambda / sum lambda of the resolved eigenvalues."""
        xp = self.eigenvalues.__array_namespace__()
        if not self.is_complete:
            return xp.full_like(self.eigenvalues, xp.nan)
        # Scaled first, since the sum of float32 numbers can overflow.
        largest = self.resolved.max()
        scaled = self.resolved / xp.where(largest == 0, xp.nan, largest)
        return scaled / scaled.sum()

    def __repr__(self) -> str:
        n_known = self.eigenvalues.shape[-1]
        count = f"{self.size}" if self.is_complete else f"{n_known} of {self.size}"
        if not is_concrete(self.eigenvalues) or self.eigenvalues.ndim > 1:
            return f"Spectrum({count} eigenvalues, traced or batched)"
        status = self.status
        if status == "nonfinite":
            return f"Spectrum({count} eigenvalues, status nonfinite: the kernel holds NaN or Inf)"
        shown = [f"{value:.4g}" for value in self.eigenvalues[self.is_resolved][:_MOST_SHOWN]]
        if self.rank > _MOST_SHOWN:
            shown.append("...")
        unresolved = n_known - self.rank
        if unresolved:
            shown.append(f"{unresolved} unresolved")
        lines = [
            f"Spectrum({count} eigenvalues: {', '.join(shown)})",
            f"  status {status}, rank {self.rank}, noise floor {self.noise_floor:.2g}",
        ]
        if self.negative:
            lines.append(f"  {self.negative} eigenvalues below minus the floor: not a kernel J J^T")
        lines += self._lines_of_all() if self.is_complete else self._lines_of_largest()
        return "\n".join(lines)

    def _lines_of_all(self) -> list[str]:
        """What is shown where all eigenvalues are known."""
        lines = []
        if self.rank:
            lines.append(
                f"  stable rank {self.stable_rank:.4g}, "
                f"participation ratio {self.participation_ratio:.4g}, "
                f"entropy rank {self.entropy_rank:.4g}"
            )
        unresolved = self.size - self.rank
        condition = f"rank-deficient: {unresolved} eigenvalues below floor"
        if not unresolved:
            condition = f"{self.condition_number:.4g}"
        return [*lines, f"  condition number {condition}"]

    def _lines_of_largest(self) -> list[str]:
        """What is shown where products found the largest eigenvalues."""
        assert self.residuals is not None
        worst = float(self.residuals[self.is_resolved].max(initial=0.0))
        lines = [f"  residuals up to {worst:.2g}, {self.products} products"]
        unfinished = int((~self.converged).sum())
        if unfinished:
            lines.append(f"  {unfinished} with residuals above the tolerance {self.tolerance:.2g}")
        if self.trace is not None:
            error = f"{self.trace_error:.2g}"
            share = f"{self.eigenvalues.sum() / self.trace:.3g}"
            lines.append(f"  trace {self.trace:.4g} +- {error}, of which {share} in these")
        return lines


def decompose(
    matrix: Float[AnyArray, "n n"],
    resolution: Number,
    *,
    vectors: bool,
    kernel: Kernel | AnyArray | None = None,
) -> Spectrum:
    """The spectrum of (K + K^T) / 2, for a matrix K known to `resolution` times lambda_max."""
    if not is_concrete(matrix):
        wide = jnp.asarray(matrix, at_least_float32(matrix.dtype))
        eigenvalues, columns = _solved(wide, vectors)
    else:
        require_decomposable(matrix.shape[0], vectors=vectors)
        # Divided by the largest entry, no square or product of entries leaves the range of float64.
        on_host = np.asarray(matrix, np.float64)
        scale = np.abs(on_host).max() or 1.0  # a zero matrix stays as it is
        if np.isfinite(scale):
            eigenvalues, columns = _solved(on_host / scale, vectors)
            eigenvalues = scale * eigenvalues
        else:
            undefined = np.full(on_host.shape, np.nan)
            eigenvalues, columns = undefined[0], undefined if vectors else None
    kernel = matrix if kernel is None else kernel
    return Spectrum(
        eigenvalues=eigenvalues,
        vectors=columns,
        noise_floor=resolution * abs(eigenvalues).max(),
        size=matrix.shape[0],
        kernel=kernel,
        convention=kernel.convention if isinstance(kernel, Kernel) else None,
        trace=_number(eigenvalues.sum()),
    )


def require_decomposable(rows: int, *, vectors: bool) -> None:
    """Refuse a kernel whose decomposition has no room on the host."""
    copies = _COPIES_WITH_VECTORS if vectors else _COPIES
    memory.require_free(
        copies * rows**2 * np.dtype(np.float64).itemsize,
        f"the eigenvalues of a kernel of {rows:,} rows",
        memory.host_memory,
        "ntkdiag.top_spectrum finds the largest of them by products with an NTKOperator, without "
        "the kernel. Or take fewer examples: a third of the rows takes a ninth of the memory.",
    )


def _solved(
    matrix: Float[AnyArray, "n n"], vectors: bool
) -> tuple[Float[AnyArray, " n"], Float[AnyArray, "n n"] | None]:
    """Eigenvalues of (K + K^T) / 2, descending, and vectors, by the library of the matrix."""
    linalg = np.linalg if isinstance(matrix, np.ndarray) else jnp.linalg
    symmetric = 0.5 * (matrix + matrix.T)
    # The solvers count from the smallest eigenvalue.
    if not vectors:
        return linalg.eigvalsh(symmetric)[::-1], None
    eigenvalues, columns = linalg.eigh(symmetric)
    return eigenvalues[::-1], columns[:, ::-1]


def _number(value: Any) -> Number:
    """A known number as a Python number; anything else as it is."""
    return value.item() if is_concrete(value) else value
