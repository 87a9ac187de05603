"""When to measure: `every=` as a function of the step, whose answer is traced under jit."""

import dataclasses
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeGuard

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ntkdiag import errors
from ntkdiag.display import shortened

LAST_STEP = 2**31 - 1  # steps are int32, as Optax counts them
# Steps between two measurements where no clock tells.
UNTIMED_PERIOD = 100

Step: TypeAlias = int | np.integer | Int[Array | np.ndarray, ""]
IsDue: TypeAlias = bool | np.bool_ | Bool[Array | np.ndarray, ""]


# Says if a step, a Python int or a traced integer, is measured.
Schedule: TypeAlias = Callable[[Step], IsDue]
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
