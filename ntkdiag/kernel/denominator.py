"""The D in loss = (1/D) sum_i loss_i: most disagreements about learning rates are disagreements about it."""

from ntkdiag import errors
from ntkdiag.kernel.operand import Operand
from ntkdiag.scalars import Number, require_positive


def denominator_of(operand: Operand, loss_denominator: Number | None) -> Number:
    """The loss denominator: as given, else the number of examples.

    Cost: none.

    Args:
        operand: The kernel.
        loss_denominator: D, or None.

    Returns:
        D.

    Raises:
        InvalidInputError: When D is not positive, or None beside a bare matrix, whose rows may be examples or
            examples times outputs.
    """
    if loss_denominator is not None:
        require_positive(loss_denominator, "loss_denominator")
        return loss_denominator
    if operand.convention is None and operand.array.ndim == 2:
        raise errors.InvalidInputError(
            expected="`loss_denominator` beside a bare matrix, which does not say how many outputs an example has",
            got="None",
            do="Pass the Kernel that `ntk` returned, the array [n o n o], or `loss_denominator=` (the number of "
            "examples for a mean loss).",
        )
    return float(operand.n_examples)
