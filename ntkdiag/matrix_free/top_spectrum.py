"""The largest eigenvalues of a kernel that is too large to decompose, or to form.

`lanczos.largest` does the computing, from products with the kernel alone (`kernel_products`). Here
the result gets its noise floor and its convention, and the trace is estimated: exactly for the
directions of the eigenvectors, and for the rest from z^T K z with random signs z.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float64

from ntkdiag import display, errors
from ntkdiag.kernel.kernel import Convention
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.matrix_free import lanczos
from ntkdiag.matrix_free.kernel_products import KernelProducts, matrix_products, operator_products
from ntkdiag.matrix_free.operator import NTKOperator


@dataclasses.dataclass(frozen=True, eq=False)
class TopSpectrum:
    """The largest eigenvalues of a kernel, each with a bound of its error.

    Attributes:
        eigenvalues: `[k]`, descending.
        residuals: `[k]`, ||K v - lambda v|| with the returned vector: an eigenvalue lies within
            this distance. The error itself is usually far smaller, of the order of its square.
        converged: `[k]`, whether the residual met `tolerance` times the largest eigenvalue.
        tolerance: That asked for, or 8 unit roundoffs of what the kernel was computed in, where
            that is more: rounding makes such residuals by itself.
        vectors: `[n k]`, orthonormal; rows are examples times outputs.
        noise_floor: Eigenvalues below it are not resolved: the unit roundoff of the model, or
            `Convention.noise_floor` of a kernel, times the largest eigenvalue.
        size: n, rows of the kernel.
        trace: Estimate of the sum of all eigenvalues; None without `trace_probes`.
        trace_error: Standard error of it.
        products: Products with the kernel it took.
        convention: Of the kernel; None for a bare array.
    """

    eigenvalues: Float64[np.ndarray, " k"]
    residuals: Float64[np.ndarray, " k"]
    converged: Bool[np.ndarray, " k"]
    tolerance: float
    vectors: Float64[np.ndarray, "n k"]
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
        """Number of resolved eigenvalues among these.

        They are above the noise floor, and known to better than themselves.
        """
        resolved = (self.eigenvalues > self.noise_floor) & (self.residuals < self.eigenvalues)
        return int(resolved.sum())

    @property
    def share(self) -> Float64[np.ndarray, " k"] | None:
        """Share of the trace in the first 1, 2, ... k eigenvalues; None without a trace."""
        if self.trace is None:
            return None
        return np.cumsum(self.eigenvalues) / self.trace

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers as plain JSON values, without the vectors."""
        return display.plain(
            {
                "eigenvalues": self.eigenvalues,
                "residuals": self.residuals,
                "converged": self.converged,
                "tolerance": self.tolerance,
                "noise_floor": self.noise_floor,
                "rank": self.rank,
                "size": self.size,
                "trace": self.trace,
                "trace_error": self.trace_error,
                "products": self.products,
                "convention": None if self.convention is None else vars(self.convention),
            }
        )

    def __repr__(self) -> str:
        k = len(self.eigenvalues)
        worst = float(self.residuals[: self.rank].max(initial=0.0))
        lines = [
            f"TopSpectrum({k} of {self.size} eigenvalues: {self._eigenvalues_text()})",
            f"  residuals up to {worst:.2g}, noise floor {self.noise_floor:.2g}, "
            f"{self.products} products",
        ]
        unfinished = int((~self.converged).sum())
        if unfinished:
            lines.append(f"  {unfinished} with residuals above the tolerance {self.tolerance:.2g}")
        if self.trace is not None:
            share = np.sum(self.eigenvalues) / self.trace
            error = f"{self.trace_error:.2g}"
            lines.append(f"  trace {self.trace:.4g} +- {error}, of which {share:.3g} in these")
        return "\n".join(lines)

    def _eigenvalues_text(self) -> str:
        """The first six resolved eigenvalues, and how many are not resolved."""
        rank = self.rank
        shown = [f"{value:.4g}" for value in self.eigenvalues[: min(rank, 6)]]
        if rank > 6:
            shown.append("...")
        unresolved = len(self.eigenvalues) - rank
        if unresolved:
            shown.append(f"{unresolved} unresolved")
        return ", ".join(shown)


@errors.public
def top_spectrum(
    kernel: NTKOperator | KernelLike,
    k: int | np.integer = 10,
    *,
    trace_probes: int | np.integer = 0,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> TopSpectrum:
    """The k largest eigenvalues of a kernel, from products with it alone.

    For kernels that are too large for `spectrum`: an `NTKOperator` is never formed, and a kernel in
    memory is not decomposed. Lanczos iterations in float64 around products in the kernel's
    precision come first, then a search for what they missed: repeated eigenvalues, which kernels of
    networks with several outputs have nearly, are found. The search is strong evidence that no
    larger eigenvalue is missing, not a proof. What a pair claims is measured: its residual comes
    from a product of its own, and is improved until it meets the tolerance.

    Cost: some 50 to 200 products, for an `NTKOperator` about five forward passes over the data
    each, for a kernel in memory 2 n^2 operations each; on the host 32 n (k + 10) bytes, at least
    640 n, for a basis and its images, and half as much again where it grows.

    Source: Wu and Simon 2000 (thick restart); the trace: Meyer et al. 2021 (arXiv 2010.09649).

    Args:
        kernel: An `NTKOperator` of examples with themselves, a `Kernel`, a matrix `[n n]`, or a
            full kernel `[n o n o]`.
        k: Number of eigenvalues.
        trace_probes: Random vectors for the trace: what these k leave of it is estimated by that
            many products. 0 for no trace; 10 are enough where the k eigenvalues hold most of it.
        tolerance: Of the residuals, relative to the largest eigenvalue. It is raised to 8 unit
            roundoffs of what the kernel was computed in (about 1e-6 in float32), which rounding
            makes by itself.
        seed: Of the random vectors.

    Returns:
        Eigenvalues with residuals and vectors, as numpy float64. Pairs that did not converge are
        marked, and a RuntimeWarning says how many.

    Raises:
        InvalidInputError: When the kernel is traced, not finite, not square or not symmetric, or a
            number is out of its range.

    Example:
        >>> import jax.numpy as jnp
        >>> import ntkdiag
        >>> x = jnp.linspace(-1, 1, 500)[:, None]
        >>> K = ntkdiag.NTKOperator(lambda w, x: jnp.tanh(x @ w), jnp.ones((1, 1)), x)
        >>> print(ntkdiag.top_spectrum(K, 2).rank)
        1
    """
    _require_settings(trace_probes, tolerance)
    if isinstance(kernel, NTKOperator):
        products = operator_products(kernel)
    else:
        products = matrix_products(kernel)
    if not (isinstance(k, int | np.integer) and 1 <= k <= products.size):
        raise errors.InvalidInputError(
            expected=f"`k` from 1 to {products.size}, the rows of the kernel",
            got=repr(k),
            do="10 is the default.",
        )
    pairs = lanczos.largest(
        products.product, products.size, int(k), tolerance, seed, roundoff=products.roundoff
    )
    if not np.isfinite(pairs.values).all():
        raise lanczos.not_finite()
    reachable = lanczos.reachable_tolerance(tolerance, products.roundoff)
    n_converged = int(pairs.converged.sum())
    if n_converged < k:
        errors.warn(
            f"{errors.current_call()}: {n_converged} of {k} eigenvalues reached "
            f"tolerance={reachable:g}. Take a larger one.",
            RuntimeWarning,
        )

    trace = None
    trace_error = None
    if trace_probes:
        trace, trace_error = _estimated_trace(products, pairs, int(trace_probes), seed)
    # The resolution of the products is relative to the largest eigenvalue.
    noise_floor = products.noise_floor * float(np.abs(pairs.values).max())
    return TopSpectrum(
        eigenvalues=pairs.values,
        residuals=pairs.residuals,
        converged=pairs.converged,
        tolerance=reachable,
        vectors=pairs.vectors,
        noise_floor=noise_floor,
        size=products.size,
        trace=trace,
        trace_error=trace_error,
        products=pairs.products + int(trace_probes),
        convention=products.convention,
    )


def _require_settings(trace_probes: int | np.integer, tolerance: float) -> None:
    """Refuse settings that are out of their range."""
    if not isinstance(trace_probes, int | np.integer) or trace_probes < 0 or trace_probes == 1:
        raise errors.InvalidInputError(
            expected="`trace_probes` 0, or 2 and more",
            got=repr(trace_probes),
            do="The error of the trace comes from the scatter between probes; take 10.",
        )
    if not 0 < tolerance < 1:
        raise errors.InvalidInputError(
            expected="a `tolerance` between 0 and 1", got=repr(tolerance), do="1e-6 is the default."
        )


def _estimated_trace(
    kernel: KernelProducts, pairs: lanczos.Eigenpairs, probes: int, seed: int
) -> tuple[float, float]:
    """The trace and its standard error: eigenvalues, plus z^T K z for signs z (Hutchinson)."""
    rng = np.random.default_rng(seed + 1)  # other vectors than those that Lanczos began with
    vectors = pairs.vectors
    rest = []
    for _ in range(probes):
        z = rng.choice([-1.0, 1.0], size=vectors.shape[0])
        z = z - vectors @ (vectors.T @ z)  # what the eigenvectors span is known exactly
        rest.append(float(z @ kernel.product(z)))
    trace = float(pairs.values.sum() + np.mean(rest))
    trace_error = float(np.std(rest, ddof=1) / probes**0.5)  # of a mean of independent probes
    return trace, trace_error
