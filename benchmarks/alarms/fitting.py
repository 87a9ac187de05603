"""The risk of `ntkdiag.judging.spike_risk` on stored runs, and how it was fitted."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression

from benchmarks.alarms.criterion import FEWEST
from benchmarks.alarms.evaluation import Scored, chosen_threshold
from benchmarks.alarms.runs import EVERY
from benchmarks.alarms.stored import StoredRun
from ntkdiag.judging.spike_risk import (
    HISTORY,
    STEPS_AHEAD,
    USUAL,
    WEIGHTS,
    logarithm,
    spike_numbers,
    spike_risk,
)


def risk(run: StoredRun) -> Float[np.ndarray, " s"]:
    """The risk after every step, by the rule of the package."""
    risks = [spike_risk(numbers) for numbers in measured_numbers(run)]
    return np.repeat(risks, EVERY)[: len(run.columns["loss"])]


def measured_numbers(run: StoredRun) -> list[dict[str, float]]:
    """The numbers of the rule at every measurement."""
    names = ("margin", "update_norm")
    columns = {name: run.columns[name][::EVERY].tolist() for name in names}
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [spike_numbers(rows[max(k - HISTORY, 0) : k]) for k in range(1, len(rows) + 1)]


@dataclasses.dataclass(frozen=True)
class Fit:
    """What stands in the package.

    Attributes:
        constant: Of the logistic rule.
        weights: By name.
        usual: Medians, for what is not known.
        threshold: With at most one false alarm in 10^4 steps, of the rule as it stands.
    """

    constant: float
    weights: dict[str, float]
    usual: dict[str, float]
    threshold: float


def fit(runs: Sequence[StoredRun]) -> Fit:
    """From the measured steps of the half that chooses."""
    rows, labels = [], []
    for run in runs:
        steps = np.arange(FEWEST, max(run.n_judged, FEWEST), EVERY)
        numbers = measured_numbers(run)
        rows += [[numbers[step // EVERY][name] for name in WEIGHTS] for step in steps]
        labels += [run.spike is not None and step >= run.n_judged - STEPS_AHEAD for step in steps]
    table = np.array(rows)
    table[~(table > 0.0)] = np.nan
    usual = np.nanmedian(table, axis=0)
    known = np.where(np.isnan(table), usual, table)
    model = LogisticRegression().fit(np.vectorize(logarithm)(known), labels)
    return Fit(
        constant=float(model.intercept_[0]),
        weights=dict(zip(WEIGHTS, map(float, model.coef_[0]), strict=True)),
        usual=dict(zip(USUAL, map(float, usual), strict=True)),
        threshold=chosen_threshold([Scored.of(run, risk(run)) for run in runs]),
    )
