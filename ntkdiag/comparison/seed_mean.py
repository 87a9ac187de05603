"""The mean over seeds, and how far it can be trusted.

Of n runs that differ in their seed alone, with values v_1 to v_n at a step,

    mean = sum v_i / n,    s^2 = sum (v_i - mean)^2 / (n - 1),    mean +- t s / sqrt(n),

where t is the 97.5 % quantile of Student's distribution with n - 1 degrees of freedom. The interval
holds the mean over all seeds in 95 of 100 such experiments, as far as the values are normal.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ntkdiag import display

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class SeedMean:
    """A quantity over training, averaged over runs that differ in their seed.

    Attributes:
        steps: The steps that all of these runs have.
        mean: `[T ...]` mean over the runs; NaN where one of them does not know the number.
        standard_deviation: `[T ...]` over the runs, with n - 1; NaN for a single run.
        lower: `[T ...]` lower end of the 95 % interval of the mean, mean - t s / sqrt(n).
        upper: `[T ...]` its upper end.
        n_runs: How many runs.
        reason: Why numbers are NaN; empty where none is.
    """

    steps: list[int]
    mean: Float[np.ndarray, "T *shape"]
    standard_deviation: Float[np.ndarray, "T *shape"]
    lower: Float[np.ndarray, "T *shape"]
    upper: Float[np.ndarray, "T *shape"]
    n_runs: int
    reason: str

    def __repr__(self) -> str:
        return display.described(self)


def mean_over_seeds(
    series: Mapping[str, Float[np.ndarray, "T *shape"]], steps: Mapping[str, list[int]]
) -> SeedMean:
    """Average the series of several runs, by name, over the steps that all of them have."""
    common = common_steps(list(steps.values()))
    at_common = []
    for name, values in series.items():
        places = [steps[name].index(step) for step in common]
        at_common.append(values[places])
    values = np.stack(at_common)  # [n T ...]
    n = len(values)
    mean = values.mean(axis=0)
    if n == 1:
        unknown = np.full_like(mean, np.nan)
        reason = _joined("one run: its spread over seeds is not known", _unknown(series, mean))
        return SeedMean(common, mean, unknown, unknown, unknown, n, reason)
    from scipy.special import stdtrit  # only now: it is slow to import

    deviation = values.std(axis=0, ddof=1)
    quantile = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2.0))
    half_width = quantile * deviation / np.sqrt(n)
    return SeedMean(
        steps=common,
        mean=mean,
        standard_deviation=deviation,
        lower=mean - half_width,
        upper=mean + half_width,
        n_runs=n,
        reason=_joined(_no_common(common), _unknown(series, mean)),
    )


def common_steps(steps: list[list[int]]) -> list[int]:
    """The steps that are in every one of the lists, in ascending order."""
    return sorted(set.intersection(*map(set, steps)))


def _no_common(common: list[int]) -> str:
    """Why there is no mean at all."""
    return "" if common else "the runs have no step in common"


def _unknown(series: Mapping[str, np.ndarray], mean: np.ndarray) -> str:
    """Which runs do not know the number, where the mean is NaN for it."""
    if not np.isnan(mean).any():
        return ""
    names = [name for name, values in series.items() if np.isnan(values).any()]
    return f"not known at some steps of {', '.join(names)}"


def _joined(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)
