"""One word for the regime between two checkpoints, with the criterion spelled out."""

import dataclasses
import math
from typing import Literal

LAZY_E1, LAZY_DISTANCE, RICH_DISTANCE, RICH_GROWTH = 0.1, 0.01, 0.1, 2.0
CRITERION = (
    f"LAZY if e1 < {LAZY_E1} and S_c < {LAZY_DISTANCE}: the model linearized at A explains B. "
    f"RICH if S_c > {RICH_DISTANCE} and the centred alignment with the labels grew at least {RICH_GROWTH:g}-fold: "
    "features were learned. UNCHANGED if the outputs are the same up to rounding. MIXED otherwise."
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
        alignment_a: Centred kernel-target alignment at A; None without labels, and then RICH cannot be found.
        alignment_b: The same at B.

    Returns:
        The verdict.
    """
    if e1 is None:
        said = "The outputs on the probe are the same at A and B, or differ by too little to tell it from rounding."
        return Verdict("UNCHANGED", said)
    growth, grew = _growth(alignment_a, alignment_b)
    numbers = f"e1 = {e1:.3g}, S_c = {_written(distance_centred)}, {growth}."
    if e1 < LAZY_E1 and distance_centred < LAZY_DISTANCE:
        return Verdict("LAZY", numbers)
    return Verdict("RICH" if grew and distance_centred > RICH_DISTANCE else "MIXED", numbers)


def _growth(before: float | None, after: float | None) -> tuple[str, bool]:
    if before is None or after is None:
        return "alignment unknown without labels", False
    ratio = f" ({after / before:.3g}-fold)" if before > 0 and math.isfinite(after) else ""
    return (
        f"alignment {_written(before)} to {_written(after)}{ratio}",
        after > 0 and after >= RICH_GROWTH * before,
    )


def _written(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "undefined"
