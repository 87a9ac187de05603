"""The eigenvalues of a kernel, and what of them the arithmetic can resolve.

A kernel J J^T has no negative eigenvalues, but a computed one has: rounding moves every eigenvalue
by up to the noise floor. So all that is said of a spectrum distinguishes three kinds,

    lambda > floor              resolved: a number one may divide by,
    -floor <= lambda <= floor   unresolved: rounding noise around something small,
    lambda < -floor             negative: whatever this matrix is, it is no J J^T.

`decompose` is the one eigensolver of kernels. A kernel whose numbers are known is decomposed in
float64 on the host, whatever it came in: a small eigenvalue is then as good as the kernel allows. A
traced one is decomposed by JAX, in its own dtype. `Spectrum` says what follows; how an argument
becomes one stands in `kernel.kernel_argument`.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ntkdiag import display, errors, memory
from ntkdiag.arrays import AnyArray, Number, is_concrete
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.kernel.kernel import Convention, Kernel
from ntkdiag.pytree_dataclass import pytree

Eigenvalues = Float[AnyArray, "*batch k"]
# Matrices of float64 that are there at once while one is decomposed: the kernel, the same scaled
# and symmetrised, and the memory of LAPACK, which has three more with vectors.
_COPIES = 5
_COPIES_WITH_VECTORS = 8
# The meaning of `Spectrum.status_code`: a string cannot come out of `jax.jit`.
_STATUS = ("ok", "indefinite", "nonfinite")


@pytree("eigenvalues", "vectors", "noise_floor", "asymmetry", "kernel")
@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues in descending order, and the size below which they are rounding noise.

    It stands for its kernel: every function of a kernel takes it instead, and does not decompose
    that kernel again.

    Its numbers follow from the eigenvalues, and are computed by the library these came in: NumPy
    for a kernel decomposed on the host, JAX for a traced one.

    Attributes:
        eigenvalues: `[k]`, descending; NaN throughout when the kernel was not finite.
        vectors: `[k k]`, column j belongs to eigenvalue j; None unless asked for.
        noise_floor: In units of the eigenvalues: lambda_max times `Convention.noise_floor`, which
            is eps sqrt(k) for a model in the dtype of its kernel.
        asymmetry: ||K - K^T||_F / ||K||_F of the kernel as it came.
        kernel: The kernel itself, as it came.
    """

    eigenvalues: Float[AnyArray, "*batch k"]
    vectors: Float[AnyArray, "*batch k k"] | None
    noise_floor: Number
    asymmetry: Number
    kernel: Kernel | AnyArray

    @property
    def convention(self) -> Convention | None:
        """The kernel's convention; None for a bare array."""
        return self.kernel.convention if isinstance(self.kernel, Kernel) else None

    @property
    def size(self) -> int:
        """Number of eigenvalues, resolved or not."""
        return self.eigenvalues.shape[-1]

    @property
    def is_resolved(self) -> Bool[AnyArray, "*batch k"]:
        """Which eigenvalues stand above the noise floor."""
        return _above(self.eigenvalues, self.noise_floor)

    @property
    def rank(self) -> Number:
        """Number of resolved eigenvalues: those above the noise floor."""
        return _number(self.is_resolved.sum(-1))

    @property
    def negative(self) -> Number:
        """Number of eigenvalues below minus the noise floor: 0 for a sound kernel J J^T."""
        is_negative = _above(-self.eigenvalues, self.noise_floor)
        return _number(is_negative.sum(-1))

    @property
    def status_code(self) -> Number:
        """`status` as a number, for `jax.jit`: 0 is "ok", 1 "indefinite", 2 "nonfinite"."""
        xp = self.eigenvalues.__array_namespace__()
        is_finite = xp.isfinite(self.eigenvalues).all(-1)
        # NaN is neither above nor below the floor: that they are finite decides first.
        of_finite = xp.where(xp.asarray(self.negative) > 0, 1, 0)
        return _number(xp.where(is_finite, of_finite, 2))

    @property
    def status(self) -> str:
        """Whether the numbers are of use: "ok", "indefinite" or "nonfinite"."""
        return _STATUS[int(self.status_code)]

    @property
    def largest(self) -> Number:
        """The largest eigenvalue."""
        return _number(self.eigenvalues[..., 0])

    @property
    def smallest(self) -> Number:
        """The smallest resolved eigenvalue; infinite when none is resolved."""
        xp = self.eigenvalues.__array_namespace__()
        return _number(xp.where(self.is_resolved, self.eigenvalues, xp.inf).min(-1))

    @property
    def resolved(self) -> Float[AnyArray, "*batch k"]:
        """The eigenvalues, 0 in place of those that are not resolved; NaN stays."""
        xp = self.eigenvalues.__array_namespace__()
        is_kept = self.is_resolved | ~xp.isfinite(self.eigenvalues)
        return xp.where(is_kept, self.eigenvalues, 0.0)

    @property
    def participation_ratio(self) -> Number:
        """Participation ratio (sum lambda)^2 / sum lambda^2 over the resolved eigenvalues.

        A number in [1, rank], NaN for a zero kernel. Near 1 one mode dominates, often the constant
        one.
        """
        p = _shares(self.resolved)
        return _number(1.0 / (p**2).sum(-1))

    @property
    def entropy_rank(self) -> Number:
        """Entropy rank exp(-sum p log p), p = lambda / sum lambda, over the resolved eigenvalues.

        A number in [1, rank], NaN for a zero kernel. It falls during training when the kernel
        compresses onto few directions. Source: Roy and Vetterli 2007; Baratin et al. 2021 (arXiv
        2008.00938) for kernels.
        """
        p = _shares(self.resolved)
        xp = p.__array_namespace__()
        # 0 log 0 = 0. A logarithm of 1 in place of that of 0: its derivative is finite, too.
        log_p = xp.log(xp.where(p == 0, 1.0, p))
        return _number(xp.exp(-(p * log_p).sum(-1)))

    @property
    def stable_rank(self) -> Number:
        """Stable rank sum lambda / lambda_max over the resolved eigenvalues.

        The smallest of the effective ranks, in [1, rank], NaN for a zero kernel. For K = J J^T it
        is ||J||_F^2 / ||J||^2.
        """
        return _number(1.0 / _shares(self.resolved).max(-1))

    @property
    def condition_number(self) -> Number | None:
        """lambda_max / lambda_min, or None when lambda_min is not resolved (NaN under `jax.jit`).

        A quotient by an unresolved eigenvalue is noise; see `resolved_condition_number` for what is
        known.
        """
        is_full = self.rank == self.size
        if self._is_known:
            return self.resolved_condition_number if is_full else None
        # What is traced, or a batch, is an array in any case.
        return jnp.where(is_full, self.resolved_condition_number, jnp.nan)

    @property
    def resolved_condition_number(self) -> Number:
        """lambda_max over the smallest resolved eigenvalue: no more than the condition number."""
        return _number(self.eigenvalues[..., 0] / self.smallest)

    def require_semidefinite(self) -> "Spectrum":
        """This spectrum, refused where eigenvalues below minus the floor say: no J J^T.

        Returns:
            This spectrum; with NaN for every eigenvalue where it is too late to refuse.

        Raises:
            InvalidInputError: When eigenvalues are below minus the noise floor.
        """
        negative = self.negative
        # Inside a trace nothing can be raised: NaN says it.
        if not is_concrete(negative):
            eigenvalues = jnp.where(negative > 0, jnp.nan, self.eigenvalues)
            return dataclasses.replace(self, eigenvalues=eigenvalues)
        if negative > 0:
            raise errors.InvalidInputError(
                expected="a kernel J J^T, which has no negative eigenvalues",
                got=f"{int(negative)} eigenvalues below the noise floor "
                f"{-float(self.noise_floor):.2g}",
                do="Compute all rows in one call and one batch size; see `Spectrum.asymmetry`.",
            )
        return self

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers as plain JSON values, without the vectors and the kernel."""
        return display.plain(
            {
                "eigenvalues": self.eigenvalues,
                "noise_floor": self.noise_floor,
                "asymmetry": self.asymmetry,
                "status": self.status,
                "size": self.size,
                "rank": self.rank,
                "negative": self.negative,
                "stable_rank": self.stable_rank,
                "participation_ratio": self.participation_ratio,
                "entropy_rank": self.entropy_rank,
                "condition_number": self.condition_number,
                "convention": None if self.convention is None else self.convention.to_dict(),
            }
        )

    @property
    def _is_known(self) -> bool:
        """Whether this is one spectrum of known numbers, neither traced nor a batch of them."""
        return is_concrete(self.eigenvalues) and np.ndim(self.eigenvalues) == 1

    def __repr__(self) -> str:
        if not self._is_known:
            return f"Spectrum({self.size} eigenvalues, traced or batched)"
        if self.status == "nonfinite":
            return (
                f"Spectrum({self.size} eigenvalues, status nonfinite: the kernel holds NaN or Inf)"
            )
        lines = [
            f"Spectrum({self.size} eigenvalues: {self._eigenvalues_text()})",
            f"  status {self.status}, rank {self.rank}, noise floor {self.noise_floor:.2g}",
        ]
        if self.negative:
            lines.append(
                f"  {self.negative} negative eigenvalues below the floor: not a kernel J J^T"
            )
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
        lines.append(f"  condition number {condition}")
        return "\n".join(lines)

    def _eigenvalues_text(self) -> str:
        """The first six resolved eigenvalues, and how many are not resolved."""
        shown = [f"{value:.4g}" for value in self.eigenvalues[: min(int(self.rank), 6)]]
        if self.rank > 6:
            shown.append("...")
        text = ", ".join(shown)
        unresolved = self.size - self.rank
        if unresolved:
            text += f", {unresolved} unresolved"
        return text


class _Decomposition(NamedTuple):
    """What an eigensolver returns, the largest eigenvalue first."""

    eigenvalues: Float[AnyArray, " k"]
    vectors: Float[AnyArray, "k k"] | None
    asymmetry: Number


def decompose(
    matrix: Float[AnyArray, "k k"],
    resolution: Number,
    *,
    vectors: bool,
    kernel: Kernel | AnyArray | None = None,
) -> Spectrum:
    """The spectrum of (K + K^T) / 2, for a matrix K known to `resolution` times lambda_max."""
    if is_concrete(matrix):
        require_decomposable(matrix.shape[0], vectors=vectors)
        solved = _on_host(np.asarray(matrix, np.float64), vectors)
    else:
        wide = at_least_float32(matrix.dtype)
        solved = _traced(jnp.asarray(matrix, wide), vectors)
    return Spectrum(
        eigenvalues=solved.eigenvalues,
        vectors=solved.vectors,
        noise_floor=resolution * abs(solved.eigenvalues).max(),
        asymmetry=solved.asymmetry,
        kernel=matrix if kernel is None else kernel,
    )


def require_decomposable(rows: int, *, vectors: bool) -> None:
    """Refuse a kernel whose decomposition has no room on the host."""
    copies = _COPIES_WITH_VECTORS if vectors else _COPIES
    memory.require_free(
        copies * rows**2 * np.dtype(np.float64).itemsize,
        f"the eigenvalues of a kernel of {rows:,} rows",
        memory.host_memory,
        "ntkdiag.top_spectrum finds the largest of them by products alone, of an NTKOperator "
        "without the kernel. Or take fewer examples: with a third of the rows it is a ninth.",
    )


def _on_host(matrix: Float[np.ndarray, "k k"], vectors: bool) -> _Decomposition:
    """By divide and conquer (LAPACK syevd), at any scale; NaN for a matrix that is not finite."""
    k = matrix.shape[0]
    if not np.isfinite(matrix).all():
        undefined = np.full((k, k), np.nan)
        return _Decomposition(undefined[0], undefined if vectors else None, float("nan"))
    # Divided by its largest entry no square or product of the matrix leaves the range of float64.
    # A zero matrix stays as it is: `or 1.0` here and below.
    scale = np.abs(matrix).max() or 1.0
    matrix = matrix / scale
    norm = np.linalg.norm(matrix) or 1.0
    asymmetry = float(np.linalg.norm(matrix - matrix.T) / norm)
    symmetric = 0.5 * (matrix + matrix.T)
    # LAPACK counts from the smallest eigenvalue.
    if not vectors:
        return _Decomposition(scale * np.linalg.eigvalsh(symmetric)[::-1], None, asymmetry)
    eigenvalues, columns = np.linalg.eigh(symmetric)
    return _Decomposition(scale * eigenvalues[::-1], columns[:, ::-1], asymmetry)


def _traced(matrix: Float[Array, "k k"], vectors: bool) -> _Decomposition:
    """By `jnp.linalg.eigh`, where the numbers are not known yet."""
    norm = jnp.linalg.norm(matrix)
    asymmetry = jnp.linalg.norm(matrix - matrix.T) / jnp.where(norm == 0, 1.0, norm)
    symmetric = 0.5 * (matrix + matrix.T)
    if not vectors:
        return _Decomposition(jnp.linalg.eigvalsh(symmetric)[::-1], None, asymmetry)
    eigenvalues, columns = jnp.linalg.eigh(symmetric)
    return _Decomposition(eigenvalues[::-1], columns[:, ::-1], asymmetry)


def _number(value: Any) -> Number:
    """A single known number as one of Python; anything else as it is."""
    if is_concrete(value) and np.ndim(value) == 0 and hasattr(value, "item"):
        return value.item()
    return value


# Effective ranks: the Renyi family, stable <= participation <= entropy <= rank.
#
# With the shares p_j = lambda_j / sum lambda, the Renyi rank of order alpha is
# (sum p^alpha)^(1 / (1 - alpha)):
#
#     order 2          participation ratio    1 / sum p^2
#     order 1          entropy rank           exp(-sum p log p)
#     order infinity   stable rank            1 / max p
#
# All three take eigenvalues `[... k]` that are not negative, and are NaN for a zero spectrum. They
# compute with the library the eigenvalues came in: in NumPy on the host, so that float64 stays
# float64 with x64 off.


def _above(eigenvalues: Eigenvalues, floor: Number) -> Bool[AnyArray, "*batch k"]:
    """Which eigenvalues stand above the noise floor, one floor `[...]` for each spectrum."""
    if isinstance(floor, jax.Array | np.ndarray) and floor.ndim > 0:
        return eigenvalues > floor[..., None]
    return eigenvalues > floor


def _shares(eigenvalues: Eigenvalues) -> Eigenvalues:
    """p = lambda / sum lambda; scaled first, since the sum of float32 numbers can overflow."""
    xp = eigenvalues.__array_namespace__()
    largest = abs(eigenvalues).max(-1, keepdims=True)
    scaled = eigenvalues / xp.where(largest == 0, xp.nan, largest)
    return scaled / scaled.sum(-1, keepdims=True)
