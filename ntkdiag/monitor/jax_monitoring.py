"""A writer to the listeners of `jax.monitoring`, by which libraries of training loops log."""

from collections.abc import Mapping
from typing import Any

import jax

from ntkdiag.monitor.flat_scalars import scalars_of
from ntkdiag.monitor.writers import Values


class JaxMonitoring:
    """Records every number by `jax.monitoring.record_scalar`, for whoever listens.

    metrax and Tunix send what is recorded there to the tracker of a run. Listeners are registered
    with `jax.monitoring.register_scalar_listener`, and called as
    ``listener("ntkdiag/trace", 2.5, step=100)``. Lists are flattened as by `scalars_of`.

    Args:
        prefix: Put before every name.
    """

    def __init__(self, *, prefix: str = "ntkdiag/") -> None:
        self.prefix = prefix
        self._record: dict[str, Any] = {}

    def start(self, record: Mapping[str, Any]) -> None:
        """Note the names of the layers."""
        self._record = dict(record)

    def write(self, step: int, values: Values) -> None:
        """Record one measurement."""
        for name, number in scalars_of(values, self._record).items():
            jax.monitoring.record_scalar(self.prefix + name, number, step=step)
