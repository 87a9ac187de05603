"""How often a monitor measures: a schedule, and the share of the time of training.

With `every="auto"` a measurement that takes as long as s steps of training is made every s / share
steps, by the clock of the host (see `pace`). A schedule of the user is obeyed; where it is dear, a
`Monitor` says so.
"""

import dataclasses

import numpy as np

from ntkdiag.monitor.checks import require_limit
from ntkdiag.monitor.schedule import Automatic, Schedule, ScheduleLike, as_schedule
from ntkdiag.scalars import require_positive

# The share of training with `every="auto"`, where none is said.
USUAL_SHARE = 0.01
# Steps after which a measurement that failed is tried again.
USUAL_PERIOD = 100
# Steps between two measurements with `every="auto"` as long as no clock tells.
UNTIMED_PERIOD = 1000


@dataclasses.dataclass(frozen=True)
class Budget:
    """How often is measured, and what share of training that may take."""

    every: Schedule  # the schedule
    time_share: float | None  # largest share of the time of training; None for no limit
    batch_size: int | None  # examples of one training step, where it was told

    @staticmethod
    def of(
        every: ScheduleLike,
        time_share: float | int | np.number | None,
        batch_size: int | None,
        usual_share: float = USUAL_SHARE,
    ) -> "Budget":
        """The budget of `every=`, `time_share=` and `batch_size=`."""
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
    def untimed_wait(self) -> int:
        """Steps to the next measurement where no clock tells; a schedule goes by itself."""
        return UNTIMED_PERIOD if isinstance(self.every, Automatic) else 1
