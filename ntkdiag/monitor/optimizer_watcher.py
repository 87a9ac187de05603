"""`watch` without data: what an optimizer does, from gradients, states and updates alone.

1. Every step looks at some numbers of the gradient and of the parameters after it (the update,
   where they are left out): see `not_finite`. That is all it costs.
2. A step that the schedule names, or the first at which something is not finite, is looked at as a
   whole, in a branch of a conditional: norms by layer, how many numbers are not finite, the
   learning rate, and how the optimizer is read. The branch takes what there is after the step, and
   recovers what was before it: see `undone_step`.
3. A step with a gradient that is not finite has no norms, and the next one is measured instead.

The names of the numbers are those of a watch with data, which has more of them.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.estimate import Estimate
from ntkdiag.models.array_leaves import arrays_alone, split_arrays
from ntkdiag.models.paths import shown
from ntkdiag.monitor import packed_numbers
from ntkdiag.monitor.arrays_of_step import ArrayOrder
from ntkdiag.monitor.error_isolation import (
    FailureNotice,
    isolated,
    say,
)
from ntkdiag.monitor.instruments.instrument import Estimates
from ntkdiag.monitor.instruments.norms_of_step import norms_of_step
from ntkdiag.monitor.measured_steps import MeasuredSteps
from ntkdiag.monitor.measurement import Status, flat
from ntkdiag.monitor.not_finite import looks_finite
from ntkdiag.monitor.optimizer_reader import OptimizerReader
from ntkdiag.monitor.optimizer_record import record_without_data, settings_without_data
from ntkdiag.monitor.run_log import RunLog
from ntkdiag.monitor.schedule import IsDue
from ntkdiag.monitor.training_step import StepAfter, TrainingStep
from ntkdiag.monitor.watch_state import COUNTERS, PackedState, later
from ntkdiag.optimizer.optimizer_rule import Reading, objection_to_reading, unread
from ntkdiag.optimizer.state_fields import can_be_undone
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import AnyArray

if TYPE_CHECKING:
    import optax

# The largest share of training with `every="auto"`.
USUAL_SHARE = 0.002

NO_PARAMETERS = (
    "tx.update(updates, state) comes without the parameters: their norms, and what an update is of "
    "them, are NaN. Pass them on: tx.update(updates, state, params)."
)

# What is unknown without parameters.
_OF_PARAMETERS = ("layer_parameter", "parameter_norm", "layer_update_ratio", "update_ratio")


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerWatcher:
    """What `watch` holds where it has no data."""

    optimizer: "optax.GradientTransformationExtraArgs"  # the optimizer that is watched
    steps: MeasuredSteps  # when is measured, and who gets the measurements
    run_log: RunLog | None  # the run directory, where there is one
    call: str  # the call as code, which warnings begin with
    notice: FailureNotice = dataclasses.field(default_factory=FailureNotice)
    blank_states: list[PackedState] = dataclasses.field(default_factory=list)  # without arrays
    needs_params: ClassVar[bool] = False
    state_class: ClassVar[type] = PackedState
    _orders: list[ArrayOrder] = dataclasses.field(default_factory=list)
    _said: list[str] = dataclasses.field(default_factory=list)
    _programs: dict[object, Callable[..., PackedState]] = dataclasses.field(default_factory=dict)
    _readers: dict[bool, OptimizerReader] = dataclasses.field(default_factory=dict)

    def begin_log(self, params: PyTree = None) -> None:
        """Refuse the run directory of another run."""
        if self.run_log is not None:
            self.run_log.begin(settings_without_data(params))

    def model_state(self, model_state: PyTree) -> dict[str, PyTree]:
        """Nothing of the model is measured."""
        del model_state
        return {}

    def blank_state(self, params: PyTree, inner: PyTree) -> PackedState:
        """The state before training: all numbers NaN."""
        order = ArrayOrder.of(params)
        if order not in self._orders:
            self._orders.append(order)
        self.begin_log(params)
        blank = PackedState(
            ntk_inner=(),
            ntk_count=jnp.zeros([], jnp.int32),
            ntk_counters=jnp.zeros(len(COUNTERS), jnp.int32),
            **packed_numbers.blank(order.layers),
        ).with_counters(step=jnp.asarray(-1))
        self.blank_states[:] = [jax.tree.map(jnp.ndim, blank)]
        return blank._replace(ntk_inner=inner)

    def after(
        self, training_step: TrainingStep, state: PackedState, moves: Array | None
    ) -> PackedState:
        """The state after a step, with its measurement if it is due; what goes wrong is said."""

        def look(step: int | AnyArray, is_outside: bool) -> PackedState:
            look_at = self._outside if is_outside else self._looked_at
            # What users forbid in their own code is meant here.
            with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
                is_due = self.steps.is_due(
                    step, state.counter("next"), state.counter("status"), moves
                )
                own = look_at(training_step, state._replace(ntk_inner=()), is_due)
            return own._replace(ntk_inner=state.ntk_inner)

        update = training_step.update
        return isolated(look, state, state.ntk_count, update, self.notice, self.call)

    def _outside(self, training_step: TrainingStep, own: PackedState, is_due: IsDue) -> PackedState:
        """Outside of `jax.jit`, in a program of our own."""
        arrays, whole = split_arrays((training_step, own, is_due))
        key = jax.tree.structure((training_step, own, is_due))
        if key not in self._programs:
            self._programs[key] = jax.jit(lambda arrays: self._looked_at(*whole(arrays)))
        return self._programs[key](arrays)

    def _looked_at(
        self, training_step: TrainingStep, own: PackedState, is_due: IsDue
    ) -> PackedState:
        """The state after a step that is being traced."""
        order = self._order(training_step.gradient, own)
        seen = _Seen.of(training_step)
        if not seen.has_params:
            self._say_once(NO_PARAMETERS)
        moved = seen.after.params_after if seen.has_params else training_step.update
        looks = looks_finite((training_step.gradient, moved))
        # Only the first of several such steps in a row is looked at as a whole.
        is_due = is_due | (~looks & (own.counter("is_broken") == 0))
        own = _counted(own, ~looks)
        # Branches of a conditional take arrays: functions and settings go round it.
        arrays, whole = split_arrays(seen)
        # Whoever differentiates a whole training step does not mean the diagnostics.
        arrays = jax.lax.stop_gradient(arrays)

        def measure(own: PackedState, arrays: list[Array]) -> PackedState:
            return self._measured(whole(arrays), own, order)

        return self.steps.measure_if_due(is_due, measure, own, arrays)

    def _say_once(self, sentence: str) -> None:
        """Say a sentence, however often the step is traced."""
        if sentence not in self._said:
            self._said.append(sentence)
            say(f"{self.call}: {sentence}")

    def _order(self, gradient: PyTree, own: PackedState) -> ArrayOrder:
        """The order of the arrays that the optimizer was begun with, of several by their paths."""
        n_layers = own.ntk_by_layer.shape[1]
        for order in reversed(self._orders):
            if order.fits(gradient) and len(order.layers.names) == n_layers:
                return order
        order = ArrayOrder.of(gradient)  # of a state that was restored
        if len(order.layers.names) != n_layers:
            raise errors.StructureError(
                expected=f"gradients like the parameters of tx.init(params), in {n_layers} layers",
                got=f"{len(order.layers.names)} layers, {shown(order.layers.names, most=3)}",
                do="Make the state with the parameters that are trained.",
            )
        return order

    def _measured(self, seen: "_Seen", own: PackedState, order: ArrayOrder) -> PackedState:
        """The state with a measurement, which the writers get, too."""
        after = seen.after
        in_gradient = order.layers.not_finite(order.arranged(after.gradient))
        in_params = jnp.full_like(in_gradient, jnp.nan)
        if seen.has_params:
            in_params = order.layers.not_finite(order.arranged(after.params_after))
        estimates = self._estimates(seen, own.ntk_count, order)
        # A sum of squares that overflows is no number, either.
        is_finite = (in_gradient.sum() == 0) & jnp.isfinite(estimates["update_norm"].value)
        is_finite &= jnp.nansum(in_params) == 0
        own = _noted(own, is_finite)
        is_postponed = ~is_finite & (own.counter("status") != Status.POSTPONED)
        status = jnp.where(is_finite, Status.MEASURED, Status.NON_FINITE)
        status = jnp.where(is_postponed, Status.POSTPONED, status).astype(jnp.int32)

        numbers: dict[str, Array] = {}
        for name, number in flat(estimates).items():
            numbers[name] = jnp.where(is_postponed, jnp.nan, number)
        count = own.counter("n_broken")
        numbers["not_finite_step"] = jnp.where(count > 0, own.counter("first_broken"), jnp.nan)
        numbers["not_finite_steps"] = count
        numbers["layer_gradient_not_finite"] = in_gradient
        numbers["layer_parameter_not_finite"] = in_params

        measurements = own.counter("measurements") + ~is_postponed
        told: Int[Array, ""] | int = 0
        if self.steps.sink.is_wanted:
            told = self._deliver(numbers, status, own, order, seen)
        own = own.with_counters(
            measurements=measurements,
            step=own.ntk_count,
            next=later(own.ntk_count, self.steps.wait(measurements, told)),
            status=status,
        )
        return own._replace(**packed_numbers.packed(numbers))

    def _estimates(self, seen: "_Seen", step: Int[Array, ""], order: ArrayOrder) -> Estimates:
        """Norms, the learning rate, how the optimizer is read, and the loss that was handed in."""
        reader = self._reader(seen.has_params)
        assert reader.optimizer is not None
        before = seen.with_params().undone(reader.optimizer.update)
        numbers = norms_of_step(
            order.layers,
            order.arranged(before.params),
            gradient=order.arranged(before.gradient),
            update=order.arranged(before.update),
        )
        if not seen.has_params:
            for name in _OF_PARAMETERS:
                unknown = jnp.full_like(numbers[name].value, jnp.nan)
                numbers[name] = Estimate.exact(unknown)
        reading = unread(before.params, Reading.NOT_LOOKED_AT)
        if seen.objection:
            reading = unread(before.params, Reading.REFUSED)
        elif seen.after.state_after is not None:
            reading = reader.read(before, step) or reading
        is_whole = reading.is_explained.all() | ~reading.has_numbers
        status = jnp.where(is_whole, reading.status, Reading.UNEXPLAINED)
        others = {
            "learning_rate": reading.learning_rate,
            "optimizer_status": status.astype(jnp.float32),
            "optimizer_residual": reading.residual,
            "batch_loss": seen.loss,
        }
        return numbers | {name: Estimate.exact(number) for name, number in others.items()}

    def _reader(self, has_params: bool) -> OptimizerReader:
        """Reads the optimizer, which may be called without parameters."""
        import optax

        if has_params not in self._readers:
            optimizer = self.optimizer
            if not has_params:

                def update(
                    updates: PyTree, state: PyTree, params: PyTree = None, **extra_args: Any
                ) -> tuple[PyTree, PyTree]:
                    del params  # they stand for those that nobody knows
                    return self.optimizer.update(updates, state, None, **extra_args)

                optimizer = optax.GradientTransformationExtraArgs(optimizer.init, update)
            self._readers[has_params] = OptimizerReader(optimizer)
        return self._readers[has_params]

    def _deliver(
        self,
        numbers: dict[str, Array],
        status: Int[Array, ""],
        own: PackedState,
        order: ArrayOrder,
        seen: "_Seen",
    ) -> Int[Array, ""]:
        """Send a measurement to the writers."""
        record = record_without_data(
            self._reader(seen.has_params),
            order,
            seen.after.params_after if seen.has_params else seen.after.gradient,
            every=self.steps.budget.every,
            notes=() if seen.has_params else (NO_PARAMETERS,),
        )
        numbers = numbers | {"status": status}
        return self.steps.send(own.ntk_count, numbers, record)


@pytree("after", "loss")
@dataclasses.dataclass(frozen=True, eq=False)
class _Seen:
    """What the branch takes of a step."""

    after: StepAfter  # what there is after it
    loss: Float[Array, ""]  # as it was handed in; NaN without
    has_params: bool  # whether the parameters are at hand
    objection: str  # why the optimizer has no update rule, as a sentence; "" where it may have one

    @staticmethod
    def of(step: TrainingStep) -> "_Seen":
        """What is looked at of a step."""
        after = StepAfter.of(step)
        # Nothing is kept of a state that cannot be recovered: it would be copied at every step.
        if not can_be_undone(step.state):
            after = after.without_state(step.update)
        return _Seen(
            after,
            loss=_as_loss(step.extra_args.get("value")),
            has_params=step.params is not None,
            objection=objection_to_reading(step.state, step.gradient) or "",
        )

    def with_params(self) -> StepAfter:
        """The step with zeros for parameters that nobody knows, and which the optimizer ignores."""
        if self.has_params:
            return self.after
        zeros = jax.tree.map(jnp.zeros_like, arrays_alone(self.after.gradient))
        return dataclasses.replace(self.after, params_after=zeros)


def _as_loss(value: Any) -> Float[Array, ""]:
    """A loss that was handed to the optimizer as `value=`; NaN for what is no number."""
    is_number = isinstance(value, int | float) or hasattr(value, "dtype")
    if not is_number or jnp.size(value) != 1:
        return jnp.asarray(jnp.nan, jnp.float32)
    return jnp.asarray(value).reshape(()).astype(jnp.float32)


def _noted(own: PackedState, is_finite: Bool[Array, ""]) -> PackedState:
    """The state after a look at all numbers: a broken step that the sample missed is counted."""
    was_missed = ~is_finite & (own.counter("is_broken") == 0)
    counted = _counted(own, was_missed).ntk_counters
    return own._replace(ntk_counters=jnp.where(was_missed, counted, own.ntk_counters))


def _counted(own: PackedState, is_broken: Bool[Array, ""]) -> PackedState:
    """The state with the flag of this step, which is counted where it is broken."""
    count, first = own.counter("n_broken"), own.counter("first_broken")
    return own.with_counters(
        is_broken=is_broken,
        first_broken=jnp.where(is_broken & (count == 0), own.ntk_count, first),
        n_broken=count + is_broken,
    )
