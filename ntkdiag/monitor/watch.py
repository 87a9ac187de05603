"""An Optax optimizer that measures what it does, and does the same as without.

An optimizer of Optax is two functions, `init` and `update`, and a state. `watch` wraps one:

1. `init` makes its state, beside blank numbers in which every array has its final size, so that all
   goes through `jax.lax.scan` and into checkpoints;
2. `update` lets the optimizer make its update, which is returned as it is, and asks the schedule
   whether the step is measured: under `jax.jit` the answer is traced, and the measurement stands
   in a branch of a `jax.lax.cond`;
3. the branch reads what is there after the step, and recovers what was before it: see
   `undone_step`. Its numbers go into the state, and through a callback to the writers on the host.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag._jax import warn_if_untrusted_jit
from ntkdiag.engine.calls.call import Memory
from ntkdiag.engine.jacobian.channels_last import channels_last
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models.array_leaves import split_arrays
from ntkdiag.models.functional import Functional
from ntkdiag.monitor.convention_record import convention_record, settings_of
from ntkdiag.monitor.error_isolation import (
    FailureNotice,
    isolated,
    say,
)
from ntkdiag.monitor.freed_memory import keep_freed_memory
from ntkdiag.monitor.instrument_set import InstrumentReading, InstrumentSet, Memories
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, named
from ntkdiag.monitor.instruments.choosing import Supply, instrument_set_for
from ntkdiag.monitor.instruments.exact_kernel import ExactKernel
from ntkdiag.monitor.instruments.instrument import Instrument
from ntkdiag.monitor.measured_steps import MeasuredSteps
from ntkdiag.monitor.measurement import Status, flat
from ntkdiag.monitor.measurer import Measurer
from ntkdiag.monitor.optimizer_parameters import match
from ntkdiag.monitor.optimizer_watcher import USUAL_SHARE, OptimizerWatcher
from ntkdiag.monitor.pace import Pace
from ntkdiag.monitor.postponed import postponed, waits
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.run_log import RunLog
from ntkdiag.monitor.schedule import IsDue, ScheduleLike
from ntkdiag.monitor.sink import OnFinding, Sink
from ntkdiag.monitor.time_budget import Budget
from ntkdiag.monitor.train_state import by_path
from ntkdiag.monitor.training_step import (
    StepAfter,
    TrainingStep,
    as_optimizer,
    moves_parameters,
    traceable,
)
from ntkdiag.monitor.watch_state import PackedState, WatchState, later
from ntkdiag.monitor.writers_argument import WritersLike, read_writers
from ntkdiag.probe_batch import Pair, read_probes
from ntkdiag.scalars import AnyArray

if TYPE_CHECKING:
    import optax

# Of the first kernel at most so much goes into the optimizer state: less than 1 MB with what the
# spectral tier keeps.
KERNEL_BYTES = 480_000


@errors.public
def watch(
    optimizer: "optax.GradientTransformation | optax.MultiSteps",
    f: Callable[..., PyTree] | None = None,
    *,
    train: Pair | None = None,
    held_out: Pair | None = None,
    loss: LossLike | None = None,
    every: ScheduleLike = "auto",
    instruments: InstrumentsLike = "auto",
    time_share: float | int | None = None,
    batch_size: int | None = None,
    n_train: int | None = None,
    out: str | os.PathLike[str] | None = None,
    writers: WritersLike = (),
    on_finding: Sequence[OnFinding] | OnFinding = (),
    top_k: int | np.integer = 5,
    reduction: ReductionLike = "auto",
    memory: Memory | None = None,
) -> "optax.GradientTransformationExtraArgs":
    """Wrap an Optax optimizer so that it measures the training it does, and changes nothing.

        tx = ntkdiag.watch(optax.adamw(1e-3), fn, train=(x, y), loss="cross_entropy", every=100)

    `tx` makes the same updates as the optimizer: to the last bit in most networks; where an array's
    gradient is a sum over a whole batch, as of BatchNorm's scale or PReLU's slope, XLA may add in
    another order, which rounds otherwise. Step t is measured at the
    parameters *before* update t, so step 0 is initialisation. Nothing has to be said about the
    optimizer: learning rate, momentum, second moments, decay and clipping are read from the
    gradient, the states and the update, and verified against the update.

    Inside `jax.jit` and `jax.lax.scan` the choice is a `jax.lax.cond`, and a step that is not
    scheduled computes one comparison. Wrap the whole optimizer, outside of `optax.chain` and
    `optax.MultiSteps`: what is changed after `watch` it does not see.

    Without f and data, `tx = ntkdiag.watch(optimizer)`, the optimizer alone is measured: norms of
    gradient, update and parameters by layer and in all, ||update|| / ||parameters||, the learning
    rate in use, how the optimizer is read, the loss that is handed to it as `value=`, and NaN and
    infinity, by layer, in the step in which they begin. The names are those of a watch with data.
    Parameters may be left out of `update`, and what needs them is NaN then. Two arrays of the state
    hold all of it: read them with `ntkdiag.record(opt_state)`.

    Models with batch normalisation are measured as they are trained, with the statistics of the
    probe; `tx.update(..., model_state=batch_stats)` hands in running statistics for the kernel
    tier.

    Writers are called on the host from inside the compiled step: wait for its result
    (`jax.block_until_ready(params)`, in loops of JAX `jax.effects_barrier()`) before reading what
    they wrote. A writer that raises is tried again,
    with one warning; one that hangs is not waited for. A measurement that cannot be made is said
    once, and training goes on.

    Cost: about 40 forward passes of the probe for each measurement of all instruments.

    Args:
        optimizer: Any optimizer of Optax, or an `optax.MultiSteps`.
        f: A `Functional`, or any `f(params, x)` that returns `[N ...]`, for the parameters the
            optimizer trains. It is traced once: what it reads beside its arguments is fixed then.
            None measures without data.
        train: Examples of the training set with their labels, (x, y): N examples on the leading
            axis of every leaf of x, 64 to 256 are enough; y `[N]` integer classes (`[N T]` for
            outputs `[N T V]`), targets shaped like the outputs, or None.
        held_out: Examples that are not trained on, with their labels, for the alignment. At least
            one of the two is given.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object
            of `ntkdiag.losses` (which states what its sum is divided by), or a function
            `loss(outputs, y)`. None leaves out all numbers that depend on it, as the margin does.
        every: "auto" for as often as `time_share` allows, a number of steps, or a function of the
            step, such as `ntkdiag.monitor.log_spaced`.
        instruments: What is measured: "auto" for the economy and the spectral tier, and, where it
            costs no more than these, the kernel tier in the place of eigenvalues by products; names
            of tiers ("economy", "spectral", "kernel") or of instruments, instruments, or a sequence
            of them.
        time_share: The largest share of the time of training that measuring may take: 0.01 where
            `every="auto"`, 0.002 without data; a schedule has no limit, and with one its steps are
            left out to keep it. It is kept by the clock of the host, which hears of measurements
            where there are writers; without, "auto" measures every 1,000 steps.
        batch_size: Examples of one training step, which the noise scale is compared with.
        n_train: Examples of the whole training set, that the margin's interval is for; infinitely
            many where it is not said.
        out: A run directory that the measurements are written to, made if need be: its stream
            "watch", which `ntkdiag.open_run` reads and a resumed training goes on with. See
            `ntkdiag.monitor.RunLog`.
        writers: Who gets the measurements: objects with `write(step, values)`; metric loggers with
            `write_scalars(step, scalars)`, `log(scalars, step=...)` or `add_scalar(name, number,
            step)`; "wandb", "mlflow" or "trackio" for the active run of a tracker, "tensorboard";
            one of them, or a list.
        on_finding: A function, or several, called with each `ntkdiag.monitor.Finding` on the
            thread of the writers; what it raises becomes one warning. Writers that have a method
            `finding(finding)` are told, too.
        top_k: Number of eigenvalues kept of the kernel tier.
        reduction: Reduction over outputs of the kernel tier: "full", "mean", "trace",
            "sum-of-logits", `ntkdiag.kernel.RandomProjections(k)`, or "auto": "full" up to 2048
            rows, "mean" beyond up to 64 outputs per example, and with more of them
            `RandomProjections(8)`.
        memory: Memory budget of a kernel, as in `ntkdiag.ntk`; not under `jax.jit`, where the
            kernel is one block.

    Returns:
        An optimizer. Its state holds that of the wrapped one, the numbers of the last measurement
        under "ntk_margin", "ntk_trace", ..., and `ntk_count`, the number of updates seen; read one
        from any optimizer state with `optax.tree_utils.tree_get(opt_state, "ntk_margin")`, and
        without f all of them with `ntkdiag.record(opt_state)`. `init` raises `StructureError` when
        the parameters are not those of `f`, `update` when the state is not one of this optimizer.

    Raises:
        InvalidInputError: When an argument is out of range, or, with a Functional, model and probe
            do not fit together; when `out` is of another run, or being written to.
    """
    inner_optimizer = as_optimizer(optimizer)
    run_log = None if out is None else RunLog(out)
    sink = Sink(read_writers(writers, run_log), on_finding)
    call = errors.current_call()  # as code: errors of init and update begin with it
    if f is None:
        of_data = {
            "train": train is not None,
            "held_out": held_out is not None,
            "loss": loss is not None,
            "instruments": instruments != "auto",
            "batch_size": batch_size is not None,
            "n_train": n_train is not None,
            "reduction": reduction != "auto",
            "memory": memory is not None,
        }
        _refuse_without_f([argument for argument, is_given in of_data.items() if is_given])
        budget = Budget.of(every, time_share, None, usual_share=USUAL_SHARE)
        steps = MeasuredSteps(budget, Pace(budget.time_share), sink)
        watcher = OptimizerWatcher(inner_optimizer, steps, run_log, call)
        watcher.begin_log()
        return _watched(inner_optimizer, watcher)

    probe = Probe.of(
        f,
        read_probes(train, held_out),
        top_k=top_k,
        loss=loss,
        reduction=reduction,
        memory=memory,
        n_train=n_train,
    )
    if instruments != "auto":
        named(instruments)  # refuses what it does not know
    budget = Budget.of(every, time_share, batch_size)
    watcher = _Watcher(
        optimizer=inner_optimizer,
        measurer=Measurer.of(probe, inner_optimizer),
        steps=MeasuredSteps(budget, Pace(budget.time_share), sink),
        instruments=instruments,
        run_log=run_log,
        call=call,
    )
    watcher.begin_log(f.params if isinstance(f, Functional) else None)
    return _watched(inner_optimizer, watcher)


def _refuse_without_f(arguments: Sequence[str]) -> None:
    """Refuse arguments that say how a function is measured where there is none."""
    if arguments:
        raise errors.InvalidInputError(
            expected=f"f, the function that is trained, beside {', '.join(arguments)}",
            got="f=None",
            do="Pass ntkdiag.functionalize(model, variables) or any f(params, x) after the "
            "optimizer; without data, watch(optimizer) alone.",
        )


def _watched(
    inner_optimizer: "optax.GradientTransformationExtraArgs",
    watcher: "_Watcher | OptimizerWatcher",
) -> "optax.GradientTransformationExtraArgs":
    """The optimizer that does the same, and has its steps looked at."""
    import optax

    @errors.called(f"{watcher.call}.init(params)")
    def init(params: PyTree) -> WatchState | PackedState:
        """The state before training: all numbers NaN."""
        keep_freed_memory()
        inner = inner_optimizer.init(params)
        if type(params).__name__ == "_ParamsPlaceholder" and watcher.blank_states:
            # `optax.tree_map_params` asks which leaves are like parameters: those inside.
            return watcher.blank_states[-1]._replace(ntk_inner=inner)
        return watcher.blank_state(params, inner)

    @errors.called(f"{watcher.call}.update(updates, state, params)")
    def update(
        updates: PyTree,
        state: Any,
        params: PyTree = None,
        *,
        model_state: PyTree = None,
        **extra_args: PyTree,
    ) -> tuple[PyTree, WatchState | PackedState]:
        """The update of the optimizer, and the state one step later, measured if it is due."""
        # For Optax, which calls this, the state may be any tree.
        if not isinstance(state, watcher.state_class):
            raise errors.StructureError(
                expected="the state of a watched optimizer",
                got=f"a {type(state).__name__}",
                do="Put it under watch: tx.init(params)._replace(ntk_inner=opt_state).",
            )
        made, inner = inner_optimizer.update(updates, state.ntk_inner, params, **extra_args)
        moves = moves_parameters(inner)
        if params is None and watcher.needs_params:
            watcher.notice.give_reason(
                watcher.call,
                "tx.update(updates, state) came without the parameters, which are measured. Pass "
                "them on: tx.update(updates, state, params)",
            )
        else:
            training_step = TrainingStep(
                params,
                gradient=updates,
                update=made,
                state=state.ntk_inner,
                state_after=inner,
                model_state=watcher.model_state(model_state),
                extra_args={name: traceable(value) for name, value in extra_args.items()},
            )
            state = watcher.after(training_step, state, moves)
        count = optax.safe_increment(state.ntk_count)
        if moves is not None:
            count = jnp.where(moves, count, state.ntk_count)
        return made, state._replace(ntk_inner=inner, ntk_count=count)

    return optax.GradientTransformationExtraArgs(init, update)


@dataclasses.dataclass(frozen=True, eq=False)
class _Watcher:
    """What `watch` holds."""

    optimizer: "optax.GradientTransformationExtraArgs"
    measurer: Measurer
    steps: MeasuredSteps
    instruments: InstrumentsLike
    run_log: RunLog | None
    call: str
    notice: FailureNotice = dataclasses.field(default_factory=FailureNotice)
    blank_states: list[WatchState] = dataclasses.field(default_factory=list)  # without arrays
    needs_params: ClassVar[bool] = True
    state_class: ClassVar[type] = WatchState
    _instrument_sets: dict[ProbeLayout, InstrumentSet] = dataclasses.field(default_factory=dict)

    def begin_log(self, params: PyTree) -> None:
        """Refuse the run directory of another run; parameters that f takes, or None."""
        if self.run_log is not None:
            self.run_log.begin(settings_of(self.measurer.probe, params))

    def model_state(self, model_state: PyTree) -> dict[str, PyTree]:
        """What moves beside the parameters, by path."""
        return by_path(self.measurer.probe.f, model_state)

    def blank_state(self, params: PyTree, inner: PyTree) -> WatchState:
        """The state before training; names and sizes of the numbers come from tracing a step."""
        probe = self.measurer.probe
        matched = match(probe.f, params).params
        layout, instrument_set = self.layout_and_instrument_set(matched)
        self.measurer.verify(matched, instrument_set)
        self.begin_log(matched)
        numbers: dict[str, Array] = {}
        memories: Memories = {}
        try:
            memories = instrument_set.blank_memories(probe, layout)
            numbers = self.blank_numbers(TrainingStep(params, params, params, inner), memories)
        except errors.NtkdiagError:
            raise  # what does not fit together is refused before training
        except Exception as error:  # of an instrument of the user's own
            self.notice.give(self.call, 0, error)
        blank = WatchState(
            ntk_inner=(),
            ntk_count=jnp.zeros([], jnp.int32),
            ntk_probe=jnp.asarray(probe.mark(layout)),
            ntk_measurements=jnp.zeros([], jnp.int32),
            ntk_step=jnp.asarray(-1, jnp.int32),
            ntk_next=jnp.zeros([], jnp.int32),
            ntk_status=jnp.asarray(Status.UNMEASURED, jnp.int32),
            ntk_numbers=numbers,
            ntk_memory=memories,
        )
        self.blank_states[:] = [jax.tree.map(jnp.ndim, blank)]
        return blank._replace(ntk_inner=inner)

    def blank_numbers(self, training_step: TrainingStep, memories: Memories) -> dict[str, Array]:
        """NaN for every number that is measured."""
        arrays, whole = split_arrays(training_step)

        def measure(arrays: list[Array]) -> PyTree:
            step = whole(arrays)
            layout, instrument_set = self.layout_and_instrument_set(
                self.measurer.match(step).params
            )
            reading = self.measurer.take(
                instrument_set, layout, step, memories, step=0, measurements=0
            )
            return flat(reading.estimates, "ntk_")

        return jax.tree.map(_all_nan, jax.eval_shape(measure, arrays))

    def layout_and_instrument_set(self, params: PyTree) -> tuple[ProbeLayout, InstrumentSet]:
        """Shapes of the outputs at parameters that f takes, and the instruments for them."""
        layout = self.measurer.probe.layout(params)
        instrument_set = self._instrument_sets.get(layout)
        if instrument_set is None:
            supply = Supply(self.measurer.probe, has_update=True, has_optimizer=True)
            instrument_set = instrument_set_for(self.instruments, supply, layout, params)
            instrument_set = _remembering_little(instrument_set, self.measurer.probe, layout)
            self._instrument_sets[layout] = instrument_set
            for note in instrument_set.notes:
                say(f"{self.call}: {note}")
        return layout, instrument_set

    def after(
        self, training_step: TrainingStep, state: WatchState, moves: Array | None
    ) -> WatchState:
        """The state with the measurement of a step, if it is due; what goes wrong is said once."""

        def look(step: int | AnyArray, is_outside: bool) -> WatchState:
            matched = self.measurer.match(training_step)
            layout, instrument_set = self.layout_and_instrument_set(matched.params)
            is_due = self.steps.is_due(step, state.ntk_next, state.ntk_status, moves)
            if is_outside:
                return (
                    self.outside(training_step, state, layout, instrument_set) if is_due else state
                )
            return self.inside(training_step, state, layout, instrument_set, is_due)

        update = training_step.update
        return isolated(look, state, state.ntk_count, update, self.notice, self.call)

    def inside(
        self,
        training_step: TrainingStep,
        state: WatchState,
        layout: ProbeLayout,
        instrument_set: InstrumentSet,
        is_due: IsDue,
    ) -> WatchState:
        """Inside the user's `jax.jit`: the measurement stands in a branch of a conditional."""
        # In a jit of the user the compiler options are not ours, and on some CPUs XLA's default
        # computes reductions wrongly.
        warn_if_untrusted_jit(lambda: self.measurer.probe.normalises(layout, training_step.params))
        # What is before the step is overwritten by it, and would be copied at every step: the
        # branch takes what is there after it. The branches of a conditional take arrays: functions
        # and settings, which an Equinox module has among its leaves, go round it.
        arrays, whole = split_arrays(StepAfter.of(training_step))
        own = state._replace(ntk_inner=())

        def measure_step(own: WatchState, arrays: list[Array]) -> WatchState:
            step = whole(arrays).undone(self.optimizer.update)
            return self.measured(step, own, layout, instrument_set, self.measurer.take)

        def measure(own: WatchState, arrays: list[Array]) -> WatchState:
            step = whole(arrays)
            is_postponed = waits(step.gradient, step.params_after, own)
            return jax.lax.cond(is_postponed, postponed, measure_step, own, arrays)

        own = self.steps.measure_if_due(is_due, measure, own, arrays, channels_last)
        return own._replace(ntk_inner=state.ntk_inner)

    def outside(
        self,
        training_step: TrainingStep,
        state: WatchState,
        layout: ProbeLayout,
        instrument_set: InstrumentSet,
    ) -> WatchState:
        """Outside of `jax.jit`, in programs of our own."""
        after = StepAfter.of(training_step)
        if waits(after.gradient, after.params_after, state):
            return postponed(state, [])
        take = self.measurer.take_outside
        if self.steps.keeps_time:
            self.steps.begin()
        after = self.measured(training_step, state, layout, instrument_set, take)
        # A conditional would refuse it, too: a state of another shape fits no checkpoint.
        if _shapes(after) != _shapes(state):
            raise TypeError("numbers or memories have other shapes than they had before training")
        return after

    def measured(
        self,
        training_step: TrainingStep,
        state: WatchState,
        layout: ProbeLayout,
        instrument_set: InstrumentSet,
        take: Callable[..., InstrumentReading],
    ) -> WatchState:
        """The state with a measurement, which the writers get, too."""
        probe = self.measurer.probe
        mark = jnp.asarray(probe.mark(layout))
        # Memories of another probe are of no use.
        is_same = jnp.all(state.ntk_probe == mark)
        memories = jax.tree.map(lambda leaf: jnp.where(is_same, leaf, 0), state.ntk_memory)
        measurements = jnp.where(is_same, state.ntk_measurements, 0)

        reading = take(
            instrument_set, layout, training_step, memories, state.ntk_count, measurements
        )
        told: Int[Array, ""] | int = 0
        if self.steps.sink.is_wanted:
            told = self.deliver(reading, state, training_step, layout, instrument_set)
        wait = self.steps.wait(measurements + 1, told)
        return state._replace(
            ntk_probe=mark,
            ntk_measurements=measurements + 1,
            ntk_step=state.ntk_count,
            ntk_next=later(state.ntk_count, wait),
            ntk_status=reading.status,
            ntk_numbers=flat(reading.estimates, "ntk_"),
            ntk_memory=reading.memories,
        )

    def deliver(
        self,
        reading: InstrumentReading,
        state: WatchState,
        training_step: TrainingStep,
        layout: ProbeLayout,
        instrument_set: InstrumentSet,
    ) -> Int[Array, ""]:
        """Send a measurement to the writers; only scalars and short arrays leave the device."""
        layers: tuple[str, ...] = ()
        matched = self.measurer.match(training_step)
        if instrument_set.compiled:
            layers = self.measurer.layer_names(matched.params)
        record = convention_record(
            self.measurer,
            layout,
            instrument_set,
            matched.params,
            every=self.steps.budget.every,
            call="watch",
            layers=layers,
            followed=self.measurer.probe.followed(matched.held),
            batch_size=self.steps.budget.batch_size,
        )
        numbers = flat(reading.estimates) | {"status": reading.status}
        return self.steps.send(state.ntk_count, numbers, record)


def _remembering_little(
    instrument_set: InstrumentSet, probe: Probe, layout: ProbeLayout
) -> InstrumentSet:
    """Instruments whose memory keeps the optimizer state small."""
    instruments: list[Instrument] = []
    notes = list(instrument_set.notes)
    for instrument in instrument_set.instruments:
        if isinstance(instrument, ExactKernel):
            if instrument.memory_limit is None:
                instrument = dataclasses.replace(instrument, memory_limit=KERNEL_BYTES)
            if not instrument.keeps_reference(probe, layout):
                notes.append(
                    f"A kernel of {layout.size:,} rows is not kept in the optimizer state: drift "
                    "and distance_centred are NaN. An ntkdiag.Monitor keeps it."
                )
        instruments.append(instrument)
    return dataclasses.replace(instrument_set, instruments=tuple(instruments), notes=tuple(notes))


def _shapes(state: WatchState) -> dict[str, tuple[int, ...]]:
    """The shapes of all arrays by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in leaves}


def _all_nan(shape: jax.ShapeDtypeStruct) -> Float[Array, "..."]:
    return jnp.full(shape.shape, jnp.nan, shape.dtype)
