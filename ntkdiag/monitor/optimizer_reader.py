"""Reads what the optimizer of a training does, and keeps what is found out of it once."""

import dataclasses
from typing import TYPE_CHECKING

from jaxtyping import Array, Int

from ntkdiag.models.array_leaves import arrays_alone
from ntkdiag.monitor.error_isolation import described, own_errors_raise, warn
from ntkdiag.monitor.training_step import TrainingStep
from ntkdiag.optimizer.optimizer_rule import (
    ArrayReading,
    Reading,
    read_arrays,
    read_arrays_after,
    stated_arrays,
    unread,
)

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerReader:
    """Reads an optimizer from the steps that it makes."""

    # The optimizer of Optax; None where it is not at hand.
    optimizer: "optax.GradientTransformationExtraArgs | None"
    # The paths of the parameters that it was read for.
    arrays: list[str] = dataclasses.field(init=False, default_factory=list)
    # What went wrong while it was read, in sentences.
    failures: list[str] = dataclasses.field(init=False, default_factory=list)
    # Why it was refused, in sentences.
    objections: list[str] = dataclasses.field(init=False, default_factory=list)

    def read(self, training_step: TrainingStep, step: Int[Array, ""]) -> ArrayReading | None:
        """The reading; None where nothing is at hand to read."""
        try:
            reading = self._reading(training_step, step)
        except Exception as error:
            if own_errors_raise():
                raise
            failure = f"The optimizer could not be read: {described(error)}"
            if failure not in self.failures:
                self.failures.append(failure)
                warn(f"{failure}. This is an error of ntkdiag: please report it.")
            reading = unread(arrays_alone(training_step).params, Reading.FAILED)
        if reading is not None:
            self.arrays[:] = reading.arrays
        return reading

    def _reading(self, training_step: TrainingStep, step: Int[Array, ""]) -> ArrayReading | None:
        """What the optimizer does, from the update it made; or as it was stated."""
        stated = training_step.descent
        if stated is not None and stated.learning_rate is not None:
            return stated_arrays(stated, training_step.params, step)
        if self.optimizer is None:
            return None
        training_step = arrays_alone(training_step)
        if training_step.state is not None and training_step.gradient is not None:
            return read_arrays(
                self.optimizer.update,
                training_step.gradient,
                training_step.state,
                training_step.params,
                training_step.update,
                step=step,
                state_after=training_step.state_after,
                extra_args=training_step.extra_args,
                note=self.objections.append,
            )
        if training_step.state_after is None:
            return None
        return read_arrays_after(
            self.optimizer.update,
            training_step.state_after,
            training_step.params,
            step=step,
            made=training_step.update,
            gradient=training_step.gradient,
            extra_args=training_step.extra_args,
        )
