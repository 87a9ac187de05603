"""When to measure: `every=` as a function of the step.

Under jit a step is traced, and so is the answer.
"""

import dataclasses
from typing import Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Int

from ntkdiag import errors

LAST_STEP = 2**31 - 1  # steps are int32, as Optax counts them

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
    """As often as the time allows: `every="auto"`.

    Each measurement says which step is the next one, see `Pace`.
    """

    def __call__(self, step: Step) -> IsDue:
        """True: whether a step is the next one, the state of the monitor says."""
        return True


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
