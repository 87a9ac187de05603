"""How many steps from one measurement to the next, by the clock.

With c the seconds of a measurement and s those of a step between two of them, measuring every k
steps takes the share c / (k s + c) of the time. So k = c / (share s), rounded up.

Both are read on the host, where a measurement begins and where it ends: also for steps that take
longer than their operations say, and for batches of another size than the probe.
"""

import collections
import math
import statistics
import time

from ntkdiag.monitor.schedule import LAST_STEP, Every
from ntkdiag.monitor.time_budget import USUAL_SHARE, Budget

# The first intervals are a third as long: at the beginning much happens in few steps.
SHORT_INTERVALS = 3
# The seconds of a measurement are the median of so many: one may fall into a pause.
_LAST = 3


class Pace:
    """The clock of a monitor."""

    def __init__(self, time_share: float | None) -> None:
        self._time_share = time_share
        self._begun: float | None = None  # when the measurement under way began
        self._ended: float | None = None  # when the last one had ended
        self._step = 0  # of the last one
        self._measurements = 0
        self._wait = 0  # what the last one was told
        self._seconds: collections.deque[float] = collections.deque(maxlen=_LAST)
        self._steps_of_one = 0.0  # that a measurement takes as long as

    def begin(self) -> None:
        """A measurement begins."""
        self._begun = time.perf_counter()

    def restart(self, step: int) -> None:
        """The clock begins at a step: those before it were made beside a measurement."""
        self._ended, self._step = time.perf_counter(), step

    def end(self, step: int) -> int:
        """The measurement of a step has ended: steps to the next, 0 where that is not known."""
        if self._begun is None:
            return self._wait
        now = time.perf_counter()
        self._wait = self._steps_to_next(step, self._begun, now)
        self._begun, self._ended, self._step = None, now, step
        self._measurements += 1
        return self._wait

    def _steps_to_next(self, step: int, begun: float, now: float) -> int:
        passed = step - self._step
        if self._ended is None or passed < 1:
            return 0  # of the first measurement, no step is known beside it
        step_seconds = (begun - self._ended) / passed
        if step_seconds <= 0.0:
            return 0
        self._seconds.append(now - begun)
        taken = statistics.median(self._seconds)
        self._steps_of_one = taken / step_seconds
        if self._time_share is None:
            return 0
        wait = math.ceil(self._steps_of_one / self._time_share)
        if self._measurements < SHORT_INTERVALS:
            wait = early(wait)
        return min(wait, LAST_STEP)

    def excess_in_words(self, budget: Budget) -> str | None:
        """What a number of steps costs that has no limit, where it is more than is usual."""
        every, steps = budget.every, self._steps_of_one
        if budget.time_share is not None or not isinstance(every, Every):
            return None
        if steps <= USUAL_SHARE * every.k:
            return None
        share = steps / (every.k + steps)
        return (
            f"a measurement took {self._seconds[-1]:.2g} s, as long as {steps:.2g} training steps: "
            f"every={every.k} is {100 * share:.2g} % of the time; "
            f"every={math.ceil(steps / USUAL_SHARE)} would be {100 * USUAL_SHARE:g} %."
        )


def early(wait: int) -> int:
    """The steps to wait after one of the first measurements, where later it were so many."""
    return max(1, wait // 3)
