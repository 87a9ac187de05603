"""The argument `loss`: an object, a name, or a function."""

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.arrays import Number
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.loss import Loss, Shape
from ntkdiag.losses.means import MSE, CrossEntropy, SigmoidCrossEntropy

BY_NAME = {kind.name: kind for kind in (MSE, CrossEntropy, SigmoidCrossEntropy)}
LossLike: TypeAlias = Loss | str | Callable[[Array, PyTree], Array]


def as_loss(loss: LossLike | None) -> Loss | None:
    """Read the argument `loss`: an object, a name, or a function; None where none was named."""
    if loss is None or isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in BY_NAME:
        return BY_NAME[loss]()
    # A class instead of its instance, loss=MSE, is callable too and would fail later.
    if callable(loss) and not isinstance(loss, type):
        return CustomLoss(loss)
    names = ", ".join(f'"{name}"' for name in BY_NAME)
    raise errors.InvalidInputError(
        expected=f"`loss` as {names}, an object of ntkdiag.losses, or a function loss(outputs, y)",
        got=repr(loss),
        do="Leave it out if there is no loss: then there are no stability numbers.",
    )


def require_loss(loss: LossLike | None, what: str) -> Loss:
    """Read the argument `loss`, and refuse None: `what` names the number that depends on it."""
    named = as_loss(loss)
    if named is None:
        raise errors.InvalidInputError(
            expected=f"the loss that is trained: {what} depends on it",
            got="loss=None",
            do='Pass loss="mse", "cross_entropy", "sigmoid_cross_entropy", an object of '
            "ntkdiag.losses, or a function loss(outputs, y).",
        )
    return named


def denominator_of(loss: Loss, shape: Shape | None) -> Number:
    """D of the loss; a bare matrix does not say how many examples its rows stand for."""
    if shape is not None:
        return loss.denominator_for(shape)
    stated = getattr(loss, "denominator", None)
    if stated is not None:
        return stated
    raise errors.InvalidInputError(
        expected="a loss with a denominator, because a bare matrix does not say how many outputs "
        "an example has",
        got=f'loss="{loss.name}"',
        do="Pass the Kernel that `ntk` returned, the array [n o n o], outputs or targets [n o], or "
        "ntkdiag.losses.MSE(denominator=...) with the number of examples.",
    )
