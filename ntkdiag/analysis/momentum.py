"""How large an eigenvalue each optimizer can bear."""

from typing import Literal

from ntkdiag.kernels.operands.number import Number
from ntkdiag.kernels.operands.operand import is_concrete, refuse

MomentumKind = Literal["heavy-ball", "nesterov", "ema"]


def stability_threshold(momentum: Number = 0.0, momentum_kind: MomentumKind = "heavy-ball") -> Number:
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
    call = "stability_threshold(momentum, momentum_kind)"
    if is_concrete(momentum) and not 0 <= momentum < 1:
        refuse(call, expected="`momentum` in [0, 1)", got=f"{momentum}", do="Pass the optimizer's beta (Adam: b1).")
    if momentum_kind == "heavy-ball":
        return 2.0 * (1.0 + momentum)
    if momentum_kind == "nesterov":
        return 2.0 * (1.0 + momentum) / (1.0 + 2.0 * momentum)
    if momentum_kind == "ema":
        return 2.0 * (1.0 + momentum) / (1.0 - momentum)
    refuse(
        call,
        expected='`momentum_kind` "heavy-ball", "nesterov" or "ema"',
        got=repr(momentum_kind),
        do="optax.sgd(momentum=...) is heavy-ball, with nesterov=True nesterov; Adam is ema.",
    )
