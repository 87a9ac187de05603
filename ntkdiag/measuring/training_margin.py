"""The margin of stability of a checkpoint, of the network as it is trained.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

with E and b of the optimizer's next step (`ntkdiag.optimizer`), for which it gets the gradient of
the loss on the examples that are trained on:

1. the state that was saved is put into the containers of the optimizer;
2. the next step is taken on trial;
3. it is measured by the instrument of `ntkdiag.watch`: one step has one margin, in training and
   afterwards, with the same interval. A network that normalises does so by the batch, as trained.

Where the update rule is stated, E and b are known without the first two. The kernel of a network
that normalises by running statistics is that of another function: such a network has its margin
from here, too, and others from their kernel (`stated_margin`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import PyTree

from ntkdiag import _jax
from ntkdiag.estimate import Estimate
from ntkdiag.measuring.settings import Settings
from ntkdiag.measuring.stated_margin import PendingStability, Stability
from ntkdiag.models.functional import Functional
from ntkdiag.models.in_training import has_batch_statistics
from ntkdiag.monitor.forward_cost import forward_flops
from ntkdiag.monitor.instrument_set import InstrumentReading, InstrumentSet
from ntkdiag.monitor.instruments.top_curvatures import TopCurvatures
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.measurer import Measurer
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.training_step import TrainingStep, as_optimizer
from ntkdiag.optimizer.next_step import TrialStep, TrialSteps
from ntkdiag.optimizer.optimizer_error import OptimizerError
from ntkdiag.optimizer.optimizer_rule import REASONS, Reading
from ntkdiag.optimizer.saved_state import Optimizer, OptimizerState

if TYPE_CHECKING:
    import optax

NO_STATE = (
    "There is no optimizer state in the checkpoint: the margin is NaN. descent= states the update "
    "rule."
)
# There is time for more passes than in training, and room for their vectors.
_CURVATURES = TopCurvatures(most_rounds=40, tolerance=2e-3, memory_limit=8_000_000)
# Forward passes over the probe of fewer operations are compiled at least effort: it takes 4 s less
# and runs 2 ns longer for each, 0.4 s at most.
_FEW_FLOPS = 2e8


class TrainingMargins:
    """Margins of one model and one update rule, which are compiled once for all checkpoints.

    The rule is that of an optimizer, or the one that the settings state.
    """

    @staticmethod
    def of(
        model: Functional, settings: Settings, optimizer: Optimizer | None
    ) -> "TrainingMargins | None":
        """Those of a model; None where there is no rule, or its kernel tells the margin."""
        if optimizer is None and not _differs_in_training(model, settings):
            return None
        return TrainingMargins(model, settings, optimizer)

    def __init__(self, model: Functional, settings: Settings, optimizer: Optimizer | None):
        probe = Probe(
            model,
            x=settings.x,
            y=settings.y,
            held_out=None,
            is_trained_on=True,
            n_shared=0,
            top_k=1,
            loss=settings.loss,
            reduction="sum-of-logits",  # no kernel is formed
            memory=settings.memory,
            n_train=settings.n_train,
        )
        self._settings = settings
        flops = settings.n_examples * forward_flops(probe.function, model.params, probe.x)
        self._measurer = dataclasses.replace(
            Measurer.of(probe, None if optimizer is None else _as_optax(optimizer)),
            is_run_seldom=flops < _FEW_FLOPS,
        )
        self._instrument_set = InstrumentSet((_CURVATURES,))
        self._trial_steps = None if optimizer is None else TrialSteps(optimizer)

    def begin(self, checkpoint: Functional, state: OptimizerState | None) -> PendingStability:
        """The margin at one checkpoint, by products in full precision, when this is called."""
        begin = self._stated if self._trial_steps is None else self._of_optimizer
        if self._measurer.is_run_seldom:
            return begin(checkpoint, state)
        return lambda: begin(checkpoint, state)()  # a large gradient is not held meanwhile

    def _of_optimizer(
        self, checkpoint: Functional, state: OptimizerState | None
    ) -> PendingStability:
        """The margin of the optimizer's next step."""
        if state is None:
            return lambda: Stability.unknown(NO_STATE)
        try:
            trial = self._next_step(checkpoint, state)
        except OptimizerError as error:
            reason = (
                "The optimizer's update cannot be called with gradient, state and parameters alone "
                f"({error}): the margin is NaN."
            )
            return lambda: Stability.unknown(reason)
        step = TrainingStep(
            trial.params,
            gradient=trial.gradient,
            update=trial.update,
            state=trial.state,
            state_after=trial.state_after,
            model_state=checkpoint.fixed,
        )
        reading = self._begin(step, trial.number)

        def stability() -> Stability:
            return dataclasses.replace(self._stability(reading()), update_norm=trial.update_norm)

        return stability

    def _stated(self, checkpoint: Functional, _: OptimizerState | None) -> PendingStability:
        """The same of the rule that the settings state; without a rate the critical one alone."""
        descent = self._settings.descent
        assert descent is not None
        is_rate_known = descent.learning_rate is not None
        rule = descent if is_rate_known else dataclasses.replace(descent, learning_rate=1.0)
        step = TrainingStep(checkpoint.params, model_state=checkpoint.fixed, descent=rule)
        reading = self._begin(step, 0)

        def stability() -> Stability:
            found = self._stability(reading())
            if is_rate_known:
                return found
            return dataclasses.replace(found, margin=None, learning_rate=None, interval=None)

        return stability

    def _stability(self, reading: InstrumentReading) -> Stability:
        """What the instrument read."""
        margin, lower, upper = _numbers(reading.estimates["margin"])
        learning_rate, _, _ = _numbers(reading.estimates["learning_rate"])
        return Stability(
            critical_learning_rate=learning_rate / margin if margin > 0 else math.nan,
            margin=margin,
            learning_rate=learning_rate,
            status=self._status(reading),
            interval=(lower, upper),
        )

    def update_norm(self, checkpoint: Functional, state: OptimizerState) -> float:
        """The size of the next update; NaN where the optimizer does not make it."""
        try:
            return self._next_step(checkpoint, state).update_norm
        except OptimizerError:
            return math.nan

    def _next_step(self, checkpoint: Functional, state: OptimizerState) -> TrialStep:
        """What the optimizer does next, with the gradient of the probe."""
        assert self._trial_steps is not None  # whoever has a state has an optimizer
        with jax.default_matmul_precision("highest"):
            gradient = state.as_held(self._gradient(checkpoint.params, checkpoint.fixed))
        return self._trial_steps.take(state.state, state.as_held(checkpoint.params), gradient)

    def _begin(self, step: TrainingStep, number: int) -> Callable[[], InstrumentReading]:
        """A step, as the instrument reads it when this is called."""
        layout = self._layout(step)
        memories = self._instrument_set.blank_memories(self._measurer.probe, layout)
        with jax.default_matmul_precision("highest"):
            self._measurer.compile_ahead(self._instrument_set, layout, step, memories)

        def read() -> InstrumentReading:
            with jax.default_matmul_precision("highest"):
                return self._measurer.take_outside(
                    self._instrument_set, layout, step, memories, number, measurements=0
                )

        return read

    def _status(self, reading: InstrumentReading) -> str:
        """What to know of the margin, or why there is none."""
        if int(reading.status) == Status.NON_FINITE:
            return "Outputs or gradient are not finite: the margin is NaN."
        [status, _, _] = _numbers(reading.estimates["optimizer_status"])
        kind = Reading(int(status))
        if kind == Reading.REFUSED and self._measurer.reader.objections:
            return self._measurer.reader.objections[-1]
        return "ok" if kind == Reading.RECOGNISED else REASONS[kind]

    def _layout(self, step: TrainingStep) -> ProbeLayout:
        """The shapes of the outputs."""
        return self._measurer.probe.layout(self._measurer.match(step).params)

    @functools.cached_property
    def _gradient(self) -> Callable[[PyTree, Mapping[str, PyTree]], PyTree]:
        """The gradient of the loss on the probe, at parameters beside what the model holds."""

        def gradient(params: PyTree, held: Mapping[str, PyTree]) -> PyTree:
            step = TrainingStep(params, model_state=held)
            return self._measurer.loss_gradient(self._layout(step), step)

        # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
        options = _jax.compiler_options(reduces=True, once=self._measurer.is_run_seldom)
        return jax.jit(gradient, compiler_options=options)


def _differs_in_training(model: Functional, settings: Settings) -> bool:
    """Whether the margin of a stated rule is not to be read off the kernel of a model."""
    is_asked = settings.descent is not None and settings.loss is not None
    is_known = is_asked and settings.probes.train is not None and settings.y is not None
    return is_known and has_batch_statistics(model) and not model.joint


def _as_optax(optimizer: Optimizer) -> "optax.GradientTransformationExtraArgs":
    """An optimizer as Optax's own class has it."""
    import optax

    made: Any = optimizer  # Optax names the arguments of both functions
    return as_optimizer(optax.GradientTransformation(made.init, made.update))


def _numbers(estimate: Estimate) -> tuple[float, float, float]:
    """A number and the ends of its interval."""
    return float(estimate.value), float(estimate.lower), float(estimate.upper)
