"""Whether a network still tells examples apart, as `ntkdiag.analysis.degenerate` defines it."""

from typing import Literal

from ntkdiag.analysis.degenerate import have_collapsed

State = Literal["alive", "dead", "collapsed"]


def state(
    *, is_dead: bool, equal: bool, spread: float, spread_before: float, at_constant_loss: bool
) -> State:
    """Dead before collapsed before alive.

    Args:
        is_dead: Whether no parameter tells two examples apart.
        equal: Whether the outputs are the same for every example, up to rounding.
        spread: Root mean square of the outputs about their mean over examples.
        spread_before: The same at the beginning.
        at_constant_loss: Whether the loss is that of the best constant outputs, or above.
    """
    if is_dead:
        return "dead"
    collapsed = have_collapsed(
        equal=equal, spread=spread, spread_before=spread_before, at_constant_loss=at_constant_loss
    )
    return "collapsed" if collapsed else "alive"
