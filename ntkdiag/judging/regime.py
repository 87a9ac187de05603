"""How far the model linearized at the beginning explains the end.

It rests on

- e1, the error of the linearized model at the end over the change of the outputs;
- S_c, the distance of the centred kernels, 1 - cosine between them: 0 is the same direction.

A network may leave the linear regime by a kernel that turns, or by one that grows: then S_c is
small, and e1 is not.
"""

import math
from typing import Literal

LAZY_E1 = 0.1
LAZY_DISTANCE = 0.01
NONLINEAR_E1 = 0.5
NONLINEAR_DISTANCE = 0.1

Regime = Literal["lazy", "between", "nonlinear", "unchanged", "unknown"]


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
