"""The update rule of a prediction: what of a `Descent` can be predicted, and when it diverges."""

from ntkdiag import errors
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.scalars import Number, is_concrete, require_positive


def read_rule(descent: DescentLike) -> Descent:
    """The update rule as a `Descent` of one positive learning rate."""
    rule = as_descent(descent)
    require_positive(rule.require_learning_rate(), "learning_rate")
    if rule.preconditioner is not None:
        raise errors.InvalidInputError(
            expected="`descent` without a preconditioner, which belongs to the kernel here",
            got=f"a {type(rule.preconditioner).__name__}",
            do="Pass the kernel ntk(f, params, x, preconditioner=P), and leave P out of `descent`.",
        )
    if not is_concrete(rule.weight_decay) or float(rule.weight_decay) != 0.0:
        raise errors.InvalidInputError(
            expected="`descent` without weight decay",
            got=f"weight_decay={rule.weight_decay}",
            do="Pass `ridge=`, which pulls to the initial parameters, or train "
            "ntkdiag.linearized_model with optax.add_decayed_weights before optax.sgd.",
        )
    return rule


def warn_above_critical(rule: Descent, curvature: Number) -> None:
    """Warn of a learning rate above the critical one at a curvature, where both are known.

    The curvature is lambda_max / D plus the coefficient of the penalty.
    """
    rate = rule.require_learning_rate()
    if not all(map(is_concrete, (rate, rule.momentum, curvature))) or float(curvature) <= 0.0:
        return
    critical = float(rule.critical_rate(float(curvature)))
    if float(rate) > critical * (1 + 1e-6):
        errors.warn(
            f"{errors.current_call()}: learning_rate {float(rate):.6g} is above the critical "
            f"{critical:.6g}: the outputs grow without bound, as they would in training.",
            RuntimeWarning,
        )
