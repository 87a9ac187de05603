"""Whether a kernel became more that of the labels.

An alignment a has a chance level c, its mean over permuted labels, and ends at 1. Its growth is
that of

    odds = (a - c) / (1 - a),

the part above chance over the distance that remains. Near chance, twice the odds is twice the part
above chance; near 1 it is half the distance that remains. So a network that starts at 0.6 can grow,
too: the ratio of alignments cannot reach 2 from there, nor can that of the parts above chance.
"""

import math
from typing import Literal

from ntkdiag.analysis.alignment import Alignment

# Odds after over odds before.
GROWTH = 1.5
# Standard deviations over permuted labels within which an alignment may be the luck of a draw.
LUCK = 2.0

Task = Literal["grew", "same", "fell", "unknown"]


def task_of(before: Alignment | None, after: Alignment | None) -> Task:
    """Whether the odds of the alignment grew or fell by `GROWTH`, beyond what chance gives."""
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


def _exceeds(larger: Alignment, smaller: Alignment) -> bool:
    """Whether one alignment is more than the luck of a draw, and `GROWTH` times the other."""
    is_luck = not larger.deviations > LUCK
    return not is_luck and odds(larger) >= GROWTH * odds(smaller)


def odds(alignment: Alignment) -> float:
    """(a - c) / (1 - a): the part above chance over the distance that remains; 0 below chance."""
    value = float(alignment.value)
    remaining = 1.0 - value
    if remaining <= 0:  # the kernel of the labels themselves
        return math.inf
    return max(value - float(alignment.chance), 0.0) / remaining
