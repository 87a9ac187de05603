"""One word for the regime between two checkpoints, with the criterion spelled out.

In lazy training the kernel stays what it was, and the model linearized at the start explains what
was learned; in the rich regime the kernel turns, and turns towards the labels. Three numbers tell:

- e1, the error of the linearized model at B over the change of the outputs;
- S_c, the distance of the centred kernels, 1 - cosine between them: 0 is the same direction;
- the growth of the alignment, the cosine between the centred kernel and that of the labels.
"""

import dataclasses
import math
from typing import Literal

# Bounds of the two regimes; between them lies MIXED.
LAZY_E1 = 0.1
LAZY_DISTANCE = 0.01
RICH_DISTANCE = 0.1
RICH_GROWTH = 2.0  # alignment at B over alignment at A
CRITERION = (
    f"LAZY if e1 < {LAZY_E1} and S_c < {LAZY_DISTANCE}: the model linearized at A explains B. "
    f"RICH if S_c > {RICH_DISTANCE} and the centred alignment with the labels grew at least "
    f"{RICH_GROWTH:g}-fold: features were learned. UNCHANGED if the outputs are the same up to "
    "rounding. MIXED otherwise."
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The regime.

    Attributes:
        name: "LAZY", "RICH", "MIXED", or "UNCHANGED".
        numbers: The numbers it rests on, in words.
        criterion: The rule.
    """

    name: Literal["LAZY", "RICH", "MIXED", "UNCHANGED"]
    numbers: str
    criterion: str = CRITERION


def regime(
    e1: float | None, distance_centred: float, alignment_a: float | None, alignment_b: float | None
) -> Verdict:
    """Decide between lazy training and feature learning, by `CRITERION`.

    Args:
        e1: Linearization error, ||f_B - f_lin|| / ||f_B - f_A||; None if the outputs did not change
            beyond rounding.
        distance_centred: S_c, the kernel distance of the centred kernels.
        alignment_a: Centred kernel-target alignment at A; None without labels, and then RICH cannot
            be found.
        alignment_b: The same at B.

    Returns:
        The verdict.
    """
    if e1 is None:
        return Verdict(
            "UNCHANGED",
            "The outputs on the probe are the same at A and B, or differ by too little to tell it "
            "from rounding.",
        )
    growth = _describe_growth(alignment_a, alignment_b)
    numbers = f"e1 = {e1:.3g}, S_c = {_written(distance_centred)}, {growth}."
    if e1 < LAZY_E1 and distance_centred < LAZY_DISTANCE:
        return Verdict("LAZY", numbers)
    if distance_centred > RICH_DISTANCE and _has_grown(alignment_a, alignment_b):
        return Verdict("RICH", numbers)
    return Verdict("MIXED", numbers)


def _has_grown(before: float | None, after: float | None) -> bool:
    """Whether the alignment is known on both sides and grew as much as the criterion asks."""
    if before is None or after is None:
        return False
    # The alignment may be negative, and twice a negative number is no growth.
    return after > 0 and after >= RICH_GROWTH * before


def _describe_growth(before: float | None, after: float | None) -> str:
    """The alignment on both sides, and their ratio where it has a meaning."""
    if before is None or after is None:
        return "alignment unknown without labels"
    text = f"alignment {_written(before)} to {_written(after)}"
    # Over zero or a negative alignment a ratio says nothing.
    if before > 0 and math.isfinite(after):
        text += f" ({after / before:.3g}-fold)"
    return text


def _written(value: float) -> str:
    """Three digits; a number that is not finite is undefined, as for a kernel of zero."""
    return f"{value:.3g}" if math.isfinite(value) else "undefined"
