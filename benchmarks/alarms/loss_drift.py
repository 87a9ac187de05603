"""Whether a loss drifts up: the sum of how far it is above its own past, known as CUSUM.

    S_t = max(S_{t-1} + z_t - 1/2, 0),    z_t = (l_t - mean) / deviation, of the 50 steps before

It needs the loss of every step, and nothing else. The threshold is that of the benchmark of alarms:
at most one false alarm in 10^4 steps on one half of its runs; docs/alarms.md has the other half.
"""

import math
from collections.abc import Sequence

import numpy as np

THRESHOLD = 30.9

_PAST = 50
_FEWEST = 10
_ALLOWED = 0.5  # deviations above the mean that count as none
_LEAST_DEVIATION = 1e-8


def drifts(losses: Sequence[float]) -> list[float]:
    """The sum after each step."""
    total, sums = 0.0, []
    for step, loss in enumerate(losses):
        score = _score(loss, np.asarray(losses[max(step - _PAST, 0) : step]))
        total = max(total + score - _ALLOWED, 0.0)
        sums.append(total)
    return sums


def _score(loss: float, past: np.ndarray) -> float:
    """How many deviations a loss is above its past; 0 where that is too short, or it is NaN."""
    past = past[np.isfinite(past)]
    if len(past) < _FEWEST or not math.isfinite(loss):
        return 0.0
    return float((loss - past.mean()) / max(past.std(), _LEAST_DEVIATION))
