"""Whether a learning rate is too large for the kernel at hand.

The Gauss-Newton matrix J^T Sigma J / D of a loss with curvature Sigma in the outputs has the
nonzero eigenvalues of L^T Theta L / D, Sigma = L L^T. Its largest eigenvalue is the curvature h;
the update rule decides which learning rate is stable at that curvature:

1. Read the kernel, the loss and the outputs, and find D.
2. h = lambda_max(L^T Theta L) / D, from the spectrum of the kernel, or from products with an
   operator.
3. The answer is `Descent.margin(h)` or `Descent.critical_rate(h)`.
"""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from ntkdiag import errors, memory
from ntkdiag.arrays import AnyArray, AnyScalar, Number, as_array
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.kernel_argument import KernelArgument, KernelLike, decomposed, read_square
from ntkdiag.kernel.spectrum import Spectrum, decompose
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import Loss
from ntkdiag.losses.curvature import CurvatureFactor
from ntkdiag.losses.loss_argument import LossLike, denominator_of, require_loss
from ntkdiag.matrix_free import lanczos
from ntkdiag.matrix_free.kernel_products import operator_products
from ntkdiag.matrix_free.lanczos import Vector
from ntkdiag.matrix_free.operator import NTKOperator

Outputs: TypeAlias = Float[ArrayLike, "n *o"]

# Of the residual, relative to the largest eigenvalue: the error of that is about its square.
_TOLERANCE = 1e-5


@errors.public
@keeps_float64
def critical_learning_rate(
    kernel: KernelLike | NTKOperator,
    descent: DescentLike | None = None,
    *,
    loss: LossLike | None = None,
    outputs: Outputs | None = None,
    y: PyTree | None = None,
) -> AnyScalar:
    """The learning rate at which the linearized model starts to diverge: the margin is 1 there.

    eta = 1 / (lambda_max(Sigma^1/2 Theta Sigma^1/2) / (D tau) + w / 2); without momentum and decay
    it is 2 D / lambda_max. Exact for full-batch gradient descent on the linearized model under
    squared error; for the cross-entropies see `stability_margin`.

    Cost: as `stability_margin`.

    Args:
        kernel: As for `stability_margin`.
        descent: A `Descent`; its learning rate is not used. None is plain gradient descent.
        loss: As for `stability_margin`.
        outputs: As for `stability_margin`.
        y: As for `stability_margin`.

    Returns:
        A learning rate; infinite for a zero kernel without weight decay.

    Raises:
        InvalidInputError: As `stability_margin`.

    Example:
        >>> import jax.numpy as jnp
        >>> kernel = jnp.eye(4).reshape(2, 2, 2, 2)
        >>> float(critical_learning_rate(kernel, loss="mse"))  # 2 N / lambda_max
        4.0
    """
    rule = Descent() if descent is None else as_descent(descent)
    curvature = _largest_curvature(kernel, rule, loss, outputs, y)
    return jnp.asarray(rule.critical_rate(curvature))


@errors.public
@keeps_float64
def stability_margin(
    kernel: KernelLike | NTKOperator,
    descent: DescentLike,
    *,
    loss: LossLike | None = None,
    outputs: Outputs | None = None,
    y: PyTree | None = None,
) -> AnyScalar:
    """How close a learning rate is to divergence: the linearized model diverges iff it is above 1.

    m = eta (lambda_max(Sigma^1/2 Theta Sigma^1/2) / (D tau) + w / 2), with eta, tau and w those of
    the `Descent` and Sigma and D those of the `Loss`. Below 0.9 training is stable, 0.9 to 1.3 is
    the edge of stability. Above 1.5 for many steps training may diverge.

    That is exact under squared error. For the cross-entropies it is the margin of the quadratic
    model of the loss at these outputs: above 1 the loss may rise or oscillate, but its gradient is
    bounded and its curvature falls as predictions become certain. For Adam pass the preconditioned
    kernel J P^-1 J^T and ``Descent(..., kind="ema", preconditioner=P)``.

    Cost: one eigendecomposition without vectors, O((NC)^3), none for a `Spectrum` under squared
    error; for an `NTKOperator` about 10 products.

    Source: Cohen et al. 2021 (arXiv 2103.00065), 2022 (2207.14484); decoupled decay by the same
    characteristic roots.

    Args:
        kernel: The full kernel, that of a single output, their `Spectrum`, or an `NTKOperator`. A
            bare matrix needs `outputs`, or a loss that states its denominator.
        descent: A `Descent`, or the learning rate of plain gradient descent.
        loss: The loss that is trained: "mse", "cross_entropy" (softmax), "sigmoid_cross_entropy",
            an object of `ntkdiag.losses`, or a function `loss(outputs, y)`. There is no margin
            without a loss.
        outputs: `[n ...]`, the values f(params, x) of the same examples, where the curvature is
            taken. Not needed for squared error; an `NTKOperator` computes them.
        y: The labels, for a loss of the user, whose curvature may depend on them, or as
            `ntkdiag.losses.Weighted(y, weights)` where not all of them count alike.

    Returns:
        m, a number without unit.

    Raises:
        InvalidInputError: When no loss is named, the kernel is reduced, not finite or not square,
            outputs or labels are missing or do not fit, the update rule has a preconditioner and
            the kernel none, or there is no learning rate.

    Example:
        >>> import jax.numpy as jnp
        >>> float(stability_margin(jnp.eye(4).reshape(2, 2, 2, 2), 1.0, loss="mse"))
        0.25
    """
    rule = as_descent(descent)
    rule.require_learning_rate()
    curvature = _largest_curvature(kernel, rule, loss, outputs, y)
    return jnp.asarray(rule.margin(curvature))


def _largest_curvature(
    kernel: KernelLike | NTKOperator,
    descent: Descent,
    loss: LossLike | None,
    outputs: Outputs | None,
    y: PyTree | None,
) -> Float[Array, ""]:
    """The largest eigenvalue of the Gauss-Newton matrix, lambda_max(L^T Theta L) / D."""
    trained_loss = require_loss(loss, "the curvature")
    if outputs is not None:
        outputs = jnp.asarray(as_array(outputs, "outputs"))
    if isinstance(kernel, NTKOperator):
        require_preconditioned(kernel.preconditioner.kind, descent)
        return jnp.asarray(largest_of_products(kernel, trained_loss, outputs, y))
    operand = _read_full(kernel)
    if operand.convention is not None:
        require_preconditioned(operand.convention.preconditioner, descent)
    return _of_kernel(operand, trained_loss, outputs, y)


def _of_kernel(
    operand: KernelArgument, loss: Loss, outputs: jax.Array | None, y: PyTree | None
) -> Float[Array, ""]:
    """The largest curvature from a kernel in memory."""
    # D first: incomplete arguments are refused before anything is decomposed.
    shape = shape_of_outputs(operand, outputs)
    denominator = denominator_of(loss, shape)
    if loss.has_unit_curvature(y):
        # Sigma is the identity: the eigenvalues are those of the kernel.
        gauss_newton = decomposed(operand, vectors=False)
    else:
        matrix = _curvature_factor(operand, loss, outputs, y).around(operand.matrix)  # L^T Theta L
        gauss_newton = decompose(matrix, operand.resolution, vectors=False)
    return jnp.asarray(gauss_newton.largest, operand.array.dtype) / denominator


def gauss_newton_matrix(
    kernel: KernelLike, *, loss: Loss, outputs: jax.Array, y: PyTree | None
) -> Float[AnyArray, "k k"] | None:
    """L^T Theta L / D, rows (example, output); None for a loss that is not convex."""
    operand = _read_full(kernel)
    denominator = denominator_of(loss, shape_of_outputs(operand, outputs))
    if loss.has_unit_curvature(y):
        return operand.matrix / denominator
    factor = _curvature_factor(operand, loss, outputs, y)
    return None if factor.signs is not None else factor.around(operand.matrix) / denominator


def _curvature_factor(
    operand: KernelArgument, loss: Loss, outputs: jax.Array | None, y: PyTree | None
) -> CurvatureFactor:
    """L, of the outputs of the examples that the kernel is of."""
    values = _outputs_for(loss, outputs, shape_of_outputs(operand, outputs))
    labels = None if y is None else loss.read(y, values.shape)
    return loss.curvature(values.astype(operand.array.dtype), labels)


def shape_of_outputs(operand: KernelArgument, outputs: jax.Array | None) -> tuple[int, ...] | None:
    """The shape of the outputs, as they came or as the kernel states it; None for a bare matrix."""
    rows = operand.matrix.shape[0]
    if outputs is not None:
        shape = outputs.shape
        require_rows(shape, rows)
        # Rows of a bare matrix may be examples or examples times outputs: the shape of the outputs
        # decides.
        if operand.array.ndim == 2 and operand.convention is None:
            return shape
        if shape[0] == operand.n_examples:
            return shape
        raise errors.InvalidInputError(
            expected=f"`outputs` of the {operand.n_examples} examples of the kernel",
            got=f"shape {shape}",
            do="Pass f(params, x) of the same examples as the kernel.",
        )
    # Four axes, or a convention, say what the rows stand for.
    if operand.array.ndim == 4 or operand.convention is not None:
        return operand.n_examples, operand.n_outputs
    return None


def _outputs_for(loss: Loss, outputs: jax.Array | None, shape: tuple[int, ...] | None) -> jax.Array:
    """The outputs, refused where they are missing and matter."""
    if outputs is None and loss.is_quadratic and shape is not None:
        return jnp.zeros(shape)  # weights alone make its curvature
    if outputs is None:
        raise errors.InvalidInputError(
            expected=f'`outputs` of shape [n o]: the curvature of loss="{loss.name}" depends on '
            "them",
            got="None",
            do="Pass `outputs=f(params, x)` of the same examples as the kernel.",
        )
    return outputs


def require_preconditioned(of_kernel: str, descent: Descent) -> None:
    """Refuse an update rule with a preconditioner beside a kernel without one."""
    if descent.preconditioner is not None and of_kernel == "none":
        raise errors.InvalidInputError(
            expected="the kernel J P^-1 J^T for a Descent with a preconditioner",
            got="the kernel J J^T",
            do="Compute it as ntk(..., preconditioner=P) or NTKOperator(..., preconditioner=P), "
            "with the same P.",
        )


def _read_full(kernel: KernelLike) -> KernelArgument:
    """The kernel, refused where it is reduced: its largest eigenvalue is another one."""
    convention = kernel.convention if isinstance(kernel, Kernel | Spectrum) else None
    if convention is not None:
        is_reduced = convention.reduction != "full" and convention.n_outputs > 1
        if is_reduced or convention.reduction == "gradient":
            raise errors.InvalidInputError(
                expected='the full kernel (reduction="full") or that of a single output',
                got=f'reduction="{convention.reduction}" of {convention.n_outputs} outputs',
                do="lambda_max(reduced) <= lambda_max(full), up to the factor C of a trace, so the "
                'learning rate would be unsafe: compute `ntk(..., reduction="full")` or a '
                "matrix-free lambda_max.",
            )
    return read_square(kernel)


def largest_of_products(
    operator: NTKOperator, loss: Loss, outputs: Outputs | None, y: PyTree | None
) -> Number:
    """The largest eigenvalue of Sigma Theta / D; outputs that did not come are computed."""
    kernel = operator_products(operator)
    n_examples = kernel.size // math.prod(operator.output_shape)
    shape = (n_examples, *operator.output_shape)
    values: Outputs = np.zeros(shape)  # of which the curvature of squared error does not depend
    if not loss.is_quadratic:
        values = operator.outputs() if outputs is None else as_array(outputs, "outputs")
        require_rows(values.shape, kernel.size)
    factor = CurvatureFactor()
    if not loss.has_unit_curvature(y):
        labels = None if y is None else loss.read(y, shape)
        factor = loss.curvature(values.reshape(shape), labels).on_host()

    def product(v: Vector, /) -> Vector:
        # v -> L v -> Theta L v -> L^T Theta L v
        image = kernel.product(np.asarray(factor.times(v)))
        return np.asarray(factor.transposed_times(image))

    # A basis and its images, in float64 on the host.
    memory.require_free(
        2 * lanczos.LARGEST_BASIS * 8 * kernel.size,
        f"vectors of {kernel.size:,} rows",
        memory.host_memory,
        "Take fewer examples.",
    )
    start = np.random.default_rng(0).normal(size=kernel.size)
    signs = 1.0 if factor.signs is None else np.asarray(factor.signs)
    pair = lanczos.largest_pair(product, start, _TOLERANCE, signs=signs, roundoff=kernel.roundoff)
    if not np.isfinite(pair.values).all():
        raise lanczos.not_finite()
    if not pair.converged.all():
        relative = float(pair.residuals[0] / np.abs(pair.values[0]))
        errors.warn(
            f"{errors.current_call()}: after {pair.products} products the relative residual of "
            f"the largest eigenvalue is still {relative:.1g}.",
            RuntimeWarning,
        )
    return float(pair.values[0]) / loss.denominator_for(shape)


def require_rows(shape: tuple[int, ...], rows: int) -> None:
    """Refuse outputs that are not as many as the kernel has rows."""
    if not shape or math.prod(shape) != rows:
        raise errors.InvalidInputError(
            expected=f"`outputs` [n o] with n o = {rows} rows of the kernel",
            got=f"shape {shape}",
            do="Pass f(params, x) of the same examples as the kernel, and the full kernel.",
        )
