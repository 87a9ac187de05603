"""Which steps are measured, inside of a training step that is compiled.

A step is due by the schedule, by the share of the time of training, or because the one before was
postponed. It is measured in a branch of a conditional, and sent to the host, which reads the clock
and answers with the steps to the next one.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from ntkdiag._jax import call_host
from ntkdiag.monitor.measurement import Status, plain_numbers
from ntkdiag.monitor.pace import SHORT_INTERVALS, Pace, early
from ntkdiag.monitor.schedule import IsDue
from ntkdiag.monitor.sink import Sink
from ntkdiag.monitor.time_budget import Budget
from ntkdiag.scalars import AnyArray

StateT = TypeVar("StateT", bound=PyTree)


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """When is measured, and where measurements go."""

    budget: Budget  # the schedule, and the share of the time
    pace: Pace  # the clock of the host
    sink: Sink  # who gets the measurements

    @property
    def keeps_time(self) -> bool:
        """Whether the host reads the clock: of several processes, each would read another time."""
        is_bounded = self.budget.time_share is not None
        return is_bounded and self.sink.is_wanted and jax.process_count() == 1

    def is_due(
        self,
        step: int | AnyArray,
        next_step: Int[AnyArray, ""],
        status: Int[AnyArray, ""],
        moves: Bool[AnyArray, ""] | None,
    ) -> IsDue:
        """Whether a step is measured."""
        is_due = self.budget.every(step)
        if self.budget.time_share is not None:
            is_due = is_due & (next_step <= step)
        is_due = is_due | (status == Status.POSTPONED)
        return is_due if moves is None else moves & is_due

    def measure_if_due(
        self,
        is_due: IsDue,
        measure: Callable[[StateT, list[Array]], StateT],
        own: StateT,
        arrays: list[Array],
        arranged: Callable[[Callable[..., StateT]], Callable[..., StateT]] = lambda branch: branch,
    ) -> StateT:
        """The state with a measurement, in a branch of a conditional."""

        def measured(own: StateT, arrays: list[Array]) -> StateT:
            with jax.named_scope("ntkdiag"):
                if not self.keeps_time:
                    return measure(own, arrays)
                # What depends on the answer begins after the clock was read.
                has_begun = call_host(self.begin) == 0
                return jax.lax.cond(has_begun, measure, lambda own, _: own, own, arrays)

        def as_it_is(own: StateT, arrays: list[Array]) -> StateT:
            del arrays
            return own

        return jax.lax.cond(jnp.asarray(is_due), arranged(measured), as_it_is, own, arrays)

    def begin(self) -> int:
        """On the host: a measurement begins."""
        self.pace.begin()
        return 0

    def wait(self, measurements: Int[Array, ""], told: Int[Array, ""] | int) -> Int[Array, ""]:
        """Steps to the next measurement."""
        untimed = self.budget.untimed_wait
        wait = jnp.where(measurements <= SHORT_INTERVALS, early(untimed), untimed)
        return jnp.where(told > 0, told, wait)

    def send(
        self, step: Int[AnyArray, ""], numbers: Mapping[str, AnyArray], record: dict[str, Any]
    ) -> Int[Array, ""]:
        """Send a measurement to the writers."""
        return call_host(functools.partial(self._send_on_host, record), step, numbers)

    def _send_on_host(
        self, record: dict[str, Any], step: Int[AnyArray, ""], numbers: Mapping[str, AnyArray]
    ) -> int:
        """During the step: an exception would end the run."""
        self.sink.put(int(step), plain_numbers(numbers), record)
        return self.pace.end(int(step))
