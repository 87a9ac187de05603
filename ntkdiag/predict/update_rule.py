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


def warn_above_critical(rule: Descent, curvature: Number) -> bool:
    """Warn when a learning rate is above the critical one at a curvature; returns whether it is.

    The curvature is lambda_max / D plus the coefficient of the penalty. Nothing is said under
    `jax.jit`, where the numbers are not known.
    """
    rate = rule.require_learning_rate()
    numbers = (rate, rule.momentum, curvature)
    if not all(is_concrete(number) for number in numbers):
        return False
    if float(curvature) <= 0.0:
        return False  # nothing moves
    critical = float(rule.critical_rate(float(curvature)))
    is_above = float(rate) > critical * (1 + 1e-6)
    if is_above:
        errors.warn(
            f"{errors.current_call()}: learning_rate {float(rate):.6g} is above the critical "
            f"{critical:.6g}: the outputs grow without bound, as they would in training.",
            RuntimeWarning,
        )
    return is_above
