"""One measurement of a step of training, for `watch`, `Monitor` and `measure` alike.

1. The parameters are put into the structure that the measured function takes, and beside them go
   gradient, update and what the model holds beside its parameters.
2. What the optimizer does is read from the update that it made.
3. The instruments of the set measure: those that can inside one compiled program, the exact
   kernel by itself, as it plans its own memory. Inside the user's `jax.jit` all is one program.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax, errors
from ntkdiag.engine.jacobian.channels_last import channels_last
from ntkdiag.engine.tracing.compiled import Compiled
from ntkdiag.models.array_leaves import split_arrays
from ntkdiag.models.functional import Functional
from ntkdiag.models.in_training import has_batch_statistics, in_training, with_statistics_of
from ntkdiag.monitor.instrument_set import InstrumentReading, InstrumentSet, Memories
from ntkdiag.monitor.instruments.layers import layers_of
from ntkdiag.monitor.optimizer_parameters import (
    Matched,
    in_structure_of,
    match,
)
from ntkdiag.monitor.optimizer_reader import OptimizerReader
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.step_context import StepContext
from ntkdiag.monitor.training_step import TrainingStep
from ntkdiag.optimizer.optimizer_rule import ArrayReading

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True, eq=False)
class Measurer:
    """Measures steps of training with a set of instruments."""

    probe: Probe  # model, examples, loss, and the settings of the kernel tier
    reader: OptimizerReader  # reads what the optimizer does
    # The model as it is trained: with statistics of the batch where it normalises by them.
    trained: Callable[..., PyTree]
    # The probe of the kernel tier where running statistics cannot be had: they are those of the
    # probe itself, at the parameters of the step.
    probe_with_own_statistics: Probe
    # Whether compiling a measurement takes longer than running it so seldom.
    is_run_seldom: bool = False
    _programs: dict[object, Compiled] = dataclasses.field(init=False, default_factory=dict)

    @staticmethod
    def of(probe: Probe, optimizer: "optax.GradientTransformationExtraArgs | None") -> "Measurer":
        """A measurer of a probe."""
        f = probe.f
        reader = OptimizerReader(optimizer)
        if not isinstance(f, Functional) or not has_batch_statistics(f) or f.joint:
            return Measurer(probe, reader, f, probe)
        # An optimizer may be made inside a trace, which would make traced values of known ones.
        with jax.ensure_compile_time_eval():
            trained = in_training(f)
            try:
                by_own_statistics = dataclasses.replace(probe, f=with_statistics_of(f, probe.x))
            except errors.InvalidInputError:  # none of its statistics are those of a batch
                by_own_statistics = probe
        return Measurer(probe, reader, trained, by_own_statistics)

    def verify(self, params: PyTree, instrument_set: InstrumentSet) -> None:
        """Check once that examples do not interact where that is relied on."""
        if instrument_set.has("kernel") or not self.is_joint:
            self.probe.verify(params)

    @property
    def is_joint(self) -> bool:
        """Whether examples interact in training."""
        return isinstance(self.trained, Functional) and self.trained.joint

    @property
    def reads_updates(self) -> bool:
        """Whether what the optimizer does is read from it."""
        return self.reader.optimizer is not None

    def layer_names(self, params: PyTree) -> tuple[str, ...]:
        """The layers that arrays by layer are of, at parameters that f takes."""
        # Two examples: some models refuse to normalise a batch of one by itself.
        few = jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), self.probe.x)
        return layers_of(self._function({}), params, few).names

    def match(self, training_step: TrainingStep) -> Matched:
        """The parameters of a step as f takes them, and what moves beside them."""
        return match(self.probe.f, training_step.params, training_step.model_state)

    def loss_gradient(self, layout: ProbeLayout, training_step: TrainingStep) -> PyTree:
        """The gradient of the named loss on the probe, as f takes its parameters; to be traced."""
        return self._context(layout, training_step, step=0, measurements=0).loss_gradient

    def take(
        self,
        instrument_set: InstrumentSet,
        layout: ProbeLayout,
        training_step: TrainingStep,
        memories: Memories,
        step: Step,
        measurements: Step,
    ) -> InstrumentReading:
        """Measure inside a program that is being traced."""
        context = self._context(layout, training_step, step, measurements)
        # One after the other: the kernel tier takes over what the others estimate.
        readings = []
        for instruments in (instrument_set.compiled, instrument_set.eager):
            if instruments:
                readings.append(instrument_set.take(instruments, context, memories))
        return instrument_set.joined(readings, layout.is_reduced)

    def compile_ahead(
        self,
        instrument_set: InstrumentSet,
        layout: ProbeLayout,
        training_step: TrainingStep,
        memories: Memories,
    ) -> None:
        """Begin to compile on another thread what `take_outside` runs first."""
        if self._programs:
            return
        program, arrays = self._program(instrument_set, layout, training_step)
        number = jnp.asarray(0)
        program.begin(arrays, memories, number, number)

    def take_outside(
        self,
        instrument_set: InstrumentSet,
        layout: ProbeLayout,
        training_step: TrainingStep,
        memories: Memories,
        step: Step,
        measurements: Step,
    ) -> InstrumentReading:
        """Measure outside of any program, in programs of our own."""
        readings = []
        if instrument_set.compiled:
            program, arrays = self._program(instrument_set, layout, training_step)
            readings.append(program(arrays, memories, jnp.asarray(step), jnp.asarray(measurements)))
            memories = readings[0].memories
        if instrument_set.eager:
            context = self._context(layout, training_step, step, measurements)
            readings.append(instrument_set.take(instrument_set.eager, context, memories))
        return instrument_set.joined(readings, layout.is_reduced)

    def _program(
        self, instrument_set: InstrumentSet, layout: ProbeLayout, training_step: TrainingStep
    ) -> tuple[Compiled, list[Array | np.ndarray]]:
        """The compiled instruments as one program of the arrays of a step, and these arrays."""
        arrays, whole = split_arrays(training_step)
        # Numbers of Python among the parameters of a plain function are compiled in.
        numbers = [leaf for leaf in jax.tree.leaves(training_step.params) if _is_number(leaf)]
        key = jax.tree.structure(training_step), tuple(numbers)
        program = self._programs.get(key)
        if program is None:

            def measure(
                arrays: list[Array], memories: Memories, step: Array, measurements: Array
            ) -> InstrumentReading:
                context = self._context(layout, whole(arrays), step, measurements)
                return instrument_set.take(instrument_set.compiled, context, memories)

            options = _jax.compiler_options(
                reduces=layout.dtype == jnp.float32, once=self.is_run_seldom
            )
            program = Compiled(channels_last(measure), options)
            self._programs[key] = program
        return program, arrays

    def _context(
        self,
        layout: ProbeLayout,
        training_step: TrainingStep,
        step: Step,
        measurements: Step,
    ) -> StepContext:
        """A step as the instruments see it."""
        # Whoever differentiates a whole training step does not mean the diagnostics.
        training_step = jax.tree.map(_without_derivative, training_step)
        now = jnp.asarray(step, jnp.int32)
        probe = self.probe
        matched = self.match(training_step)
        params = matched.params
        held = probe.followed(matched.held)
        if isinstance(probe.f, Functional) and not matched.held:
            probe = self.probe_with_own_statistics

        def as_params(tree: PyTree) -> PyTree:
            return None if tree is None else in_structure_of(self.probe.f, params, tree)

        def read() -> ArrayReading | None:
            reading = self.reader.read(training_step, now)
            return None if reading is None else dataclasses.replace(reading, place=as_params)

        x, y = jax.tree.map(jnp.asarray, (probe.x, probe.y))
        n_examples = jax.tree.leaves(x)[0].shape[0]
        if probe.loss is not None and y is not None:
            y = probe.loss.read(y, (n_examples, *layout.output_shape[1:]))
        return StepContext(
            f=self._function(held),
            x=x,
            y=y,
            loss=probe.loss,
            is_joint=self.is_joint,
            step=now,
            params=params,
            gradient=as_params(training_step.gradient),
            update=as_params(training_step.update),
            read=read,
            held=held,
            measurements=jnp.asarray(measurements, jnp.int32),
            seed=now,
            probe=probe,
            layout=layout,
            n_train=probe.n_train,
        )

    def _function(
        self, held: Mapping[str, PyTree]
    ) -> Callable[[PyTree, PyTree], Float[Array, "n *o"]]:
        """The function that is trained, with the values in training of what the model holds."""
        if self.is_joint or not held:
            trained = self.trained
            return trained.apply if isinstance(trained, Functional) else trained
        as_arguments = self.probe.as_arguments(held)
        return functools.partial(self.probe.following_function(), held=as_arguments)


def _without_derivative(leaf: PyTree) -> PyTree:
    """An array as a constant; functions and settings of a module stay as they are."""
    return jax.lax.stop_gradient(leaf) if hasattr(leaf, "dtype") else leaf


def _is_number(leaf: object) -> bool:
    """Whether a leaf is a number of Python."""
    return isinstance(leaf, bool | int | float | complex)
