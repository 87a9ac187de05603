"""How likely the loss jumps within the next 50 steps, from the last measurements of a run.

A logistic rule of two numbers, both of which a default monitor has:

    risk = 1 / (1 + exp(-(c + sum_i w_i z_i))),     z_i = log x_i, between log 0.01 and log 100
    x    = the margin, and the update norm over its median

where the median is that of the ten measurements before, of three at least. A margin that is not
known counts as 0.13, which is usual, and an update norm as 0.97 of its median.

Weights and threshold are those of `python -m benchmarks.alarms`, fitted to one half of its 200
runs; docs/alarms.md says what they are worth on the other half, and what they do not see.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from ntkdiag.judging.measured_row import Row, number_of

# How many steps it looks ahead.
STEPS_AHEAD = 50

CONSTANT = -2.39
WEIGHTS = {"margin": 0.36, "update norm over its median": 1.11}
# Of what is not known.
USUAL = {"margin": 0.13, "update norm over its median": 0.97}
# At most one false alarm in 10^4 steps, on the runs that it was fitted to.
THRESHOLD = 0.320

_PAST = 10
# Measurements that it looks at.
HISTORY = _PAST + 1
_FEWEST = 3
_MOST = 100.0


def spike_numbers(history: Sequence[Row]) -> dict[str, float]:
    """The numbers of the rule at the last of some measurements; NaN where one is not known.

    Of the first three nothing is known: the margin of a cold start of Adam means nothing.
    """
    is_begun = len(history) > _FEWEST
    return {
        "margin": number_of(history[-1], "margin") if is_begun else math.nan,
        "update norm over its median": over_median(history, "update_norm"),
    }


def spike_risk(measured: Mapping[str, float]) -> float:
    """The risk, from 0 to 1; NaN where none of its numbers is known."""
    if not any(map(_is_known, measured.values())):
        return math.nan
    total = CONSTANT
    for name, number in measured.items():
        total += WEIGHTS[name] * logarithm(number if _is_known(number) else USUAL[name])
    return 1.0 / (1.0 + math.exp(-total))


def logarithm(number: float) -> float:
    """log x, between log 0.01 and log 100."""
    return math.log(min(max(number, 1.0 / _MOST), _MOST))


def _is_known(number: float) -> bool:
    return math.isfinite(number) and number > 0.0


def over_median(history: Sequence[Row], name: str) -> float:
    """The last number over the median of those before; NaN with fewer than three."""
    before = [number_of(row, name) for row in history[-1 - _PAST : -1]]
    before = [number for number in before if math.isfinite(number)]
    if len(before) < _FEWEST:
        return math.nan
    usual = statistics.median(before)
    return number_of(history[-1], name) / usual if usual > 0.0 else math.nan
