"""A measurement on its way from the compiled step to the writers on the host."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Int

from ntkdiag.monitor.measurement import plain_numbers
from ntkdiag.monitor.outbox import Outbox
from ntkdiag.monitor.pace import Pace
from ntkdiag.monitor.schedule import Schedule


def send_from_step(
    outbox: Outbox,
    due: Schedule,
    pace: Pace,
    record: dict[str, Any],
    step: Int[Array | np.ndarray, ""],
    numbers: Mapping[str, Array | np.ndarray],
    is_wanted_now: Bool[Array | np.ndarray, ""],
) -> int:
    """Send a measurement, on the host and during the step: an exception would end the run."""
    number = int(step)
    try:
        # Under `jax.vmap` all seeds are measured as soon as one is due.
        is_due = due(number) or bool(is_wanted_now)
    except Exception:  # a schedule of the user's own that takes traced steps only
        is_due = True
    if is_due:
        outbox.send(number, plain_numbers(numbers, record["name"]), record)
    return pace.end(number)
