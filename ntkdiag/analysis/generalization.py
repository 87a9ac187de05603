"""Estimates of the test error of kernel ridge regression from its training data alone.

The error of kernel ridge regression on example i, when fitted to all others, needs no second fit
(Allen's PRESS). With A = K + ridge I, the weights alpha = A^-1 y and the C x C block of A^-1 that
belongs to example i,

    e_i = ((A^-1)_ii)^-1 alpha_i.

Replacing every block by the mean of the diagonal of A^-1, as if all examples had equal leverage,
gives generalized cross-validation:

    GCV = (1/N) ||alpha||^2 / ((1/NC) tr A^-1)^2.

Both come from one decomposition K = U diag(lambda) U^T, as A^-1 = U diag(1 / (lambda + ridge)) U^T.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ntkdiag import errors
from ntkdiag.arrays import AnyArray, AnyScalar, Number, is_concrete, require_at_least_zero
from ntkdiag.kernel.kernel_argument import (
    KernelLike,
    decomposed,
    read_labels,
    read_square,
    refuse_gradient_kernel,
)
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.pytree_dataclass import pytree

# Training turns a kernel towards the labels it sees: where networks of two layers learned features,
# on 60 to 400 examples, 0.02 to 0.5 of the true error was measured; of lazy ones 0.9.
_OF_EXAMPLES = {
    True: "of examples that were trained on, whose labels the kernel knows: this may be half of "
    "the true error or far less; use held-out examples",
    False: "of examples that were not trained on",
    None: "if these examples were trained on, this may be half of the true error or far less: "
    "pass trained_on=",
}


@pytree("residuals", "mse", "gcv", "resolved")
@dataclasses.dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """What kernel ridge regression gets wrong on each example when it is trained on all others.

    Attributes:
        residuals: `[n o]`, y minus the prediction without that example; NaN when not resolved.
        mse: Mean over examples of the squared residual, summed over outputs (no factor 1/2).
        gcv: The same by generalized cross-validation, which takes all examples to have equal
            leverage; also known as KARE.
        resolved: Whether the smallest eigenvalue of K + ridge I is above the noise floor.
        trained_on: Whether the examples were trained on, and both estimates may be half of the
            true error, or far less. None where that is not known.
    """

    residuals: Float[AnyArray, "n o"]
    mse: AnyScalar
    gcv: AnyScalar
    resolved: Bool[AnyArray, ""]
    trained_on: bool | None = None

    @property
    def disagreement(self) -> Number:
        """|gcv / mse - 1|: where it is above 0.1 leverages differ, and `mse` is the one to trust.

        Inputs of different norms were measured to bias GCV by -24 %.
        """
        return abs(self.gcv / self.mse - 1.0)

    def __repr__(self) -> str:
        if not is_concrete(self.mse) or np.ndim(self.mse):
            return "LeaveOneOut(traced or batched)"
        text = f"mse {float(self.mse):.4g}, gcv {float(self.gcv):.4g}"
        if not self.resolved:
            text = "not resolved: raise the ridge"
        return f"LeaveOneOut({text}; {_OF_EXAMPLES[self.trained_on]})"


@errors.public
@keeps_float64
def leave_one_out(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    ridge: Number = 0.0,
    *,
    trained_on: bool | None = None,
) -> LeaveOneOut:
    """Exact leave-one-out residuals of kernel ridge regression (PRESS), without refitting.

    With A = K + ridge I and alpha = A^-1 y: e_i = alpha_i / (A^-1)_ii; for a full kernel all
    outputs of an example are left out together, e_i = ((A^-1)_ii)^-1 alpha_i with the C x C block.
    The result also has generalized cross-validation, (1/N) ||alpha||^2 / ((1/NC) tr A^-1)^2.

    The examples have to be held out: on those the network was trained on, the kernel after training
    knows the labels, and the estimate may be half of the true error, or far less. Of a kernel at
    initialization no examples were trained on. Subtract the network's output at the kernel's
    parameters from y to predict what training changes.

    Cost: one eigendecomposition, O((NC)^3), unless the kernel comes as its spectrum with vectors.
    Source: Allen 1974 (PRESS); Golub, Heath and Wahba 1979 (GCV); Jacot et al. 2020 (arXiv
    2006.09796) and Wei, Hu and Steinhardt 2022 (arXiv 2203.06176) for the empirical NTK.

    Args:
        kernel: A `Kernel`, its `Spectrum`, a matrix `[n n]` or a full kernel `[n o n o]`.
        y: `[n]` or `[n o]` targets.
        ridge: gamma, in the units of the kernel's eigenvalues (not relative to the trace), 0 or
            more.
        trained_on: Whether the network was trained on these examples; None where that is not known.
            The result says it.

    Returns:
        Residuals, their mean square, that by generalized cross-validation, whether they are
        resolved, and whether they are of examples that were trained on.

    Raises:
        InvalidInputError: When kernel or labels are not finite or do not fit, or the ridge is
            negative.

    Example:
        >>> import numpy as np
        >>> left_out = leave_one_out(np.diag([2.0, 1.0]), np.ones(2), 1.0)
        >>> float(left_out.mse), round(float(left_out.gcv), 3)
        (1.0, 1.04)
    """
    require_at_least_zero(ridge, "ridge")
    operand = read_square(kernel)
    refuse_gradient_kernel(operand)
    labels = read_labels(y, operand)
    modes = decomposed(operand)
    dtype = operand.array.dtype
    inverse, resolved = _regularized_inverse(
        jnp.asarray(modes.eigenvalues, dtype),
        jnp.asarray(modes.vectors, dtype),
        modes.noise_floor,
        ridge,
    )
    left_out = _left_out(inverse, resolved, labels)
    return dataclasses.replace(left_out, trained_on=trained_on)


@jax.jit
def _left_out(
    inverse: Float[Array, "k k"], resolved: Bool[Array, ""], labels: Float[Array, "n o"]
) -> LeaveOneOut:
    """Both estimates from A^-1; a full kernel has k = n o rows, a reduced one k = n."""
    n = labels.shape[0]
    k = inverse.shape[0]
    c = k // n  # outputs that are left out together
    weights = inverse @ labels.reshape(k, -1)  # alpha, [k columns]

    # e_i = ((A^-1)_ii)^-1 alpha_i, example by example.
    blocks = jnp.einsum("nonp->nop", inverse.reshape(n, c, n, c))  # [k k] -> [n c c]
    residuals = jnp.linalg.solve(blocks, weights.reshape(n, c, -1)).reshape(labels.shape)

    mean_of_diagonal = jnp.mean(jnp.diagonal(inverse))
    return LeaveOneOut(
        residuals=residuals,
        mse=jnp.sum(residuals**2) / n,
        gcv=jnp.sum(weights**2) / n / mean_of_diagonal**2,
        resolved=resolved,
    )


@jax.jit
def _regularized_inverse(
    eigenvalues: Float[Array, " k"],
    vectors: Float[Array, "k k"],
    noise_floor: Number,
    ridge: Number,
) -> tuple[Float[Array, "k k"], Bool[Array, ""]]:
    """(K + ridge I)^-1, NaN where it is not resolved, and whether it is."""
    shifted = eigenvalues + ridge
    resolved = shifted[-1] > noise_floor  # eigenvalues descend
    divisors = jnp.where(resolved, shifted, 1.0)  # nothing is divided by zero
    inverse_eigenvalues = jnp.where(resolved, 1.0 / divisors, jnp.nan)
    return (vectors * inverse_eigenvalues) @ vectors.T, resolved
