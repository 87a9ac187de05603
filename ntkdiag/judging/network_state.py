"""Whether a network still tells examples apart, as `ntkdiag.analysis.degenerate` defines it."""

from typing import Literal

from ntkdiag.analysis.degenerate import have_collapsed

State = Literal["alive", "dead", "collapsed"]


def state(
    *, is_dead: bool, equal: bool, spread: float, spread_before: float, at_constant_loss: bool
) -> State:
    """Dead before collapsed before alive."""
    if is_dead:
        return "dead"
    collapsed = have_collapsed(
        equal=equal, spread=spread, spread_before=spread_before, at_constant_loss=at_constant_loss
    )
    return "collapsed" if collapsed else "alive"
