"""What kernels and outputs of two sides without common parameters say, in words."""

import math

from ntkdiag.report.number_text import number, percent, ratio
from ntkdiag.report.reported import Comparison


def kernels_alone_reading(comparison: Comparison) -> list[str]:
    """Sentences on two kernels and what lies between them; none for checkpoints of one model."""
    alone = comparison.kernels_alone
    if alone is None:
        return []
    sentences = [
        f"Only kernels and outputs are compared ({alone.reason}).",
        _distance(comparison),
    ]
    if math.isfinite(alone.overlap):
        sentences.append(
            f"Their {alone.modes} leading modes share {percent(alone.overlap)} of the subspace; of "
            f"random subspaces it would be {percent(alone.overlap_by_chance)}."
        )
    if alone.agreement is not None:
        sentences.append(f"A and B decide alike on {percent(alone.agreement)} of the probe.")
    return sentences


def _distance(comparison: Comparison) -> str:
    """How far apart the kernels are in direction, and in size."""
    size = f"The trace at B is {ratio(comparison.b.trace, comparison.a.trace)} that at A."
    distance = float(comparison.drift.distance_centred)
    if not math.isfinite(distance):
        return f"Centred over examples, a kernel is zero: their distance is undefined. {size}"
    return (
        f"The centred kernels have a distance of {number(distance, 3)}, from 0 the same to 1 "
        f"unrelated. {size}"
    )
