"""Whether the directions a kernel learns fast are the directions of the labels.

`alignment` compares the kernel as a whole with that of the labels, by the cosine of the angle
between them. That number is not zero for unrelated labels, so the result also has the value for
randomly permuted labels. `modes` gives the answer mode by mode.

Kernel and labels are centred over examples first, each output by itself: the mode that is constant
over examples is most of the kernel of a network with biases, and no label points there.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.analysis.degenerate import (
    ROUNDOFFS_OF_CENTRING,
    centre_kernel,
    is_constant,
)
from ntkdiag.analysis.permutation_test import full_moments, reduced_moments
from ntkdiag.arrays import Number, is_concrete
from ntkdiag.kernel.kernel_argument import KernelArgument, KernelLike, read_labels, read_square
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.pytree_dataclass import pytree

# What it makes of an alignment whether the examples were trained on.
_OF_EXAMPLES = {
    True: "of examples that were trained on: too high, as the kernel knows their labels",
    False: "of examples that were not trained on",
    None: "if these examples were trained on, too high: pass trained_on=",
}
# Where no permutation of labels changes an alignment, a difference of less than this is rounding.
_LEAST_TOLERANCE = 1e-6


@pytree("value", "chance", "standard_deviation")
@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """The centred alignment of a kernel with labels, and that with permuted labels.

    The same labels, permuted over the examples, still have an alignment: little with a
    full kernel of many outputs, 0.9 and more with a reduced kernel and labels of many classes.
    Compare the value with that.

    Attributes:
        value: The centred alignment, in [-1, 1], also ``float(aligned)``; not negative for a kernel
            without negative eigenvalues.
        chance: Its mean over all permutations of the labels of the examples.
        standard_deviation: Its standard deviation over them.
        reduction: Of the kernel: "full", "mean", ...; "matrix" for a bare array `[n n]`, which does
            not say it. Only numbers of one reduction compare.
        trained_on: Whether the examples were trained on, and the value is too high; None where that
            is not known.
    """

    value: Number
    chance: Number
    standard_deviation: Number
    reduction: str
    trained_on: bool | None = None

    @property
    def above(self) -> Number:
        """(value - chance) / (1 - chance): 0 at chance, 1 for the kernel of the labels themselves.

        The Rand index is adjusted for chance in the same way. NaN where permuting changes nothing
        and chance is 1, as for two examples.
        """
        return _over(self.value - self.chance, 1 - self.chance)

    @property
    def deviations(self) -> Number:
        """(value - chance) / standard_deviation: beyond 2 or 3 it is more than a lucky draw.

        Grows with the number of examples, as tests do; `above` does not. NaN where permuting
        changes nothing.
        """
        return _over(self.value - self.chance, self.standard_deviation)

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        if not is_concrete(self.value) or np.ndim(self.value):
            return "Alignment(traced or batched)"
        return (
            f"Alignment({float(self.value):.3g} of the {self.reduction} kernel; with permuted "
            f"labels {float(self.chance):.3g} +- {float(self.standard_deviation):.2g}, above "
            f"chance {float(self.above):.3g}; {_OF_EXAMPLES[self.trained_on]})"
        )


def _over(difference: Number, tolerance: Number) -> Number:
    """A ratio; NaN where the denominator is no more than rounding."""
    is_rounding = tolerance < _LEAST_TOLERANCE
    if is_concrete(tolerance):  # NumPy arrays keep their precision
        return np.nan if is_rounding else difference / tolerance
    return jnp.where(is_rounding, jnp.nan, difference / jnp.where(is_rounding, 1.0, tolerance))


@errors.public
@keeps_float64
def alignment(
    kernel: KernelLike, y: jax.typing.ArrayLike, *, trained_on: bool | None = None
) -> Alignment:
    """Kernel-target alignment <K, T> / (||K||_F ||T||_F) with the target kernel T, and chance.

    - Full kernel: T = y y^T of the stacked labels, so the alignment is y^T K y / (||K|| ||y||^2).
    - Reduced kernel: T = Y Y^T with Y `[n o]`. For one column this is the same formula; for several
      columns the two are different numbers, so compare like with like.

    Kernel and labels are centred: the mean over examples, per output, is removed from both. Without
    that a network with biases shows little more than its constant mode. The alignment rises when
    features are learned.

    It is not zero for labels that are unrelated to the kernel. With A' the alignment of permuted
    labels, each example getting the label (the whole row of it) of another,

        chance = E A',    standard deviation = sqrt(E A'^2 - chance^2),

    over all N! permutations, exactly and without drawing any. For a reduced kernel
    chance = tr(K) tr(T) / ((N - 1) ||K|| ||T||), all centred. Runs under `jax.jit`.

    Cost: O(N^2) for a reduced kernel; for a full one O(N (N C)^2 + N^2 C^3), less than one
    eigendecomposition, and three times its memory. Source: Cristianini et al. 2001; Cortes et al.
    2012 (centred); Baratin et al. 2021 (arXiv 2008.00938) for the full kernel. Kazi-Aoual et al.
    1995 for the moments of a reduced kernel; for a full one see
    `ntkdiag.analysis.permutation_test`. The form of `above` is that of Hubert and Arabie 1985.

    Args:
        kernel: A `Kernel`, its `Spectrum`, a matrix `[n n]` or a full kernel `[n o n o]`.
        y: `[n]` or `[n o]`: regression targets, one-hot rows, or class numbers if the kernel states
            its outputs.
        trained_on: Whether the network was trained on these examples, whose labels its kernel knows
            then. None where that is not known. The result says it.

    Returns:
        Value, chance, standard deviation, and the part above chance; NaN for a kernel that is
        constant over examples, zero among them.

    Raises:
        InvalidInputError: When kernel or labels are not finite or do not fit, or the labels are
            the same for all examples.

    Example:
        >>> import numpy as np
        >>> y = np.array([1.0, -1.0])
        >>> round(float(alignment(np.outer(y, y), y)), 6)
        1.0
        >>> rows = np.random.default_rng(0).normal(size=(64, 1000))  # hardly alike: K is nearly I
        >>> tokens = np.eye(64)  # 64 examples of 64 classes
        >>> aligned = alignment(rows @ rows.T, tokens)
        >>> round(float(aligned.value), 2), round(float(aligned.above), 2)
        (0.97, 0.0)
    """
    operand, labels = read_with_labels(kernel, y, centred=True)
    array = centred_array(operand)
    value, chance, deviation = _beside_chance(array, labels)
    reduction = "full" if operand.array.ndim == 4 else "matrix"  # of a bare array
    if operand.convention is not None:
        reduction = operand.convention.reduction
    return Alignment(value, chance, deviation, reduction, trained_on)


@jax.jit
def _beside_chance(
    array: Float[Array, "..."], labels: Float[Array, "n o"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """The alignment, its mean and its standard deviation over permutations; both are centred."""
    array = array / jnp.max(jnp.abs(array))  # keeps the fourth powers in range
    if array.ndim == 4:
        # T = y y^T of the stacked labels has the norm ||y||^2.
        inner = jnp.einsum("no,nomp,mp->", labels, array, labels)
        mean, variance = full_moments(array, labels)
        norm_of_target = jnp.sum(labels**2)
    else:
        inner = jnp.einsum("no,nm,mo->", labels, array, labels)
        mean, variance = reduced_moments(array, labels)
        norm_of_target = _norm_of_target(labels)
    # No permutation changes the norms: <K, T> is all that varies.
    norms = jnp.linalg.norm(array) * norm_of_target
    return inner / norms, mean / norms, jnp.sqrt(variance) / norms


def _norm_of_target(labels: Float[Array, "n o"]) -> Float[Array, ""]:
    """||Y Y^T||_F = ||Y^T Y||_F: of [n n] and [o o] the smaller is formed."""
    n, n_outputs = labels.shape
    products = labels @ labels.T if n < n_outputs else labels.T @ labels
    return jnp.linalg.norm(products)


def centred_array(operand: KernelArgument) -> Float[Array, "..."]:
    """The centred kernel; NaN for one constant over examples, of which centring leaves rounding."""
    roundoff = float(jnp.finfo(operand.array.dtype).eps)
    return jnp.where(is_constant(operand.array, roundoff), jnp.nan, centre_kernel(operand.array))


@functools.partial(jax.jit, static_argnums=1)
def _scaled(
    labels: Float[Array, "n o"], centred: bool
) -> tuple[Float[Array, "n o"], Float[Array, ""]]:
    """Labels in a unit of their own, which drops out of every ratio, and the largest entry."""
    labels = labels / jnp.max(jnp.abs(labels))
    if centred:
        labels = labels - jnp.mean(labels, axis=0, keepdims=True)  # over examples, per output
    return labels, jnp.max(jnp.abs(labels))


def read_with_labels(
    kernel: KernelLike, y: jax.typing.ArrayLike, centred: bool
) -> tuple[KernelArgument, Float[Array, "n o"]]:
    """The kernel, and labels that are not all zero (or, centred, not all the same)."""
    operand = read_square(kernel)
    labels, largest = _scaled(read_labels(y, operand), centred)
    rounding = ROUNDOFFS_OF_CENTRING * jnp.finfo(labels.dtype).eps
    # Labels that are all zero give NaN here.
    if is_concrete(largest) and not largest > rounding:
        expected = "labels that are not all zero"
        got = "zero labels"
        if centred:
            expected = "labels that differ between examples"
            got = "the same label for every example"
        raise errors.InvalidInputError(
            expected=expected,
            got=got,
            do="Use a probe set that holds several classes or targets.",
        )
    return operand, labels
