"""Whether a kernel is numerically what it should be, before anything is concluded from it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.analysis.degenerate import is_constant
from ntkdiag.kernel.decomposition import decomposed
from ntkdiag.kernel.kernel_argument import KernelLike, read_square
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import Number, is_concrete

# A kernel of more ||K - K^T|| / ||K|| is unsound; mixed batch sizes leave up to 1e-6 in float32.
_MOST_ASYMMETRY = 1e-4


@pytree(
    "nonfinite",
    "asymmetry",
    "negative",
    "unresolved",
    "smallest",
    "zero_rows",
    "mean_mode_share",
    "constant",
)
@dataclasses.dataclass(frozen=True, eq=False)
class Health:
    """Numbers that say whether a kernel can be used.

    Attributes:
        nonfinite: Number of NaN and Inf entries; everything below is NaN or meaningless when it is
            not 0.
        asymmetry: ||K - K^T||_F / ||K||_F; about machine epsilon for one batch size.
        negative: Number of eigenvalues below minus the noise floor; 0 for a kernel J J^T.
        unresolved: Number of eigenvalues within the noise floor.
        smallest: Smallest resolved eigenvalue; infinite when none is.
        zero_rows: Share of rows with a zero diagonal entry: outputs that no parameter moves.
        mean_mode_share: 1^T Kbar 1 / (N tr Kbar), Kbar the kernel summed over equal outputs: the
            weight of the mode that is constant over examples. Near 1, uncentred distances and
            alignments say little.
        constant: Whether the kernel, centred over examples, is zero up to rounding, as a zero
            kernel is: the network is DEAD on these examples, no parameter tells two of them apart.
        size: Number of rows.
    """

    nonfinite: Number
    asymmetry: Number
    negative: Number
    unresolved: Number
    smallest: Number
    zero_rows: Number
    mean_mode_share: Number
    constant: Number
    size: int

    @property
    def sound(self) -> bool:
        """Whether the kernel can be used.

        It is finite, symmetric to rounding, without negative eigenvalues, and not `constant`.
        """
        is_numerically_sound = not (
            self.nonfinite or self.negative or self.asymmetry > _MOST_ASYMMETRY
        )
        return is_numerically_sound and not self.constant

    def __repr__(self) -> str:
        if not is_concrete(self.nonfinite) or np.ndim(self.nonfinite):
            return "Health(traced or batched)"
        if self.nonfinite:
            return f"Health(unsound: {self.nonfinite} NaN or Inf of {self.size**2} entries)"
        verdict = "sound" if self.sound else "unsound"
        if self.zero_rows == 1:
            verdict = "DEAD, no parameter moves an output"
        elif self.constant:
            verdict = "DEAD, no parameter tells two examples apart"
        has_trace = np.isfinite(self.mean_mode_share)
        mean_mode = f"{float(self.mean_mode_share):.2%}" if has_trace else "undefined"
        return (
            f"Health({verdict}: asymmetry {float(self.asymmetry):.2g}, "
            f"{self.negative} negative and {self.unresolved} unresolved of {self.size} "
            f"eigenvalues, zero rows {float(self.zero_rows):.2%}, mean mode {mean_mode})"
        )


@errors.public
@keeps_float64
def health(kernel: KernelLike) -> Health:
    """Check a kernel for NaN, asymmetry, negative eigenvalues, dead rows, a constant mode.

    Cost: one eigendecomposition without vectors, O((NC)^3); none for a `Spectrum`.

    Args:
        kernel: A `Kernel`, its `Spectrum`, a matrix `[n n]`, or a full kernel `[n o n o]`.

    Returns:
        The numbers; a broken kernel is reported, not refused.

    Raises:
        InvalidInputError: When the kernel is not one of a set of examples with itself.
    """
    operand = read_square(kernel, finite=False)
    matrix = operand.matrix
    n, c = operand.n_examples, operand.n_outputs
    n_nonfinite = jnp.sum(~jnp.isfinite(matrix))

    # Divided by its largest entry no square of the kernel leaves the range of its dtype.
    largest = jnp.max(jnp.abs(matrix))
    scaled = matrix / jnp.where(largest > 0, largest, 1.0)
    norm = jnp.linalg.norm(scaled)
    asymmetry = jnp.linalg.norm(scaled - scaled.T) / jnp.where(norm > 0, norm, 1.0)

    # Kbar, [(n o) (m o)] -> [n m], and what a vector of ones sees of it.
    over_equal_outputs = jnp.einsum("nomo->nm", scaled.reshape(n, c, n, c))
    mean_mode_share = jnp.sum(over_equal_outputs) / (n * jnp.trace(over_equal_outputs))
    constant = is_constant(operand.array, float(jnp.finfo(operand.array.dtype).eps))

    modes = decomposed(operand, vectors=False)
    return Health(
        nonfinite=_number(n_nonfinite),
        asymmetry=_number(asymmetry),
        negative=modes.negative,
        unresolved=modes.size - modes.negative - modes.rank,
        smallest=modes.smallest,
        zero_rows=_number(jnp.mean(jnp.diagonal(matrix) == 0)),
        mean_mode_share=_number(mean_mode_share),
        constant=_number(constant),
        size=matrix.shape[0],
    )


def _number(value: jax.Array) -> Number:
    """A single known number as one of Python; anything else as it is."""
    return value.item() if is_concrete(value) and np.ndim(value) == 0 else value
