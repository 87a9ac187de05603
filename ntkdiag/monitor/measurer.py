"""One measurement of a step of training, for `watch`, `Monitor` and `measure` alike.

1. The parameters are put into the structure that the measured function takes, and beside them go
   gradient, update and what the model holds beside its parameters.
2. What the optimizer does is read from the update that it made.
3. The instruments of the panel measure: those that can inside one compiled program, the exact
   kernel by itself, as it plans its own memory. Inside the user's `jax.jit` all is one program.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import _jax, errors
from ntkdiag.engine.jacobian.channels_last import channels_last
from ntkdiag.models.functional import Functional
from ntkdiag.models.in_training import has_batch_statistics, in_training, with_statistics_of
from ntkdiag.monitor.instruments.layers import layers_of
from ntkdiag.monitor.optimizer_parameters import (
    Matched,
    arrays_alone,
    have_not_moved,
    in_structure_of,
    match,
    split_arrays,
)
from ntkdiag.monitor.panel import Memories, Panel, PanelReading
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.schedule import Step
from ntkdiag.monitor.situation import Situation
from ntkdiag.monitor.training_step import TrainingStep, UpdateRule
from ntkdiag.optimizer.descent_reading import (
    DescentReading,
    read_descent,
    read_descent_after,
    reading_of,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Measurer:
    """Measures steps of training with a panel of instruments.

    Attributes:
        probe: Model, examples, loss, and the settings of the kernel tier.
        update_rule: The `update` of the optimizer; None where it is not at hand.
        trained: The model as it is trained: with statistics of the batch where it normalises by
            them.
        probe_with_own_statistics: The probe of the kernel tier where running statistics cannot be
            had: they are those of the probe itself, at the parameters of the step.
    """

    probe: Probe
    update_rule: UpdateRule | None
    trained: Callable[..., PyTree]
    probe_with_own_statistics: Probe
    _programs: dict[object, Callable[..., PanelReading]] = dataclasses.field(
        init=False, default_factory=dict
    )

    @staticmethod
    def of(probe: Probe, update_rule: UpdateRule | None) -> "Measurer":
        """A measurer of a probe."""
        f = probe.f
        if not isinstance(f, Functional) or not has_batch_statistics(f) or f.joint:
            return Measurer(probe, update_rule, f, probe)
        # An optimizer may be made inside a trace, which would make traced values of known ones.
        with jax.ensure_compile_time_eval():
            trained = in_training(f)
            try:
                by_own_statistics = dataclasses.replace(probe, f=with_statistics_of(f, probe.x))
            except errors.InvalidInputError:  # none of its statistics are those of a batch
                by_own_statistics = probe
        return Measurer(probe, update_rule, trained, by_own_statistics)

    def verify(self, params: PyTree, panel: Panel) -> None:
        """Check once that examples do not interact, where that is relied on."""
        if panel.has("kernel") or not self.is_joint:
            self.probe.verify(params)

    @property
    def is_joint(self) -> bool:
        """Whether examples interact in training."""
        return isinstance(self.trained, Functional) and self.trained.joint

    @property
    def reads_updates(self) -> bool:
        """Whether what the optimizer does is read from it, and not stated."""
        descent = self.probe.descent
        is_stated = descent is not None and descent.learning_rate is not None
        return self.update_rule is not None and not is_stated

    def layer_names(self, params: PyTree) -> tuple[str, ...]:
        """The layers that arrays by layer are of, at parameters that f takes."""
        # Two examples: some models refuse to normalise a batch of one by itself.
        few = jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), self.probe.x)
        return layers_of(self._function({}), params, few).names

    def match(self, training_step: TrainingStep) -> Matched:
        """The parameters of a step as f takes them, and what moves beside them."""
        return match(self.probe.f, training_step.params, training_step.model_state)

    def take(
        self,
        panel: Panel,
        layout: ProbeLayout,
        training_step: TrainingStep,
        memories: Memories,
        step: Step,
        measurements: Step,
    ) -> PanelReading:
        """Measure inside a program that is being traced."""
        situation = self._situation(panel, layout, training_step, step, measurements)
        # One after the other: the kernel tier takes over what the others estimate.
        readings = []
        for instruments in (panel.compiled, panel.eager):
            if instruments:
                readings.append(panel.take(instruments, situation, memories))
        return panel.joined(readings, self.probe, layout.is_reduced)

    def take_outside(
        self,
        panel: Panel,
        layout: ProbeLayout,
        training_step: TrainingStep,
        memories: Memories,
        step: Step,
        measurements: Step,
    ) -> PanelReading:
        """Measure outside of any program, in programs of our own."""
        readings = []
        if panel.compiled:
            program, arrays = self._program(panel, layout, training_step)
            readings.append(program(arrays, memories, jnp.asarray(step), jnp.asarray(measurements)))
            memories = readings[0].memories
        if panel.eager:
            situation = self._situation(panel, layout, training_step, step, measurements)
            readings.append(panel.take(panel.eager, situation, memories))
        return panel.joined(readings, self.probe, layout.is_reduced)

    def _program(
        self, panel: Panel, layout: ProbeLayout, training_step: TrainingStep
    ) -> tuple[Callable[..., PanelReading], list[Array | np.ndarray]]:
        """The compiled instruments as one program of the arrays of a step, and these arrays."""
        arrays, whole = split_arrays(training_step)
        # Numbers of Python among the parameters of a plain function are compiled in.
        numbers = [leaf for leaf in jax.tree.leaves(training_step.params) if _is_number(leaf)]
        key = jax.tree.structure(training_step), panel.stride, tuple(numbers)
        program = self._programs.get(key)
        if program is None:

            def measure(
                arrays: list[Array], memories: Memories, step: Array, measurements: Array
            ) -> PanelReading:
                situation = self._situation(panel, layout, whole(arrays), step, measurements)
                return panel.take(panel.compiled, situation, memories)

            options = _jax.compiler_options(reduces=layout.dtype == jnp.float32)
            program = jax.jit(channels_last(measure), compiler_options=options or None)
            self._programs[key] = program
        return program, arrays

    def _situation(
        self,
        panel: Panel,
        layout: ProbeLayout,
        training_step: TrainingStep,
        step: Step,
        measurements: Step,
    ) -> Situation:
        """A step as the instruments see it."""
        # Whoever differentiates a whole training step does not mean the diagnostics.
        training_step = jax.tree.map(_without_derivative, training_step)
        now = jnp.asarray(step, jnp.int32)
        probe = self.probe
        matched = self.match(training_step)
        params = matched.params
        held = probe.followed(matched.held)
        unmoved = True
        if isinstance(probe.f, Functional):
            if not held:
                unmoved = have_not_moved(matched.held, probe.f.fixed)
            if not matched.held:
                probe = self.probe_with_own_statistics

        def as_params(tree: PyTree) -> PyTree:
            return None if tree is None else in_structure_of(self.probe.f, params, tree)

        def read() -> DescentReading | None:
            reading = self._reading(training_step, now)
            if reading is None:
                return None
            return dataclasses.replace(reading, response=as_params(reading.response))

        x, y = jax.tree.map(lambda leaf: jnp.asarray(leaf[:: panel.stride]), (probe.x, probe.y))
        n_examples = jax.tree.leaves(x)[0].shape[0]
        if probe.loss is not None and y is not None:
            y = probe.loss.read(y, (n_examples, *layout.output_shape[1:]))
        return Situation(
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
            unmoved=unmoved,
            measurements=jnp.asarray(measurements, jnp.int32),
            descent=training_step.descent,
            key=jax.random.fold_in(jax.random.key(0), now),
            probe=probe,
            layout=layout,
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

    def _reading(self, training_step: TrainingStep, step: Int[Array, ""]) -> DescentReading | None:
        """What the optimizer does, from the update it made; or as it was stated."""
        stated = training_step.descent
        if stated is not None and stated.learning_rate is not None:
            return reading_of(stated, training_step.params, step)
        if self.update_rule is None:
            return None
        training_step = arrays_alone(training_step)
        if training_step.state is not None and training_step.gradient is not None:
            return read_descent(
                self.update_rule,
                training_step.gradient,
                training_step.state,
                training_step.params,
                training_step.update,
                step=step,
                extra_args=training_step.extra_args,
            )
        if training_step.state_after is None:
            return None
        return read_descent_after(
            self.update_rule,
            training_step.state_after,
            training_step.params,
            step=step,
            made=training_step.update,
            gradient=training_step.gradient,
            extra_args=training_step.extra_args,
        )


def _without_derivative(leaf: PyTree) -> PyTree:
    """An array as a constant; functions and settings of a module stay as they are."""
    return jax.lax.stop_gradient(leaf) if hasattr(leaf, "dtype") else leaf


def _is_number(leaf: object) -> bool:
    """Whether a leaf is a number of Python."""
    return isinstance(leaf, bool | int | float | complex)
