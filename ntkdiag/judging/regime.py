"""What a training did: the state of the network at the end, the regime, and the task.

The regime is how far the model linearized at the beginning explains the end. It rests on e1, the
error of the linearized model at the end over the change of the outputs, and on S_c, the centred
distance of the kernels, 1 - cosine. A kernel that only grows leaves S_c small, and e1 not.

The task is whether the kernel became more aligned with the labels. An alignment a has a chance
level c, its mean over permuted labels, and ends at 1. Its growth is that of

    odds = (a - c) / (1 - a),

the part above chance over the distance that remains: a network that starts at 0.6 can grow, too.
"""

import math
from typing import Literal

from ntkdiag.analysis.alignment import Alignment
from ntkdiag.analysis.degenerate import have_collapsed
from ntkdiag.judging.thresholds import (
    ALIGNMENT_DEVIATIONS,
    ALIGNMENT_GROWTH,
    LAZY_DISTANCE,
    LAZY_E1,
    NONLINEAR_DISTANCE,
    NONLINEAR_E1,
)

State = Literal["alive", "dead", "collapsed"]
Regime = Literal["lazy", "between", "nonlinear", "unchanged", "unknown"]
Task = Literal["grew", "same", "fell", "unknown"]


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


def regime_of(e1: float | None, distance_centred: float | None) -> Regime:
    """How far the model linearized at A explains B."""
    if e1 is None:
        return "unchanged"
    if e1 >= NONLINEAR_E1:
        return "nonlinear"
    if distance_centred is None or not math.isfinite(distance_centred):
        return "between" if e1 >= LAZY_E1 else "unknown"
    if e1 < LAZY_E1 and distance_centred < LAZY_DISTANCE:
        return "lazy"
    if e1 >= LAZY_E1 and distance_centred > NONLINEAR_DISTANCE:
        return "nonlinear"
    return "between"


def task_of(before: Alignment | None, after: Alignment | None) -> Task:
    """Whether the odds of the alignment grew or fell, beyond chance."""
    if before is None or after is None:
        return "unknown"
    # Not a number where a kernel is constant over examples, or permuting labels changes nothing.
    if not (math.isfinite(before.above) and math.isfinite(after.above)):
        return "unknown"
    if _exceeds(after, before):
        return "grew"
    if _exceeds(before, after):
        return "fell"
    return "same"


def odds(alignment: Alignment) -> float:
    """(a - c) / (1 - a): the part above chance over the distance that remains; 0 below chance."""
    value = float(alignment.value)
    remaining = 1.0 - value
    if remaining <= 0:  # the kernel of the labels themselves
        return math.inf
    return max(value - float(alignment.chance), 0.0) / remaining


def _exceeds(larger: Alignment, smaller: Alignment) -> bool:
    """Whether one alignment exceeds the other, and chance, by more than permuted labels vary.

    Its odds are a multiple of the other's, too.
    """
    least = max(float(smaller.value), float(larger.chance))
    variation = ALIGNMENT_DEVIATIONS * float(larger.standard_deviation)
    is_beyond = float(larger.value) - least > variation
    return is_beyond and odds(larger) >= ALIGNMENT_GROWTH * odds(smaller)
