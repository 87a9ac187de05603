"""Schedules: the right steps, eagerly and traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import as_schedule

from ntkdiag import errors
from ntkdiag.monitor import log_spaced


@pytest.mark.smoke
def test_steps():
    for every, expected in [(np.int64(7), [0, 7, 14]), (log_spaced, [0, 1, 2, 4, 8, 16])]:
        schedule = as_schedule(every)
        assert all(schedule(step) is (step in expected) for step in range(20))
        flags = jax.jit(jax.vmap(schedule))(jnp.arange(20))
        assert np.flatnonzero(flags).tolist() == expected


@pytest.mark.usefixtures("wrong_types")
def test_what_is_no_schedule_is_refused():
    for every in [0, 2.5, True, "often"]:
        with pytest.raises(
            errors.InvalidInputError, match="every=100 measures at steps 0, 100, 200"
        ):
            as_schedule(every)
