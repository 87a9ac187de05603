"""The largest eigenvalues of a kernel that is too large to decompose, or to form.

`lanczos.largest` does the computing, from products with the kernel alone (`kernel_products`). Here
the result gets its noise floor and its convention, and the trace is estimated: exactly for the
directions of the eigenvectors, and for the rest from z^T K z with random signs z.
"""

import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.matrix_free import lanczos
from ntkdiag.matrix_free.kernel_products import KernelProducts, matrix_products, operator_products
from ntkdiag.matrix_free.operator import NTKOperator


@errors.public
def top_spectrum(
    kernel: NTKOperator | KernelLike,
    k: int | np.integer = 10,
    *,
    trace_probes: int | np.integer = 0,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> Spectrum:
    """The k largest eigenvalues of a kernel, from products with it alone.

    For kernels that are too large for `spectrum`: an `NTKOperator` is never formed, and a kernel in
    memory is not decomposed. Lanczos iterations in float64 around products in the kernel's
    precision come first, then a search for what they missed: repeated eigenvalues, nearly present
    in kernels of networks with several outputs, are found. The search is strong evidence that no
    larger eigenvalue is missing, not a proof. The residual of each pair is measured by a product of
    its own, and improved until it meets the tolerance.

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
        A `Spectrum` with residuals and vectors, as numpy float64. Pairs that did not converge are
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
    return Spectrum(
        eigenvalues=pairs.values,
        vectors=pairs.vectors,
        noise_floor=noise_floor,
        size=products.size,
        kernel=products.kernel,
        convention=products.convention,
        residuals=pairs.residuals,
        tolerance=reachable,
        trace=trace,
        trace_error=trace_error,
        products=pairs.products + int(trace_probes),
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
