"""A series as a line of small bars."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

BARS = "▁▂▃▄▅▆▇█"
GAP = " "  # where nothing is known


def sparkline(values: Sequence[float], width: int) -> str:
    """The means of so many stretches of a series, from its smallest to its largest."""
    # No more stretches than values: each has one at least.
    edges = np.linspace(0, len(values), min(width, len(values)) + 1).astype(int)
    means = []
    for start, stop in itertools.pairwise(edges):
        finite = [value for value in values[start:stop] if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return GAP * len(means)
    lowest, highest = min(known), max(known)
    return "".join(_bar(mean, lowest, highest) for mean in means)


def _bar(value: float, lowest: float, highest: float) -> str:
    """One bar; a series that does not move has the lowest."""
    if math.isnan(value):
        return GAP
    share = (value - lowest) / (highest - lowest) if highest > lowest else 0.0
    return BARS[round(share * (len(BARS) - 1))]
