"""How often a monitor measures: a schedule, and the share of the time of training.

With `every="auto"` a measurement that takes as long as s steps of training is made every s / share
steps, by count (see `choosing`) and, where the host hears of measurements, by the clock (see
`pace`). A schedule of the user is obeyed; where it is dear, that is said.
"""

import dataclasses
import math

import numpy as np

from ntkdiag.monitor.checks import require_limit
from ntkdiag.monitor.error_isolation import say
from ntkdiag.monitor.instrument_set import InstrumentSet
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.schedule import Automatic, Every, Schedule, ScheduleLike, as_schedule
from ntkdiag.scalars import require_positive

# The share of training with `every="auto"`, where none is said.
USUAL_SHARE = 0.01
# Steps between two measurements that are counted, where a schedule is no `Every`.
USUAL_PERIOD = 100


@dataclasses.dataclass(frozen=True)
class Budget:
    """How often is measured, and what share of training that may take.

    Attributes:
        every: The schedule.
        time_share: Largest share of the time of training; None for no limit.
        batch_size: Examples of one training step; None for those of the probe.
    """

    every: Schedule
    time_share: float | None
    batch_size: int | None

    @staticmethod
    def of(
        every: ScheduleLike,
        time_share: float | int | np.number | None,
        batch_size: int | None,
        usual_share: float = USUAL_SHARE,
    ) -> "Budget":
        """The budget of `every=`, `time_share=` and `batch_size=`.

        Raises:
            InvalidInputError: The schedule is none, or share or batch no number above zero.
        """
        schedule = as_schedule(every)
        require_limit(
            "time_share",
            time_share,
            expected="a positive share of the wall time",
            do="0.01 is one percent; None sets no limit.",
        )
        if batch_size is not None:
            require_positive(batch_size, "batch_size")
        if time_share is None and isinstance(schedule, Automatic):
            time_share = usual_share
        return Budget(schedule, None if time_share is None else float(time_share), batch_size)

    @property
    def period(self) -> int:
        """Steps from one measurement to the next, by the schedule alone."""
        if isinstance(self.every, Automatic):
            return 1
        return int(self.every.k) if isinstance(self.every, Every) else USUAL_PERIOD

    def batch(self, layout: ProbeLayout) -> int:
        """Examples of one training step."""
        return layout.n_examples if self.batch_size is None else self.batch_size

    def wait(self, steps: float) -> int:
        """Steps to the next measurement, of which each takes as long as so many steps."""
        if self.time_share is None:
            return self.period
        return max(self.period, math.ceil(steps / self.time_share))


def cost_in_words(instrument_set: InstrumentSet, budget: Budget) -> str:
    """What measuring costs, in one sentence."""
    wait = budget.wait(instrument_set.steps)
    share = f"{100 * instrument_set.steps / wait:.3g} % of training"
    takes = f"a measurement takes about {instrument_set.steps:.2g} training steps"
    if isinstance(budget.every, Automatic):
        return f"{takes}: one in {wait:,} steps is {share}"
    return f"{takes}: every={_written(budget)} is {share}"


def excess_in_words(instrument_set: InstrumentSet, budget: Budget) -> str | None:
    """What a schedule of the user costs, where it is more than is usual; None where it is not."""
    is_usual = instrument_set.steps <= USUAL_SHARE * budget.period
    if budget.time_share is not None or not isinstance(budget.every, Every) or is_usual:
        return None
    cheaper = math.ceil(instrument_set.steps / USUAL_SHARE)
    return (
        f"{cost_in_words(instrument_set, budget)}; every={cheaper} would be {100 * USUAL_SHARE:g} %"
    )


def say_once(call: str, instrument_set: InstrumentSet, budget: Budget) -> None:
    """Say at the start what is not measured, and what a dear schedule costs."""
    excess = excess_in_words(instrument_set, budget)
    for sentence in (*instrument_set.notes, *([] if excess is None else [f"{excess}."])):
        say(f"{call}: {sentence}")


def _written(budget: Budget) -> str:
    """The schedule, as it is written."""
    every = budget.every
    return str(every.k) if isinstance(every, Every) else type(every).__name__
