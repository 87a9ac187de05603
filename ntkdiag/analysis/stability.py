"""Whether a learning rate is too large for the kernel at hand."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.analysis.curvature import Loss, curvature_matrix, curvature_product
from ntkdiag.analysis.momentum import MomentumKind, stability_threshold
from ntkdiag.analysis.top_spectrum import largest_pairs, operator_product
from ntkdiag.kernels.kernel import Kernel
from ntkdiag.kernels.operands.denominator import denominator_of
from ntkdiag.kernels.operands.number import Number, require_at_least_zero, require_positive
from ntkdiag.kernels.operands.operand import KernelLike, Operand, read_square, refuse
from ntkdiag.kernels.operands.precision import keeps_float64
from ntkdiag.linearization import NTKOperator

Scalar = Float[Array, ""]


@keeps_float64
def critical_learning_rate(
    kernel: KernelLike | NTKOperator,
    *,
    loss: Loss = "mse",
    logits: jax.typing.ArrayLike | None = None,
    momentum: Number = 0.0,
    momentum_kind: MomentumKind = "heavy-ball",
    weight_decay: Number = 0.0,
    loss_denominator: Number | None = None,
) -> Scalar:
    """The learning rate at which training of the linearized model starts to diverge: the margin is 1 there.

    eta = 1 / (lambda_max(Sigma^1/2 Theta Sigma^1/2) / (D tau) + weight_decay / 2); without momentum and decay,
    2 D / lambda_max. Exact for full-batch gradient descent on the linearized model under squared error; for the
    cross-entropies see `stability_margin`.
    Cost: as `stability_margin`.

    Args:
        kernel: As for `stability_margin`.
        loss: As for `stability_margin`.
        logits: As for `stability_margin`.
        momentum: As for `stability_margin`.
        momentum_kind: As for `stability_margin`.
        weight_decay: As for `stability_margin`.
        loss_denominator: As for `stability_margin`.

    Returns:
        A learning rate; infinite for a zero kernel without weight decay.

    Raises:
        InvalidInputError: As `stability_margin`.
    """
    call = "critical_learning_rate(kernel)"
    require_at_least_zero(weight_decay, call, "weight_decay")
    threshold = stability_threshold(momentum, momentum_kind)
    curvature = _largest_curvature(kernel, loss, logits, loss_denominator, call)
    return 1.0 / (curvature / threshold + 0.5 * weight_decay)


@keeps_float64
def stability_margin(
    kernel: KernelLike | NTKOperator,
    learning_rate: Number,
    *,
    loss: Loss = "mse",
    logits: jax.typing.ArrayLike | None = None,
    momentum: Number = 0.0,
    momentum_kind: MomentumKind = "heavy-ball",
    weight_decay: Number = 0.0,
    loss_denominator: Number | None = None,
) -> Scalar:
    """How close a learning rate is to divergence: under squared error the linearized model diverges iff it is above 1.

    m = eta (lambda_max(Sigma^1/2 Theta Sigma^1/2) / (D tau) + weight_decay / 2).
    Below 0.5 there is slack, 0.8 to 1.1 is the edge of stability, above it for many steps a catapult or divergence.
    For the cross-entropies it is that of the quadratic model of the loss at these outputs: above 1 the loss may rise or
    oscillate, but its gradient is bounded and its curvature falls as predictions become certain.
    tau is `stability_threshold`. For Adam pass the preconditioned kernel J P^-1 J^T and ``momentum_kind="ema"``.
    The loss is (1/D) sum_i loss_i, with 1/2 squared error summed over outputs for "mse". By default D = N.
    A loss that means over outputs too has D = N C; one without the 1/2 has D = N / 2.
    Cost: one eigendecomposition without vectors, O((NC)^3); for an `NTKOperator` some 50 products, as `top_spectrum`.
    Source: Cohen et al. 2021 (arXiv 2103.00065), 2022 (2207.14484); decoupled decay by the same characteristic roots.

    Args:
        kernel: The full kernel, that of a single output, or an `NTKOperator`. A bare matrix needs `loss_denominator`,
            or `logits`.
        learning_rate: eta.
        loss: "mse", "cross_entropy" (softmax) or "sigmoid_cross_entropy".
        logits: `[n o]` outputs of the same examples, for the cross-entropies; an `NTKOperator` computes them where they
            are not given.
        momentum: beta in [0, 1).
        momentum_kind: "heavy-ball", "nesterov" or "ema".
        weight_decay: Decoupled decay (w <- w - eta weight_decay w beside the update), per unit of learning rate.
        loss_denominator: D; None for the number of examples.

    Returns:
        m, without unit.

    Raises:
        InvalidInputError: When the kernel is reduced, not finite or not square, a bare matrix comes without
            `loss_denominator` and `logits`, or a number is out of its range.
    """
    call = "stability_margin(kernel, learning_rate)"
    require_at_least_zero(learning_rate, call, "learning_rate")
    require_at_least_zero(weight_decay, call, "weight_decay")
    threshold = stability_threshold(momentum, momentum_kind)
    curvature = _largest_curvature(kernel, loss, logits, loss_denominator, call)
    return learning_rate * (curvature / threshold + 0.5 * weight_decay)


def _largest_curvature(
    kernel: KernelLike | NTKOperator,
    loss: Loss,
    logits: jax.typing.ArrayLike | None,
    loss_denominator: Number | None,
    call: str,
) -> jax.Array:
    if isinstance(kernel, NTKOperator):
        if loss != "mse" and logits is None:
            logits = kernel.outputs()
        denominator = float(kernel.n_examples) if loss_denominator is None else loss_denominator
        require_positive(denominator, call, "loss_denominator")
        product, rows = operator_product(kernel, call)
        product = curvature_product(product, rows, kernel.n_examples, loss, logits, call)
        return jnp.asarray(largest_pairs(product, rows, 1, call=call).values[0]) / denominator
    operand = _read_full(kernel, call)
    matrix = curvature_matrix(operand, loss, logits, call)
    if loss_denominator is None and logits is not None:
        loss_denominator = float(jnp.shape(logits)[0])  # the logits say what a bare matrix does not
    return jnp.linalg.eigvalsh(matrix)[-1] / denominator_of(operand, loss_denominator, call)


def _read_full(kernel: KernelLike, call: str) -> Operand:
    convention = kernel.convention if isinstance(kernel, Kernel) else None
    if convention is not None and (
        convention.outputs == "projection" or (convention.outputs != "full" and convention.n_outputs > 1)
    ):
        refuse(
            call,
            expected='the full kernel (outputs="full") or that of a single output',
            got=f'outputs="{convention.outputs}" of {convention.n_outputs} outputs',
            do="lambda_max(reduced) <= lambda_max(full), up to the factor C of a trace, so the learning rate would "
            'be unsafe: compute `ntk(..., outputs="full")` or a matrix-free lambda_max.',
        )
    return read_square(kernel, call)
