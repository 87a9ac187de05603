"""How well a number warns: area under ROC, what is caught without false alarms, and how early.

1. Each step before a spike, from the twentieth on, is one that warns rightly if the spike begins
   within the next 50 steps, and wrongly if not. The area under ROC is over all these steps.
2. The threshold is the lowest that has at most one false alarm in 10^4 steps on the runs that
   choose it. An alarm is a crossing, with none in the 50 steps before; it is false where no spike
   begins within 50 steps.
3. A spike is caught where the number is above the threshold in any of the 50 steps before it; the
   lead is from the first of these.

Intervals are bootstraps over runs.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float

from benchmarks.alarms.criterion import FEWEST
from benchmarks.alarms.stored import StoredRun
from ntkdiag.judging.spike_risk import STEPS_AHEAD

FALSE_PER_STEP = 1e-4
REDRAWS = 1000

Numbers = Float[np.ndarray, " s"]


@dataclasses.dataclass(frozen=True)
class Scored:
    """A number of one run at the steps that are judged.

    Attributes:
        run: The run.
        scores: Of each step before the spike; -inf where it is not known.
    """

    run: StoredRun
    scores: Numbers

    @staticmethod
    def of(run: StoredRun, numbers: Numbers) -> "Scored":
        """From the numbers of all steps."""
        judged = numbers[FEWEST : max(run.n_judged, FEWEST)]
        return Scored(run, np.where(np.isnan(judged), -np.inf, judged))

    @functools.cached_property
    def is_ahead(self) -> Bool[np.ndarray, " s"]:
        """The steps that a spike follows within 50 steps."""
        ahead = np.zeros(len(self.scores), bool)
        if self.run.spike is not None:
            ahead[-STEPS_AHEAD:] = True
        return ahead

    def false_alarms(self, threshold: float) -> int:
        """Crossings that no spike follows, with none in the 50 steps before."""
        count, last = 0, -STEPS_AHEAD - 1
        for t in np.flatnonzero(self.scores > threshold):
            if t - last > STEPS_AHEAD:
                count += not self.is_ahead[t]
                last = t
        return count

    def lead(self, threshold: float) -> int | None:
        """Steps from the first warning to the spike; None where it was not caught."""
        warned = np.flatnonzero((self.scores > threshold) & self.is_ahead)
        return int(len(self.scores) - warned[0]) if len(warned) else None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a number is worth, with 95 % intervals over runs.

    Attributes:
        area: Under ROC.
        caught: Share of spikes.
        false_rate: False alarms in 10^4 steps.
        leads: Of the spikes that were caught.
        threshold: As it was chosen.
    """

    area: tuple[float, float, float]
    caught: tuple[float, float, float]
    false_rate: tuple[float, float, float]
    leads: list[int]
    threshold: float


def chosen_threshold(scored: Sequence[Scored]) -> float:
    """The lowest threshold with so few false alarms."""
    allowed = int(FALSE_PER_STEP * sum(len(one.scores) for one in scored))
    harmless = np.concatenate([one.scores[~one.is_ahead] for one in scored])
    # Beyond these, from the highest on, each may be a false alarm of its own.
    candidates = np.unique(harmless[np.isfinite(harmless)])[::-1]
    chosen = np.inf
    for threshold in candidates:
        if sum(one.false_alarms(threshold) for one in scored) > allowed:
            return chosen
        chosen = float(threshold)
    return chosen


def verdict(scored: Sequence[Scored], threshold: float) -> Verdict:
    """What a number is worth on these runs, at a threshold that others chose."""
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(scored), len(scored)) for _ in range(REDRAWS)]
    leads = [one.lead(threshold) for one in scored]
    alarms = np.array([one.false_alarms(threshold) for one in scored])
    steps = np.array([len(one.scores) for one in scored])
    has_spike = np.array([one.run.spike is not None for one in scored])
    is_caught = np.array([lead is not None for lead in leads])

    def caught(chosen: np.ndarray) -> float:
        spikes = has_spike[chosen].sum()
        return float(is_caught[chosen].sum() / spikes) if spikes else np.nan

    def false_rate(chosen: np.ndarray) -> float:
        return float(1e4 * alarms[chosen].sum() / max(steps[chosen].sum(), 1))

    area = AreaByRun.of(scored)
    return Verdict(
        area=_interval(area.of_runs, draws),
        caught=_interval(caught, draws),
        false_rate=_interval(false_rate, draws),
        leads=sorted(lead for lead in leads if lead is not None),
        threshold=threshold,
    )


@dataclasses.dataclass(frozen=True)
class AreaByRun:
    """The area under ROC of any choice of runs, from how each pair of runs compares.

    Attributes:
        wins: By how many pairs of steps, of one run ahead of a spike and of another that is not,
            the first is higher; half of those that are equal. `[runs, runs]`.
        pairs: How many there are.
    """

    wins: Float[np.ndarray, "r r"]
    pairs: Float[np.ndarray, "r r"]

    @staticmethod
    def of(scored: Sequence[Scored]) -> "AreaByRun":
        """From all pairs of runs."""
        ahead = [one.scores[one.is_ahead] for one in scored]
        others = [np.sort(one.scores[~one.is_ahead]) for one in scored]
        wins = np.zeros((len(scored), len(scored)))
        pairs = np.zeros_like(wins)
        for i, high in enumerate(ahead):
            if not len(high):
                continue
            for k, low in enumerate(others):
                below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
                wins[i, k] = 0.5 * below.sum()
                pairs[i, k] = len(high) * len(low)
        return AreaByRun(wins, pairs)

    def of_runs(self, chosen: np.ndarray) -> float:
        """The area under ROC of some runs, with those that were drawn twice counted twice."""
        counts = np.bincount(chosen, minlength=len(self.wins)).astype(float)
        pairs = counts @ self.pairs @ counts
        return float(counts @ self.wins @ counts / pairs) if pairs else np.nan


def _interval(
    statistic: Callable[[np.ndarray], float], draws: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """A number of all runs, with the 95 % interval of its redraws."""
    redrawn = [statistic(chosen) for chosen in draws]
    lower, upper = np.nanpercentile(redrawn, [2.5, 97.5])
    return statistic(np.arange(len(draws[0]))), float(lower), float(upper)
