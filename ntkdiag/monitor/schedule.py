"""When to measure: schedules are frozen objects, called with a step, under jit or not.

Under jit a step is traced, and so is the answer. So `Every` divides, and `LogSpaced` and `At` hold
all of their steps as an array and ask whether the step is among them.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
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


# What users write; optax.inject_hyperparams makes an array of a number of steps.
ScheduleLike: TypeAlias = Literal["auto"] | int | np.integer | Int[Array, ""] | Schedule


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
    """Steps 0, k, 2k, ...

    Attributes:
        k: Steps between two measurements, at least 1.

    Raises:
        InvalidInputError: When `k` is not a positive integer.
    """

    k: int | np.integer

    @errors.public
    def __post_init__(self) -> None:
        if not _is_integer(self.k) or self.k < 1:
            raise errors.InvalidInputError(
                expected="a positive integer number of steps",
                got=repr(self.k),
                do="Every(100) measures at steps 0, 100, 200, ...",
            )
        object.__setattr__(self, "k", int(self.k))

    def __call__(self, step: Step) -> IsDue:
        """True at multiples of `k`, 0 included."""
        return step % self.k == 0


@dataclasses.dataclass(frozen=True)
class LogSpaced:
    """Steps spaced evenly in log(step).

    They are 0, then powers of `base` rounded to integers, or `per_decade` steps per decade:
    LogSpaced() is 0, 1, 2, 4, 8, ...; LogSpaced(per_decade=3) is 0, 1, 2, 5, 10, 22, 46, 100, ...

    Attributes:
        base: Ratio of successive steps, above 1.
        per_decade: Number of steps in each factor of ten; replaces `base`.

    Raises:
        InvalidInputError: When `base` is not finite and above 1, or `per_decade` is not a positive
            integer.
    """

    base: float | int = 2.0
    per_decade: int | None = None

    @errors.public
    def __post_init__(self) -> None:
        if self.per_decade is not None and not (
            _is_integer(self.per_decade) and self.per_decade >= 1
        ):
            raise errors.InvalidInputError(
                expected="a positive integer",
                got=repr(self.per_decade),
                do="LogSpaced(per_decade=5) measures five times in each factor of ten.",
            )
        is_ratio = isinstance(self.base, int | float) and 1.0 < self.base < math.inf
        if not is_ratio:
            raise errors.InvalidInputError(
                expected="a finite ratio of successive steps above 1",
                got=repr(self.base),
                do="LogSpaced(base=2) measures at steps 0, 1, 2, 4, 8, ...",
            )

    @property
    def steps(self) -> Int[np.ndarray, " steps"]:
        """Every measured step up to the largest int32, ascending."""
        if self.per_decade is None:
            return _log_steps(self.base)
        return _log_steps(10.0 ** (1.0 / self.per_decade))

    def __call__(self, step: Step) -> IsDue:
        """True at the steps of `steps`."""
        return _is_in(step, self.steps)


@dataclasses.dataclass(frozen=True)
class At:
    """The given steps and no others.

    Kernel drift is measured from the first measurement, so include 0 to measure it from
    initialisation.

    Attributes:
        steps: Non-negative integers, in any order; kept as an ascending tuple.

    Raises:
        InvalidInputError: When `steps` is empty or holds something else than steps.
    """

    steps: Sequence[int] | int | Int[np.ndarray, " steps"]

    @errors.public
    def __post_init__(self) -> None:
        steps = np.atleast_1d(np.asarray(self.steps))
        are_integers = steps.size > 0 and steps.dtype.kind in "iu"
        if not are_integers or steps.min() < 0 or steps.max() > LAST_STEP:
            raise errors.InvalidInputError(
                expected="at least one step, each an integer from 0 to 2**31 - 1",
                got=repr(self.steps),
                do="At((0, 10, 100)) measures at three steps.",
            )
        ascending = sorted({int(step) for step in steps.ravel()})
        object.__setattr__(self, "steps", tuple(ascending))

    def __call__(self, step: Step) -> IsDue:
        """True at the given steps."""
        return _is_in(step, np.asarray(self.steps, np.int32))


def as_schedule(every: ScheduleLike) -> Schedule:
    """A schedule from the argument `every`: an int is `Every(int)`, a callable is itself.

    Args:
        every: "auto", a number of steps, or a schedule.

    Returns:
        The schedule.

    Raises:
        InvalidInputError: When `every` is neither.
    """
    if isinstance(every, str) and every == "auto":
        return Automatic()
    if _is_integer(every):
        return Every(int(every))
    if callable(every):
        return every
    if (
        isinstance(every, jax.Array)
        and every.ndim == 0
        and jnp.issubdtype(every.dtype, jnp.integer)
    ):
        return _every_traced(every)
    raise errors.InvalidInputError(
        argument=f"every={every!r}",
        expected='"auto", a number of steps or a schedule',
        got=f"a {type(every).__name__}",
        do="Pass an int, Every(k), LogSpaced(), At((0, 10, 100)) or any function of the step.",
    )


def _every_traced(every: Int[Array, ""]) -> Schedule:
    """`Every` of a number that may be traced."""
    if not isinstance(every, Tracer):
        return Every(int(every))

    def hyperparameter(step: Step) -> IsDue:
        return step % every == 0

    return hyperparameter


def _is_integer(value: object) -> TypeGuard[int | np.integer]:
    """Whether a value is an integer; a flag is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_in(step: Step, steps: Int[np.ndarray, " steps"]) -> IsDue:
    """Whether a step is among some steps; a Python bool for a step that is not traced."""
    if isinstance(step, Tracer):
        return jnp.isin(step, steps)
    return bool(np.isin(step, steps))


@functools.cache
def _log_steps(ratio: float | int) -> Int[np.ndarray, " steps"]:
    """0 and the powers of a ratio that fit into int32, rounded, each once."""
    # ratio^0, ratio^1, ... up to the last that can fit; small ones may round to the same step.
    count = int(np.log(LAST_STEP) / np.log(ratio)) + 1
    powers = np.round(ratio ** np.arange(count, dtype=np.float64))
    powers = powers[powers <= LAST_STEP]
    return np.unique(np.concatenate([[0.0], powers])).astype(np.int32)
