"""How large an eigenvalue each optimizer can bear, and a word when it is larger."""

from typing import Literal

import jax

from ntkdiag import errors
from ntkdiag.kernel.operand import is_concrete
from ntkdiag.scalars import Number, require_number

MomentumKind = Literal["heavy-ball", "nesterov", "ema"]


@errors.public
def stability_threshold(
    momentum: Number = 0.0, momentum_kind: MomentumKind = "heavy-ball"
) -> Number:
    """tau: gradient descent on a quadratic with curvature h converges iff learning rate * h < tau.

    - ``"heavy-ball"``: v <- beta v + g, w <- w - eta v (`optax.sgd(momentum=beta)`): tau = 2 (1 + beta);
    - ``"nesterov"``: w <- w - eta (g + beta v) (`optax.sgd(nesterov=True)`): tau = 2 (1 + beta) / (1 + 2 beta);
    - ``"ema"``: m <- beta m + (1 - beta) g, w <- w - eta m (Adam's first moment, with the preconditioned
      kernel J P^-1 J^T): tau = 2 (1 + beta) / (1 - beta), 38 at beta = 0.9.

    All three are 2 without momentum. Cost: none. Source: Cohen et al. 2021 (arXiv 2103.00065), 2022 (2207.14484).

    Args:
        momentum: beta, in [0, 1).
        momentum_kind: The update rule.

    Returns:
        tau.

    Raises:
        InvalidInputError: When beta is outside [0, 1) or the kind is unknown.
    """
    require_number(momentum, "momentum")
    if is_concrete(momentum) and not 0 <= momentum < 1:
        raise errors.InvalidInputError(
            expected="`momentum` in [0, 1)",
            got=f"{momentum}",
            do="Pass the optimizer's beta (Adam: b1).",
        )
    if momentum_kind == "heavy-ball":
        return 2.0 * (1.0 + momentum)
    if momentum_kind == "nesterov":
        return 2.0 * (1.0 + momentum) / (1.0 + 2.0 * momentum)
    if momentum_kind == "ema":
        return 2.0 * (1.0 + momentum) / (1.0 - momentum)
    raise errors.InvalidInputError(
        expected='`momentum_kind` "heavy-ball", "nesterov" or "ema"',
        got=repr(momentum_kind),
        do="optax.sgd(momentum=...) is heavy-ball, with nesterov=True nesterov; Adam is ema.",
    )


def warn_above_critical(
    learning_rate: Number,
    largest: jax.Array,
    denominator: Number,
    threshold: Number,
    weight_decay: Number,
) -> bool:
    """Warn when a learning rate is above tau / (lambda_max / D + weight decay), where outputs grow without bound.

    Nothing is said under `jax.jit`, where the numbers are not known.
    Cost: none.

    Args:
        learning_rate: eta.
        largest: lambda_max of the kernel.
        denominator: D.
        threshold: tau.
        weight_decay: Coefficient of 1/2 ||theta||^2 in the loss.

    Returns:
        Whether it is above.
    """
    numbers = (learning_rate, largest, denominator, threshold, weight_decay)
    if not all(is_concrete(number) for number in numbers):
        return False
    curvature = float(largest) / float(denominator) + float(weight_decay)
    critical = float(threshold) / curvature if curvature > 0 else float("inf")
    above = float(learning_rate) > critical * (1 + 1e-6)
    if above:
        errors.warn(
            f"{errors.current_call()}: learning_rate {float(learning_rate):.6g} is above the critical "
            f"{critical:.6g}: the outputs grow without bound, as they would in training.",
            RuntimeWarning,
        )
    return above
