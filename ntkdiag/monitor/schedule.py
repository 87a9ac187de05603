"""When to measure: `every=` as a function of the step, and the clock of `every="auto"`.

Under jit a step is traced, and so is the answer. With c the seconds of a measurement and s those of
a step between two of them, measuring every k steps takes the share c / (k s + c) of the time. So
k = c / (share s), rounded up. A `Monitor` reads both on the host; `watch` has no clock.
"""

import collections
import dataclasses
import math
import statistics
import time
from typing import Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ntkdiag import errors
from ntkdiag.display import shortened

LAST_STEP = 2**31 - 1  # steps are int32, as Optax counts them
# The share of the time of training with `every="auto"`.
USUAL_SHARE = 0.01
# The share from which on a `Monitor` says what a number of steps costs.
_DEAR = 0.1
# Steps between two measurements where no clock tells.
UNTIMED_PERIOD = 100
# Intervals at the beginning that are a third as long: much happens in few steps there.
SHORT_INTERVALS = 3
# The seconds of a measurement are the median of so many: one may fall into a pause.
_LAST = 3

Step: TypeAlias = int | np.integer | Int[Array | np.ndarray, ""]
IsDue: TypeAlias = bool | np.bool_ | Bool[Array | np.ndarray, ""]


@runtime_checkable
class Schedule(Protocol):
    """Whatever says if a step is measured: `schedule(step) -> bool`, traceable in `step`."""

    def __call__(self, step: Step) -> IsDue:
        """True when `step`, a Python int or a traced integer, is to be measured."""
        ...


# What users write.
ScheduleLike: TypeAlias = Literal["auto"] | int | np.integer | Schedule


@dataclasses.dataclass(frozen=True)
class Automatic:
    """`every="auto"`: as often as the clock of a `Monitor` allows.

    Where there is no clock, powers of 2 up to the usual period, and multiples of that.
    """

    def __call__(self, step: Step) -> IsDue:
        """Whether a step is measured where no clock tells."""
        return jnp.logical_or(
            (step % UNTIMED_PERIOD) == 0, log_spaced(step) & (step < UNTIMED_PERIOD)
        )


@dataclasses.dataclass(frozen=True)
class Every:
    """Steps 0, k, 2k, ...: `every=k`."""

    k: int  # steps between two measurements, at least 1

    def __call__(self, step: Step) -> IsDue:
        """True at multiples of `k`, 0 included."""
        return step % self.k == 0


def log_spaced(step: Step) -> IsDue:
    """Whether a step is 0 or a power of 2: `every=ntkdiag.monitor.log_spaced`."""
    return (step & (step - 1)) == 0


def as_schedule(every: ScheduleLike) -> Schedule:
    """A schedule from the argument `every`: an int is `Every(int)`, a callable is itself."""
    if isinstance(every, str) and every == "auto":
        return Automatic()
    if _is_integer(every) and every >= 1:
        return Every(int(every))
    if callable(every):
        return every
    raise errors.InvalidInputError(
        argument=f"every={every!r}",
        expected='"auto", a positive number of steps, or a function of the step',
        got=repr(every) if _is_integer(every) else f"a {type(every).__name__}",
        do="every=100 measures at steps 0, 100, 200, ...",
    )


def require_step(step: object) -> int:
    """The number of a step that a loop hands in; refused where it is none."""
    try:
        number = int(step)  # pyright: ignore[reportArgumentType]
        is_step = number == step and 0 <= number <= LAST_STEP
    except (TypeError, ValueError, OverflowError):
        is_step = False
    if not is_step:
        raise errors.InvalidInputError(
            expected="a step, an integer from 0 to 2^31 - 1",
            got=shortened(step),
            do="Pass the number of the step that the parameters belong to: 0 before the first "
            "update.",
        )
    return number


def _is_integer(value: object) -> TypeGuard[int | np.integer]:
    """Whether a value is an integer; a flag is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class Pace:
    """The clock of a monitor."""

    def __init__(self, time_share: float | None) -> None:
        self._time_share = time_share
        self._begun: float | None = None  # when the measurement under way began
        self._ended: float | None = None  # when the last one had ended
        self._step = 0  # of the last one
        self._measurements = 0
        self._seconds: collections.deque[float] = collections.deque(maxlen=_LAST)
        self.in_steps = 0.0  # that a measurement takes as long as

    def begin(self) -> None:
        """A measurement begins."""
        self._begun = time.perf_counter()

    def restart(self, step: int) -> None:
        """The clock begins at a step: those before it were made beside a measurement."""
        self._ended, self._step = time.perf_counter(), step

    def end(self, step: int) -> int:
        """The measurement of a step has ended: steps to the next, 0 where that is not known."""
        if self._begun is None:
            return 0
        now = time.perf_counter()
        wait = self._steps_to_next(step, self._begun, now)
        self._begun, self._ended, self._step = None, now, step
        self._measurements += 1
        return wait

    def _steps_to_next(self, step: int, begun: float, now: float) -> int:
        passed = step - self._step
        if self._ended is None or passed < 1:
            return 0  # of the first measurement, no step is known beside it
        step_seconds = (begun - self._ended) / passed
        if step_seconds <= 0.0:
            return 0
        self._seconds.append(now - begun)
        self.in_steps = statistics.median(self._seconds) / step_seconds
        if self._time_share is None:
            return 0
        wait = math.ceil(self.in_steps / self._time_share)
        if self._measurements < SHORT_INTERVALS:
            wait = early(wait)
        return min(wait, LAST_STEP)

    def excess_in_words(self, every: Schedule) -> str | None:
        """What a number of steps costs, where it is a tenth of the time or more."""
        steps = self.in_steps
        if not isinstance(every, Every) or steps < _DEAR * every.k:
            return None
        return (
            f"A measurement took {self._seconds[-1]:.2g} s, as long as {steps:.2g} training steps: "
            f"with every={every.k} training takes {1 + steps / every.k:.2g} times as long. "
            f"every={math.ceil(steps / USUAL_SHARE)} costs {100 * USUAL_SHARE:g} % of the time."
        )


def early(wait: int) -> int:
    """The steps to wait after one of the first measurements, where later it were so many."""
    return max(1, wait // 3)
