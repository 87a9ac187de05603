"""Numbers that may warn, one of each step: the larger, the nearer a spike. NaN warns of nothing.

Each is made of what is known once step t was taken. Of what is measured at every fifth step the
last value holds.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from benchmarks.alarms.loss_drift import drifts
from benchmarks.alarms.runs import EVERY
from benchmarks.alarms.stored import StoredRun

Numbers = Float[np.ndarray, " s"]
PAST = 50


def z_score(values: Numbers) -> Numbers:
    """How many standard deviations above the mean of the last 50 steps."""

    def of(now: float, past: Numbers) -> float:
        return (now - past.mean()) / max(past.std(), 1e-8)

    return _beside_past(values, of)


def over_median(values: Numbers) -> Numbers:
    """Over the median of the last 50 steps."""
    return _beside_past(values, lambda now, past: now / max(np.median(past), 1e-30))


def measured_over_median(values: Numbers, past: int = 10) -> Numbers:
    """Over the median of the measurements before, at most so many; of what is held by steps."""
    measured = values[::EVERY]
    ratios = np.full(len(measured), np.nan)
    for k in range(3, len(measured)):
        before = measured[max(k - past, 0) : k]
        before = before[np.isfinite(before)]
        if len(before) >= 3:
            ratios[k] = measured[k] / max(np.median(before), 1e-30)
    return np.repeat(ratios, EVERY)[: len(values)]


def _beside_past(values: Numbers, of: Callable[[float, Numbers], float]) -> Numbers:
    """A number of each step beside the ones before; NaN with fewer than ten."""
    numbers = np.full(len(values), np.nan)
    for t in range(10, len(values)):
        past = values[max(t - PAST, 0) : t]
        past = past[np.isfinite(past)]
        if len(past) >= 10:
            numbers[t] = of(values[t], past)
    return numbers


# As their authors describe them.
RIVALS: dict[str, Callable[[StoredRun], Numbers]] = {
    "loss, z-score": lambda run: z_score(run.columns["loss"]),
    "loss, CUSUM": lambda run: np.array(drifts(run.columns["loss"].tolist())),
    "gradient norm, z-score": lambda run: z_score(run.columns["gradient_norm"]),
    "gradient norm": lambda run: run.columns["gradient_norm"],
    "gradient norm over its median": lambda run: over_median(run.columns["gradient_norm"]),
    "update norm over its median": lambda run: over_median(run.columns["update_norm"]),
    "kurtosis of activations": lambda run: run.columns["kurtosis"],
    "kurtosis, z-score": lambda run: z_score(run.columns["kurtosis"]),
}

OURS: dict[str, Callable[[StoredRun], Numbers]] = {
    "margin": lambda run: run.held("margin"),
    "margin over its median": lambda run: measured_over_median(run.held("margin")),
    "curvature of the gradient": lambda run: run.held("curvature_of_gradient"),
    "curvature of the gradient over its median": lambda run: measured_over_median(
        run.held("curvature_of_gradient")
    ),
    "curvature of the update": lambda run: run.held("curvature_of_update"),
    "step error": lambda run: run.held("step_error"),
    "step error over its median": lambda run: measured_over_median(run.held("step_error")),
    "1 / critical multiple": lambda run: 1.0 / run.held("critical_multiple"),
}
