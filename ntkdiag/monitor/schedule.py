"""When to measure: `every=` as a function of the step, whose answer is traced under jit.

With `every="auto"` a clock decides. If a measurement takes c seconds and a step between two of them
s, measuring every k steps takes the share c / (k s + c) of the time: k = c / (share s), rounded up.
"""

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeGuard

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ntkdiag import errors

# Steps between two measurements where no clock tells.
UNTIMED_PERIOD = 100
# An infinite wait, for int32.
_MOST_STEPS = 2**30
# The share of the time of training with `every="auto"`.
_USUAL_SHARE = 0.01
# The share above which a `Monitor` warns about the cost of `every=k`.
_DEAR = 0.1
# The first intervals are a third as long: much happens in few steps there.
_SHORT_INTERVALS = 3
# The seconds of a measurement are the median of so many: one may fall into a pause.
RECENT = 3

Step: TypeAlias = int | np.integer | Int[Array | np.ndarray, ""]
IsDue: TypeAlias = bool | np.bool_ | Bool[Array | np.ndarray, ""]


# Says if a step, a Python int or a traced integer, is measured.
Schedule: TypeAlias = Callable[[Step], IsDue]
# What users write.
ScheduleLike: TypeAlias = Literal["auto"] | int | np.integer | Schedule


@dataclasses.dataclass(frozen=True)
class Automatic:
    """`every="auto"` where no clock tells: powers of 2 up to 64, then every 100th step."""

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


def _is_integer(value: object) -> TypeGuard[int | np.integer]:
    """Whether a value is an integer; a flag is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclasses.dataclass
class Cost:
    """Wall time of a monitor; the first measurement, which compiles, is kept apart."""

    setup_seconds: float = 0.0  # the first measurement, compilation included
    seconds: float = 0.0  # all later measurements together, and those that failed
    elapsed: float = 0.0  # wall time since the end of the first
    measurements: int = 0  # measurements made

    def __post_init__(self) -> None:
        self._first_ended: float | None = None
        self._last_ended, self._last_step = 0.0, 0  # where the steps beside measurements begin
        self._recent: collections.deque[float] = collections.deque(maxlen=RECENT)
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
        return min(max(wait, 1), _MOST_STEPS)

    def excess(self, every: Schedule) -> str | None:
        """What a number of steps costs, as a sentence, where it is a tenth of the time or more."""
        steps = self._in_steps
        if not isinstance(every, Every) or steps is None or steps < _DEAR * every.k:
            return None
        return (
            f"A measurement takes as long as {steps:.2g} training steps: with every={every.k} "
            f"training takes {1 + steps / every.k:.2g} times as long. "
            f"every={math.ceil(steps / _USUAL_SHARE)} costs {100 * _USUAL_SHARE:g} % of the time."
        )

    def __str__(self) -> str:
        """One line for logs."""
        return (
            f"{self.measurements} measurements; first "
            f"{self.setup_seconds:.3g} s with compilation, then {self.seconds:.3g} s of "
            f"{self.elapsed:.3g} s ({100 * self.share:.2g} %)"
        )
