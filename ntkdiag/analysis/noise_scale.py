"""The gradient noise scale: the noise of the gradient of one example relative to the mean gradient.

With the gradients g_i of n examples, their Gram matrix G has all that is needed:

    tr Cov = (tr G - 1^T G 1 / n) / (n - 1)      |mean g|^2 = (1^T G 1 - tr G) / (n (n - 1))

Both are without bias: the second leaves out the products of an example with itself, which would add
tr Cov / n. The noise scale is tr Cov / |mean g|^2. Its inverse r is the number to average, because
it stays finite where the mean gradient is lost in noise:

1. The jackknife removes the remaining bias of r and gives its variance v.
2. v counts the products of two deviations twice. They add q = 2 tr(Cov^2) / (n (n - 1) (tr Cov)^2),
   which is all that there is where the mean gradient is zero; the rest, v - 2q, is proportional to
   r where r is small. So the variance is q + (v - 2q) r_0 / r if r_0 is the truth.
3. The interval holds the r_0 that are within t standard deviations of r, of the variance each of
   them implies: the roots of (r - r_0)^2 = c + b r_0 with c = t^2 q and b = t^2 (v - 2q) / r. An
   r_0 of 0 in it is a noise scale without an upper end.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.arrays import AnyArray, AnyScalar, is_concrete
from ntkdiag.estimate import Estimate, student_t
from ntkdiag.kernel.kernel_argument import KernelLike, read_square
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.pytree_dataclass import pytree

FEWEST_EXAMPLES = 8  # examples, or steps, from whose scatter an interval can come


@pytree("value", "lower", "upper", "variance", "squared_gradient")
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NoiseScale(Estimate):
    """The gradient noise scale tr Cov(g) / |mean g|^2, in examples, with its interval.

    Attributes:
        value: The estimate; infinite where the mean gradient cannot be told from zero, 0 where the
            gradients do not scatter, NaN where all are zero.
        lower: Lower end of the interval.
        upper: Upper end; infinite where the mean gradient may be zero, NaN beside a value of 0.
        variance: tr Cov(g), without bias.
        squared_gradient: |mean g|^2, without bias: it may be negative by chance.
        n: Number of examples, or of steps, whose scatter gives the interval.
    """

    variance: AnyScalar | float = np.nan
    squared_gradient: AnyScalar | float = np.nan
    n: int = 0

    def __repr__(self) -> str:
        if not is_concrete(self.value) or np.ndim(self.value):
            return "NoiseScale(traced or batched)"
        return (
            f"NoiseScale({float(self.value):.3g} examples, 95 % in [{float(self.lower):.3g}, "
            f"{float(self.upper):.3g}])"
        )


@errors.public
@keeps_float64
def noise_scale(kernel: KernelLike) -> NoiseScale:
    """The gradient noise scale tr Cov(g) / |mean g|^2 of single examples, with an interval.

    It is the batch size at which the noise of a gradient is as large as the gradient. Numerator and
    denominator are without bias, the interval is the jackknife's; see the head of this module.
    Examples have to be drawn at random, and those without weight left out. Of a kernel in the
    metric of an optimizer, it is that of the preconditioned gradient.

    Cost: O(n^2).

    Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A; the variance of products of pairs:
    Hoeffding 1948.

    Args:
        kernel: The `gradient_kernel` of 8 examples or more, or any Gram matrix of gradients
            `[n n]`.

    Returns:
        The noise scale, in examples.

    Raises:
        InvalidInputError: The kernel is another one than that of gradients, is not finite, or has
            fewer than 8 rows.

    Example:
        >>> import numpy as np
        >>> gradients = np.array([[1.0, 1.0], [1.0, -1.0]] * 8)  # mean (1, 0), variance 16 / 15
        >>> noise_scale(gradients @ gradients.T)
        NoiseScale(1.14 examples, 95 % in [0.946, 1.44])
    """
    matrix = read_gradient_kernel(kernel)
    if matrix.shape[0] < FEWEST_EXAMPLES:
        raise errors.InvalidInputError(
            expected=f"at least {FEWEST_EXAMPLES} examples, whose scatter gives the interval",
            got=f"{matrix.shape[0]}",
            do="With fewer examples the interval says nothing.",
        )
    return _of_gram(matrix)


@errors.public
@keeps_float64
def self_influence(kernel: KernelLike) -> Float[AnyArray, " n"]:
    """By how much a step of rate 1 on an example alone lowers its own loss: G[i, i].

    An example that agrees with others is learned from them, and has a small gradient where they are
    learned. A mislabelled or an odd one is learned from itself alone: its gradient stays large.
    Sort by it and look at the first twenty. Summed over the checkpoints of a run it is the
    self-influence of TracIn; `track(..., gradient_kernel=True)` keeps it.

    It finds large gradients of any origin, including large inputs. On digits with flipped labels
    the loss found as many, and `leave_one_out` of the tangent kernel more; see
    `docs/examples_and_batches.md`.

    Cost: none.

    Source: Pruthi et al. 2020 (TracIn), arXiv:2002.08484, section 4.

    Args:
        kernel: The `gradient_kernel` of some examples, or a Gram matrix of gradients `[n n]`.

    Returns:
        `[n]`, in units of the loss.

    Raises:
        InvalidInputError: The kernel is another one than that of gradients, or is not finite.

    Example:
        >>> import numpy as np
        >>> gradients = np.array([[1.0, 0.0], [1.0, 0.1], [-3.0, 0.0]])
        >>> print(self_influence(gradients @ gradients.T))
        [1.   1.01 9.  ]
    """
    return jnp.diagonal(read_gradient_kernel(kernel))


def _of_gram(gram: Float[Array, "n n"]) -> NoiseScale:
    """The noise scale from a Gram matrix of gradients."""
    n = gram.shape[0]
    squared_norms = jnp.diagonal(gram)  # |g_i|^2
    with_all = gram.sum(axis=1)  # g_i . sum_j g_j
    trace, total = squared_norms.sum(), with_all.sum()
    variance, squared_gradient = _moments(trace, total, n)

    # 1. The jackknife of r: sums without one example are the sums of all, minus its own.
    without_one = _moments(trace - squared_norms, total - 2 * with_all + squared_norms, n - 1)
    inverse, spread = _jackknife(squared_gradient / variance, without_one[1] / without_one[0])

    # 2. q, from products of deviations between different examples.
    centred = gram - with_all[:, None] / n - with_all[None, :] / n + total / n**2
    squares = jnp.sum(centred**2) - jnp.sum(jnp.diagonal(centred) ** 2)
    of_pairs = squares / (n * (n - 1)) / variance**2  # tr(Cov^2) / (tr Cov)^2
    of_pairs = 2 * of_pairs / (n * (n - 1))
    inverses = inverse_with_interval(inverse, spread, of_pairs, n)
    return _inverted(inverses, variance, squared_gradient, n)


def inverse_with_interval(
    inverse: Float[Array, ""], spread: Float[Array, ""], of_pairs: Float[Array, ""], n: int
) -> Float[Array, "3"]:
    """3. r, and the r_0 within t standard deviations of it, from v, q and the n they come from."""
    of_singles = jnp.maximum(spread - 2 * of_pairs, 0.0)
    t = student_t(n - 1)
    b = t**2 * of_singles / jnp.maximum(inverse, jnp.sqrt(of_pairs))
    c = t**2 * of_pairs
    b = jnp.where(of_singles > 0, b, 0.0)  # no scatter at all: 0 / 0
    half_width = jnp.sqrt(b * jnp.maximum(inverse, 0.0) + b**2 / 4 + c)
    return jnp.stack([inverse, inverse + b / 2 - half_width, inverse + b / 2 + half_width])


def _moments(trace: Array, total: Array, n: int) -> tuple[Array, Array]:
    """Unbiased tr Cov and |mean g|^2 from the trace and the sum of a Gram matrix of n gradients."""
    return (trace - total / n) / (n - 1), (total - trace) / (n * (n - 1))


def _jackknife(
    of_all: Float[Array, ""], without_one: Float[Array, " n"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A number less its bias of first order, and its variance."""
    n = without_one.shape[0]
    mean = without_one.mean()
    return n * of_all - (n - 1) * mean, (n - 1) / n * jnp.sum((without_one - mean) ** 2)


def _inverted(inverses: Float[Array, "3"], variance: Array, squared: Array, n: int) -> NoiseScale:
    """The noise scale from r and the ends of its interval; what is not above 0 has no inverse."""
    # NaN stays NaN: all gradients are zero.
    scales = jnp.where(inverses <= 0, jnp.inf, 1 / jnp.where(inverses <= 0, 1.0, inverses))
    # The gradients scatter only by chance: no noise, and no upper end.
    is_still = (variance <= 0) & (squared > 0)
    scales = jnp.where(is_still, jnp.asarray([0.0, jnp.nan, 0.0], scales.dtype), scales)
    value, upper, lower = scales
    return NoiseScale(
        value,
        lower,
        upper,
        is_exact=False,
        variance=variance,
        squared_gradient=squared,
        n=n,
    )


def read_gradient_kernel(kernel: KernelLike) -> Float[Array, "n n"]:
    """The Gram matrix; an error if it is not one of gradients."""
    operand = read_square(kernel)
    reduction = None if operand.convention is None else operand.convention.reduction
    if operand.array.ndim != 2 or reduction not in (None, "gradient"):
        raise errors.InvalidInputError(
            expected="the kernel of `gradient_kernel`, or a Gram matrix of gradients [n n]",
            got=f"shape {tuple(operand.array.shape)} with reduction={reduction!r}",
            do="Compute it as ntkdiag.gradient_kernel(f, params, x, y, loss=...).",
        )
    return operand.matrix
