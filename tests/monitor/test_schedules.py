"""Schedules: the right steps, eagerly and traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import LAST_STEP, Schedule, as_schedule

from ntkdiag import errors
from ntkdiag.monitor import At, Every, LogSpaced

CASES = [
    (Every(1), list(range(20))),
    (Every(7), [0, 7, 14]),
    (Every(np.int64(7)), [0, 7, 14]),
    (LogSpaced(), [0, 1, 2, 4, 8, 16]),
    (LogSpaced(base=1.5), [0, 1, 2, 3, 5, 8, 11, 17]),
    (LogSpaced(per_decade=3), [0, 1, 2, 5, 10]),
    (At((3, 0, 3, 19)), [0, 3, 19]),
    (At([5]), [5]),
]


@pytest.mark.parametrize(("schedule", "expected"), CASES, ids=repr)
def test_steps(schedule, expected):
    assert [step for step in range(20) if schedule(step)] == expected


@pytest.mark.parametrize(("schedule", "expected"), CASES, ids=repr)
def test_steps_traced(schedule, expected):
    flags = jax.jit(jax.vmap(schedule))(jnp.arange(20))
    assert np.flatnonzero(flags).tolist() == expected


@pytest.mark.parametrize(("schedule", "expected"), CASES, ids=repr)
def test_concrete_steps_give_python_booleans(schedule, expected):
    assert all(schedule(step) is True for step in expected)


def test_per_decade_reaches_every_power_of_ten():
    steps = LogSpaced(per_decade=4).steps
    assert {10**k for k in range(10)} <= set(steps.tolist())
    assert all(np.sum((steps >= 10**k) & (steps < 10 ** (k + 1))) == 4 for k in range(1, 9))


def test_log_spaced_reaches_the_last_step_without_overflow():
    steps = LogSpaced().steps
    assert steps.dtype == np.int32
    assert steps[-1] == 2**30
    assert (np.diff(steps.astype(np.int64)) > 0).all()
    assert LogSpaced(base=1.01).steps.max() <= LAST_STEP


def test_schedules_are_values():
    assert Every(3) == Every(3)
    assert At((2, 1)) == At([1, 2])
    assert len({LogSpaced(), LogSpaced(), LogSpaced(per_decade=2)}) == 2
    assert all(isinstance(schedule, Schedule) for schedule, _ in CASES)


def test_as_schedule():
    def own(step):
        return step == 3

    assert as_schedule(10) == Every(10)
    assert as_schedule(LogSpaced()) == LogSpaced()
    assert as_schedule(own) is own


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Every(0),
            "Every(k=0): expected a positive integer number of steps; got 0. "
            "Every(100) measures at steps 0, 100, 200, ...",
        ),
        (
            lambda: Every(2.5),
            "Every(k=2.5): expected a positive integer number of steps; got 2.5. "
            "Every(100) measures at steps 0, 100, 200, ...",
        ),
        (
            lambda: Every(True),
            "Every(k=True): expected a positive integer number of steps; got True. "
            "Every(100) measures at steps 0, 100, 200, ...",
        ),
        (
            lambda: LogSpaced(base=1.0),
            "LogSpaced(base=1.0): expected a finite ratio of successive steps above 1; got 1.0. "
            "LogSpaced(base=2) measures at steps 0, 1, 2, 4, 8, ...",
        ),
        (
            lambda: LogSpaced(base=float("inf")),
            "LogSpaced(base=inf): expected a finite ratio of successive steps above 1; got inf. "
            "LogSpaced(base=2) measures at steps 0, 1, 2, 4, 8, ...",
        ),
        (
            lambda: LogSpaced(per_decade=0),
            "LogSpaced(per_decade=0): expected a positive integer; got 0. "
            "LogSpaced(per_decade=5) measures five times in each factor of ten.",
        ),
        (
            lambda: At(()),
            "At(steps=()): expected at least one step, each an integer from 0 to 2**31 - 1; got (). "
            "At((0, 10, 100)) measures at three steps.",
        ),
        (
            lambda: At((0, -1)),
            "At(steps=(0, -1)): expected at least one step, each an integer from 0 to 2**31 - 1; got (0, -1). "
            "At((0, 10, 100)) measures at three steps.",
        ),
        (
            lambda: At((0.5,)),
            "At(steps=(0.5,)): expected at least one step, each an integer from 0 to 2**31 - 1; got (0.5,). "
            "At((0, 10, 100)) measures at three steps.",
        ),
        (
            lambda: as_schedule("often"),
            "every='often': expected \"auto\", a number of steps or a schedule; got a str. "
            "Pass an int, Every(k), LogSpaced(), At((0, 10, 100)) or any function of the step.",
        ),
    ],
)
def test_messages(make, text):
    with pytest.raises(errors.InvalidInputError) as caught:
        make()
    assert str(caught.value) == text
