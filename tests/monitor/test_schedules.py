"""Schedules: the right steps, eagerly and traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import Schedule, as_schedule

from ntkdiag import errors
from ntkdiag.monitor import log_spaced

CASES = [
    (as_schedule(1), list(range(20))),
    (as_schedule(7), [0, 7, 14]),
    (as_schedule(np.int64(7)), [0, 7, 14]),
    (log_spaced, [0, 1, 2, 4, 8, 16]),
]


@pytest.mark.parametrize(("schedule", "expected"), CASES)
def test_steps(schedule, expected):
    assert isinstance(schedule, Schedule)
    assert all(schedule(step) is (step in expected) for step in range(20))
    flags = jax.jit(jax.vmap(schedule))(jnp.arange(20))
    assert np.flatnonzero(flags).tolist() == expected


@pytest.mark.smoke
def test_as_schedule():
    def own(step):
        return step == 3

    assert as_schedule(10) == as_schedule(np.int32(10))
    assert as_schedule(own) is own


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("every", "got"), [(0, "0"), (2.5, "a float"), (True, "a bool"), ("often", "a str")]
)
def test_messages(every, got):
    with pytest.raises(errors.InvalidInputError) as caught:
        as_schedule(every)
    assert str(caught.value) == (
        f'every={every!r}: expected "auto", a positive number of steps, or a function of the step; '
        f"got {got}. every=100 measures at steps 0, 100, 200, ..."
    )
