"""Eigenvalues of a kernel, with what the arithmetic can resolve."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _jax, errors
from ntkdiag.kernel import effective_ranks
from ntkdiag.kernel.convention import Convention
from ntkdiag.kernel.operand import KernelLike, coarsest, is_concrete, noise_floor, unpack

_STATUS = ("ok", "indefinite", "nonfinite")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["eigenvalues", "vectors", "noise_floor", "asymmetry"],
    meta_fields=["convention"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues in descending order, and the size below which they are rounding noise.

    Attributes:
        eigenvalues: `[k]`, descending; NaN throughout when the kernel was not finite.
        vectors: `[k k]`, column j belongs to eigenvalue j; None unless asked for.
        noise_floor: In units of the eigenvalues: lambda_max times `Convention.noise_floor`, which is eps sqrt(k) for a
            model in the dtype of its kernel.
        asymmetry: ||K - K^T||_F / ||K||_F of the kernel as it came.
        convention: The kernel's convention; None for a bare array.
    """

    eigenvalues: Any
    vectors: Any
    noise_floor: Any
    asymmetry: Any
    convention: Convention | None = None

    @property
    def size(self) -> int:
        """Number of eigenvalues, resolved or not."""
        return self.eigenvalues.shape[-1]

    @property
    def rank(self) -> Any:
        """Number of resolved eigenvalues: those above the noise floor."""
        return self._number(effective_ranks.resolved(self.eigenvalues, self.noise_floor).sum(-1))

    @property
    def negative(self) -> Any:
        """Number of eigenvalues below minus the noise floor: 0 for a kernel J J^T computed soundly."""
        return self._number(effective_ranks.resolved(-self.eigenvalues, self.noise_floor).sum(-1))

    @property
    def status_code(self) -> Any:
        """0 for "ok", 1 for "indefinite", 2 for "nonfinite"; works under `jax.jit`, where a string cannot."""
        xp = self.eigenvalues.__array_namespace__()
        finite = xp.isfinite(self.eigenvalues).all(-1)
        return self._number(xp.where(finite, xp.where(xp.asarray(self.negative) > 0, 1, 0), 2))

    @property
    def status(self) -> str:
        """Whether the numbers can be used: "ok", "indefinite" (negative eigenvalues) or "nonfinite"."""
        return _STATUS[int(self.status_code)]

    @property
    def largest(self) -> Any:
        """The largest eigenvalue."""
        return self._number(self.eigenvalues[..., 0])

    @property
    def participation_ratio(self) -> Any:
        """Participation ratio (sum lambda)^2 / sum lambda^2 over the resolved eigenvalues."""
        return self._number(effective_ranks.participation_ratio(self._resolved))

    @property
    def entropy_rank(self) -> Any:
        """Entropy rank exp(-sum p log p), p = lambda / sum lambda, over the resolved eigenvalues."""
        return self._number(effective_ranks.entropy_rank(self._resolved))

    @property
    def stable_rank(self) -> Any:
        """Stable rank sum lambda / lambda_max over the resolved eigenvalues."""
        return self._number(effective_ranks.stable_rank(self._resolved))

    @property
    def condition_number(self) -> Any:
        """lambda_max / lambda_min, or None when lambda_min is not resolved (NaN under `jax.jit`).

        A quotient by an unresolved eigenvalue is noise; see `resolved_condition_number` for what is known.
        """
        full = self.rank == self.size
        if is_concrete(self.eigenvalues) and np.ndim(self.eigenvalues) == 1:
            return self.resolved_condition_number if full else None
        return jnp.where(full, self.resolved_condition_number, jnp.nan)

    @property
    def resolved_condition_number(self) -> Any:
        """lambda_max over the smallest resolved eigenvalue: a lower bound of the condition number."""
        xp = self.eigenvalues.__array_namespace__()
        smallest = xp.where(
            effective_ranks.resolved(self.eigenvalues, self.noise_floor), self.eigenvalues, xp.inf
        ).min(-1)
        return self._number(self.eigenvalues[..., 0] / smallest)

    @property
    def _resolved(self) -> Any:
        xp = self.eigenvalues.__array_namespace__()
        keep = effective_ranks.resolved(self.eigenvalues, self.noise_floor) | ~xp.isfinite(
            self.eigenvalues
        )
        return xp.where(keep, self.eigenvalues, 0.0)

    def _number(self, value: Any) -> Any:
        return value.item() if is_concrete(value) and np.ndim(value) == 0 else value

    def __repr__(self) -> str:
        if not is_concrete(self.eigenvalues) or np.ndim(self.eigenvalues) != 1:
            return f"Spectrum({self.size} eigenvalues, traced or batched)"
        if self.status == "nonfinite":
            return (
                f"Spectrum({self.size} eigenvalues, status nonfinite: the kernel holds NaN or Inf)"
            )
        return "\n".join(_lines(self))


@errors.public
def spectrum(kernel: KernelLike, *, vectors: bool = False) -> Spectrum:
    """Eigenvalues of a kernel, descending.

    Concrete kernels are decomposed in float64 on the host by divide and conquer (LAPACK syevd), tracers by
    `jnp.linalg.eigh` in their own precision; both from (K + K^T) / 2. The noise floor is set by what the
    kernel was computed in: float64 arithmetic does not bring back digits that a float32 kernel never had.
    Cost: about 9 (NC)^3 operations with vectors, a third of that without.

    Args:
        kernel: A `Kernel`, a matrix `[n n]`, or a full kernel `[n o n o]`.
        vectors: Also return the eigenvectors.

    Returns:
        The spectrum. A kernel with NaN or Inf gives ``status="nonfinite"``, not an exception.

    Raises:
        InvalidInputError: When the kernel is not square or not symmetric.
    """
    array, convention, symmetric = unpack(kernel, "kernel")
    matrix = square(array, symmetric)
    if is_concrete(matrix):
        values, columns, asymmetry = _on_host(np.asarray(matrix, np.float64), vectors)
        require_symmetric(asymmetry, coarsest(array, convention))
    else:
        values, columns, asymmetry = _traced(
            matrix.astype(_jax.at_least_float32(matrix.dtype)), vectors
        )
    floor = noise_floor(array, convention, matrix.shape[0]) * abs(values).max()
    return Spectrum(values, columns, floor, asymmetry, convention)


def square(array: Any, symmetric: bool) -> Any:
    """A kernel as a matrix `[n n]`, refused if it is not one of examples with themselves."""
    shape = tuple(array.shape)
    square = (
        len(shape) in (2, 4)
        and shape[: len(shape) // 2] == shape[len(shape) // 2 :]
        and 0 not in shape
    )
    if square and symmetric:
        side = shape[0] * (shape[1] if len(shape) == 4 else 1)
        return array.reshape(side, side)
    raise errors.InvalidInputError(
        expected="a square kernel [n n] or [n o n o] of examples with themselves",
        got=f"shape {shape}" + (" of a cross kernel" if square else ""),
        do="Compute it as `ntk(f, params, x)`, without `x2`; index a diagonal kernel by output.",
    )


def require_symmetric(asymmetry: float, eps: float) -> None:
    """Refuse a matrix that is further from its transpose than arithmetic of this roundoff leaves it."""
    tolerance = max(
        1e-4, 8 * eps
    )  # rounding leaves about eps; mixed batch sizes up to 1e-6 in float32
    if asymmetry > tolerance:
        raise errors.InvalidInputError(
            expected=f"a symmetric kernel, ||K - K^T|| <= {tolerance:.0e} ||K||",
            got=f"||K - K^T|| = {asymmetry:.2g} ||K||",
            do="A cross kernel has no eigenvalues; otherwise compute all rows in one call and one batch size.",
        )


def _on_host(matrix: np.ndarray, vectors: bool) -> tuple[np.ndarray, np.ndarray | None, float]:
    side = matrix.shape[0]
    if not np.isfinite(matrix).all():
        return (
            np.full(side, np.nan),
            np.full((side, side), np.nan) if vectors else None,
            float("nan"),
        )
    size = np.abs(matrix).max() or 1.0
    matrix = matrix / size  # keeps squares and products in range for kernels of any scale
    norm = np.linalg.norm(matrix) or 1.0
    asymmetry = float(np.linalg.norm(matrix - matrix.T) / norm)
    symmetric = 0.5 * (matrix + matrix.T)
    if not vectors:
        return size * np.linalg.eigvalsh(symmetric)[::-1], None, asymmetry
    values, columns = np.linalg.eigh(symmetric)
    return size * values[::-1], columns[:, ::-1], asymmetry


def _traced(matrix: jax.Array, vectors: bool) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    norm = jnp.linalg.norm(matrix)
    asymmetry = jnp.linalg.norm(matrix - matrix.T) / jnp.where(norm == 0, 1.0, norm)
    symmetric = 0.5 * (matrix + matrix.T)
    if not vectors:
        return jnp.linalg.eigvalsh(symmetric)[::-1], None, asymmetry
    values, columns = jnp.linalg.eigh(symmetric)
    return values[::-1], columns[:, ::-1], asymmetry


def _lines(spectrum: Spectrum) -> list[str]:
    shown = spectrum.eigenvalues[: min(spectrum.rank, 6)]
    values = ", ".join(f"{v:.4g}" for v in shown)
    more = ", ..." if spectrum.rank > len(shown) else ""
    hidden = spectrum.size - spectrum.rank
    unresolved = f", {hidden} unresolved" if hidden else ""
    lines = [f"Spectrum({spectrum.size} eigenvalues: {values}{more}{unresolved})"]
    lines.append(
        f"  status {spectrum.status}, rank {spectrum.rank}, noise floor {spectrum.noise_floor:.2g}"
    )
    if spectrum.negative:
        lines.append(
            f"  {spectrum.negative} negative eigenvalues below the floor: not a kernel J J^T"
        )
    if spectrum.rank:
        lines.append(
            f"  stable rank {spectrum.stable_rank:.4g}, participation ratio {spectrum.participation_ratio:.4g}, "
            f"entropy rank {spectrum.entropy_rank:.4g}"
        )
    condition = (
        f"{spectrum.condition_number:.4g}"
        if not hidden
        else f"rank-deficient: {hidden} eigenvalues below floor"
    )
    lines.append(f"  condition number {condition}")
    return lines
