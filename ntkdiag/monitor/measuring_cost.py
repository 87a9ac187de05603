"""What measuring has cost so far, and how many steps `every="auto"` waits.

With c the seconds of a measurement and s those of a step between two of them, measuring every k
steps takes the share c / (k s + c) of the time. So k = c / (share s), rounded up.
"""

import collections
import dataclasses
import math
import statistics
import time

from ntkdiag.monitor.schedule import LAST_STEP, UNTIMED_PERIOD, Every, Schedule

# The share of the time of training with `every="auto"`.
_USUAL_SHARE = 0.01
# The share from which on a `Monitor` says what a number of steps costs.
_DEAR = 0.1
# The first intervals are a third as long: much happens in few steps there.
_SHORT_INTERVALS = 3
# The seconds of a measurement are the median of so many: one may fall into a pause.
_RECENT = 3


@dataclasses.dataclass
class Cost:
    """Wall time of a monitor.

    The first measurement compiles and happens once, so it is kept apart.
    """

    setup_seconds: float = 0.0  # the first measurement, compilation included
    seconds: float = 0.0  # all later measurements together, and those that failed
    elapsed: float = 0.0  # wall time since the end of the first
    measurements: int = 0  # measurements made

    def __post_init__(self) -> None:
        self._first_ended: float | None = None
        self._last_ended, self._last_step = 0.0, 0  # where the steps beside measurements begin
        self._recent: collections.deque[float] = collections.deque(maxlen=_RECENT)
        self._in_steps: float | None = None  # that a measurement takes as long as

    @property
    def share(self) -> float:
        """Part of the wall time since the first measurement that went into measuring."""
        return self.seconds / self.elapsed if self.elapsed > 0 else 0.0

    def now(self) -> float:
        """The time, which passes whether or not a step is measured."""
        now = time.perf_counter()
        if self._first_ended is not None:
            self.elapsed = now - self._first_ended
        return now

    def restart(self, step: int) -> None:
        """Count steps from here: those before were made beside a measurement."""
        self._last_ended, self._last_step = self.now(), step

    def fail(self, begun: float) -> None:
        """Count an attempt at a measurement that began at a time."""
        self.seconds += self._end(begun)

    def add(self, step: int, begun: float) -> float:
        """Count a measurement that began at a time; its seconds."""
        passed, between = step - self._last_step, begun - self._last_ended
        self._last_step = step
        seconds = self._end(begun)
        self.measurements += 1
        if self.measurements == 1:
            self.setup_seconds = seconds
            return seconds
        self.seconds += seconds
        if passed > 0 and between > 0.0:
            self._recent.append(seconds)
            self._in_steps = statistics.median(self._recent) * passed / between
        return seconds

    def _end(self, begun: float) -> float:
        now = self.now()
        if self._first_ended is None:
            self._first_ended = now
        self._last_ended = now
        return now - begun

    def steps_to_next(self) -> int:
        """Steps until the next measurement, for the usual share of the time."""
        steps = self._in_steps
        wait = UNTIMED_PERIOD if steps is None else math.ceil(steps / _USUAL_SHARE)
        if self.measurements <= _SHORT_INTERVALS:
            wait //= 3
        return min(max(wait, 1), LAST_STEP)

    def excess(self, every: Schedule) -> str | None:
        """What a number of steps costs, as a sentence, where it is a tenth of the time or more."""
        steps = self._in_steps
        if not isinstance(every, Every) or steps is None or steps < _DEAR * every.k:
            return None
        return (
            f"A measurement took {self._recent[-1]:.2g} s, as long as {steps:.2g} training steps: "
            f"with every={every.k} training takes {1 + steps / every.k:.2g} times as long. "
            f"every={math.ceil(steps / _USUAL_SHARE)} costs {100 * _USUAL_SHARE:g} % of the time."
        )

    def __str__(self) -> str:
        """One line for logs."""
        return (
            f"{self.measurements} measurements; first "
            f"{self.setup_seconds:.3g} s with compilation, then {self.seconds:.3g} s of "
            f"{self.elapsed:.3g} s ({100 * self.share:.2g} %)"
        )
