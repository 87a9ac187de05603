"""An Optax optimizer that measures the training it does, and makes the same updates as without.

`update` lets the optimizer make its update, which is returned as it is, and asks the schedule
whether the point after it is measured: under `jax.jit` that is a branch of a `jax.lax.cond`. The
numbers go into the state, where every array has its final size from `init` on, so that all goes
through `jax.lax.scan` and into checkpoints; and through a callback to the writers on the host.
"""

import dataclasses
import os
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import AnyArray
from ntkdiag.estimate import Estimate
from ntkdiag.jaxtools.cpu import channels_last, compiler_options, warn_if_untrusted_jit
from ntkdiag.jaxtools.tracing import call_host, is_traced
from ntkdiag.kernel.working_precision import usual_promotion
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models.array_leaves import arrays_alone, split_arrays
from ntkdiag.models.functional import Functional
from ntkdiag.monitor.context import Instrument
from ntkdiag.monitor.convention_record import convention_record, settings_of
from ntkdiag.monitor.error_isolation import (
    FailureNotice,
    say,
    warnings_as_warnings,
    without_debugging_switches,
)
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, chosen
from ntkdiag.monitor.measure import Memory, blank_memory, numbers_at, says_where
from ntkdiag.monitor.measurement import Status, flat
from ntkdiag.monitor.point import (
    Point,
    after_update,
    arrays_by_path,
    as_optimizer,
    match,
    moves_parameters,
    traceable,
)
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.schedule import Automatic, Every, Schedule, ScheduleLike, as_schedule
from ntkdiag.monitor.sink import OnFinding, Sink
from ntkdiag.monitor.watch_state import (
    COUNTERS,
    Layout,
    WatchState,
    broken_steps,
    by_name,
    looks_finite,
)
from ntkdiag.monitor.writers_argument import WritersLike, read_writers
from ntkdiag.probe_batch import Pair
from ntkdiag.runs.run_log import RunLog

if TYPE_CHECKING:
    import optax

# What is kept for the next measurement goes into the optimizer state: at most so many bytes.
MOST_BYTES = 2_000_000
_NOT_KEPT = (
    "Drift is NaN: the products of the first kernel are too large for the state of the optimizer. "
    "A Monitor keeps them."
)


@errors.public
def watch(
    optimizer: "optax.GradientTransformation | optax.MultiSteps",
    f: Callable[..., PyTree] | None = None,
    *,
    train: Pair | None = None,
    held_out: Pair | None = None,
    loss: LossLike | None = None,
    every: ScheduleLike = 100,
    instruments: InstrumentsLike = "auto",
    batch_size: int | None = None,
    n_train: int | None = None,
    out: str | os.PathLike[str] | None = None,
    writers: WritersLike = (),
    on_finding: Sequence[OnFinding] | OnFinding = (),
    top_k: int | np.integer = 5,
) -> "optax.GradientTransformationExtraArgs":
    """Wrap an Optax optimizer so that it measures the training inside the compiled step.

        tx = ntkdiag.watch(optax.adamw(1e-3), fn, train=(x, y), loss="cross_entropy")

    `tx` makes the same updates as the optimizer, to the last bit in most networks. Where the
    gradient of an array is a sum over a whole batch (scale of BatchNorm, slope of PReLU), XLA may
    round differently. The row of step t describes the parameters after t updates.

    Wrap the whole optimizer, outside of `optax.chain` and `optax.MultiSteps`. Its state contains
    that of the optimizer: `ntkdiag.unwatch` and `ntkdiag.rewatch` convert checkpoints. Without f
    and data it measures the optimizer alone: norms, the learning rate, and NaN by layer.

    The compiled step calls the writers on the host. Wait for its result
    (`jax.block_until_ready(params)`, or `jax.effects_barrier()` inside loops of JAX) before you
    read what they wrote. A measurement or a writer that fails causes one warning; training
    continues.

    Args:
        optimizer: Any optimizer of Optax, or an `optax.MultiSteps`.
        f: A `Functional`, or any `f(params, x)` that returns `[N ...]`, for the parameters the
            optimizer trains. It is traced once: values it closes over become constants. None
            measures without data.
        train: Examples of the training set with their labels, (x, y): N examples on the leading
            axis of every leaf of x, 64 to 256 are enough; y `[N]` integer classes (`[N T]` for
            outputs `[N T V]`), targets shaped like the outputs, or None.
        held_out: Examples that are not trained on, with their labels, for the alignment. Pass at
            least one of the two.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object
            of `ntkdiag.losses` (which states what its sum is divided by), or a function
            `loss(outputs, y)`. None leaves out all numbers that depend on it, as the margin does.
        every: A number of steps k, for steps 1, k, 2 k, ...; "auto" for 1, 2, 4, ..., 64 and every
            100th step; or a function of the step.
        instruments: "auto" for all that can be measured; names of instruments ("kernel", "margin",
            "noise_scale", "step_error", "optimizer", "norms"), functions of a
            `ntkdiag.monitor.Context` that return numbers by name, or several of both.
        batch_size: Examples of one training step, which the noise scale is compared with.
        n_train: Number of examples of the training set, for the interval of the margin.
        out: A run directory for the rows, created if necessary. `ntkdiag.open_run` reads it, and a
            resumed training continues in it.
        writers: Destinations of the rows: objects with `write(step, values)`; metric loggers with
            `write_scalars(step, scalars)`, `log(scalars, step=...)` or
            `add_scalar(name, number, step)`; "wandb", "mlflow" or "trackio" for the active run of a
            tracker, "tensorboard"; one of them, or a list.
        on_finding: A function, or several, called with each `ntkdiag.monitor.Finding` on the
            thread of the writers. Writers with a method `finding(finding)` receive it, too.
        top_k: Number of eigenvalues, at most as many as the kernel has.

    Returns:
        An optimizer. `ntkdiag.record(opt_state)` reads the last measurement from its state. `init`
        raises `StructureError` when the parameters are not those of `f`, `update` when the state is
        not one of this optimizer.

    Raises:
        InvalidInputError: When an argument is out of range, when model and probe do not fit (with
            a Functional), or when `out` belongs to another run or is being written to.

    Cost: an unmeasured step takes 1.02 to 1.2 times as long as a plain one, a measured step 3 to
    10 times (below 1 ms: up to 3 and 200), and compiling 6 to 14 times; see docs/probe.md.
    """
    import optax

    run_log = None if out is None else RunLog(out)
    sink = Sink(read_writers(writers, run_log), on_finding)
    call = errors.current_call()  # as code: errors of init and update begin with it
    if f is None:
        if any(argument is not None for argument in (train, held_out, loss, batch_size, n_train)):
            raise errors.InvalidInputError(
                expected="f, the function that is trained, beside train, held_out, loss, "
                "batch_size and n_train",
                got="f=None",
                do="Pass ntkdiag.functionalize(model, variables) or any f(params, x) after the "
                "optimizer; without data, watch(optimizer) alone.",
            )
        probe = Probe(None, x=None, y=None, optimizer=as_optimizer(optimizer))
    else:
        probe = Probe.of(
            f,
            train=train,
            held_out=held_out,
            loss=loss,
            optimizer=optimizer,
            top_k=top_k,
            n_train=n_train,
            batch_size=batch_size,
        )
    selected, notes = chosen(instruments, probe)
    for note in notes:
        say(f"{call}: {note}")
    watcher = _Watcher(probe, selected, tuple(notes), as_schedule(every), sink, run_log, call)
    watcher.begin_log(f.params if isinstance(f, Functional) else None)
    return optax.GradientTransformationExtraArgs(
        errors.called(f"{call}.init(params)")(watcher.init),
        errors.called(f"{call}.update(updates, state, params)")(watcher.update),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Watcher:
    """What `watch` holds; the states that its methods take have nothing inside."""

    probe: Probe
    instruments: tuple[Instrument, ...]
    notes: tuple[str, ...]
    every: Schedule
    sink: Sink
    run_log: RunLog | None
    call: str
    notice: FailureNotice = dataclasses.field(default_factory=FailureNotice)
    _programs: dict[object, Callable[..., WatchState]] = dataclasses.field(default_factory=dict)

    def begin_log(self, params: PyTree) -> None:
        """Refuse the run directory of another run; parameters that f takes, or None."""
        if self.run_log is not None:
            self.run_log.begin(settings_of(self.probe, params))

    def init(self, params: PyTree) -> WatchState:
        """The state before training; names and sizes of the numbers come from tracing a step."""
        assert self.probe.optimizer is not None
        inner = self.probe.optimizer.init(params)
        if type(params).__name__ == "_ParamsPlaceholder":
            # `optax.tree_map_params` asks which leaves are like parameters: those inside.
            placeholder: Any = jnp.zeros([])
            return WatchState(inner, *[placeholder] * (len(WatchState._fields) - 1))
        numbers, memory = jnp.zeros(1), {}
        probe_key = names_key = 0
        f = self.probe.f
        if f is None:
            self.begin_log(arrays_by_path(params))
        else:
            matched = match(f, params).params
            self.probe.fit(matched)
            self.probe.verify(f.params if isinstance(f, Functional) else matched)
            self.begin_log(matched)
        try:
            layout, blank = self._layout(Point(params, inner, arrays_alone(params)))
            numbers = jnp.full(layout.size, jnp.nan, jnp.float32)
            n_bytes = sum(rows.nbytes for rows in blank.values())
            memory = blank if n_bytes <= MOST_BYTES else {}
            probe_key, names_key = self._probe_key(), layout.key
        except errors.NtkdiagError:
            raise  # what does not fit together is refused before training
        except Exception as error:
            self.notice.give(self.call, 0, error)
        counters = jnp.zeros(len(COUNTERS), jnp.int32)
        state = WatchState(inner, jnp.zeros([], jnp.int32), counters, numbers, memory)
        return state.with_counters(step=-1, probe=probe_key, names=names_key)

    def update(
        self, updates: PyTree, state: Any, params: PyTree = None, **extra_args: PyTree
    ) -> tuple[PyTree, WatchState]:
        """The update of the optimizer, and the state after the step, measured if it is due."""
        import optax

        f, optimizer = self.probe.f, self.probe.optimizer
        assert optimizer is not None
        # For Optax, which calls this, the state may be any tree.
        if not isinstance(state, WatchState):
            raise errors.StructureError(
                expected="the state of a watched optimizer",
                got=f"a {type(state).__name__}",
                do="Convert it: ntkdiag.rewatch(tx, opt_state, params).",
            )
        new_updates, inner = optimizer.update(updates, state.ntk_inner, params, **extra_args)
        moves = moves_parameters(inner)
        count = optax.safe_increment(state.ntk_count)
        if moves is not None:
            count = jnp.where(moves, count, state.ntk_count)
        watched = state._replace(ntk_inner=(), ntk_count=count)
        if params is None and f is not None:
            self.notice.give_reason(
                self.call,
                "tx.update(updates, state) came without the parameters, which are measured. Pass "
                "them on: tx.update(updates, state, params)",
            )
        else:
            point = Point(
                None if params is None else after_update(params, new_updates),
                inner,
                updates,
                extra_args={name: traceable(value) for name, value in extra_args.items()},
            )
            watched = self._after(point, watched, moves, new_updates)
        return new_updates, watched._replace(ntk_inner=inner)

    def _layout(self, point: Point) -> tuple[Layout, Memory]:
        """Names and shapes of all numbers of a measurement, and the memory before the first."""
        import optax

        arrays, join = split_arrays(point)
        blank = self._blank_memory(point)
        # What else the optimizer gets, as `value=`, is not known yet: one that takes any state and
        # gives the gradient back has the same numbers.
        stand_in = optax.GradientTransformationExtraArgs(
            lambda params: (), lambda updates, state, *args, **extra_args: (updates, state)
        )
        probe = dataclasses.replace(self.probe, optimizer=stand_in)

        def measure(arrays: list[Array]) -> dict[str, AnyArray]:
            found = numbers_at(probe, self.instruments, join(arrays), blank, 0, True)
            return flat(found.estimates)

        return Layout.of(jax.eval_shape(measure, arrays)), blank

    def _blank_memory(self, point: Point) -> Memory:
        if self.probe.f is None:
            return {}
        shape = self.probe.fit(match(self.probe.f, point.params, point.model_state).params)
        return blank_memory(self.probe, self.instruments, shape)

    def _probe_key(self) -> int:
        """A hash of what makes memories comparable, as an integer of 31 bits."""
        names = [one.name for one in self.instruments]
        return zlib.crc32(repr((self.probe.digest, self.probe.top_k, names)).encode()) >> 1

    def _after(
        self, point: Point, state: WatchState, moves: Array | None, update: PyTree
    ) -> WatchState:
        """The state with the measurement of a point, if it is due; a failure is one warning."""
        if self.notice.is_given:
            return state
        # A wrapper with a branch of its own traces the update and closes over the state.
        is_outside = not is_traced(state.ntk_count, update)
        step = int(state.ntk_count) if is_outside else None
        switches = without_debugging_switches() if is_outside else warnings_as_warnings()
        try:
            with switches, usual_promotion():
                if is_outside:
                    return self._outside(point, state, moves)
                if self.probe.f is not None:
                    # In a jit of the user the compiler options are not ours, and on some CPUs XLA's
                    # default computes reductions wrongly.
                    warn_if_untrusted_jit(lambda: self.probe.normalizes(point.params))
                return self._looked_at(point, state, moves)
        except (KeyboardInterrupt, SystemExit):
            raise  # the user ends the run
        except BaseException as error:
            self.notice.give(self.call, step, error)
            return state

    def _outside(self, point: Point, state: WatchState, moves: Array | None) -> WatchState:
        """Outside of `jax.jit`, in a program of our own."""
        arrays, join = split_arrays((point, state, moves))
        key = jax.tree.structure((point, state, moves))
        if key not in self._programs:
            options = compiler_options(reduces=True)
            self._programs[key] = jax.jit(
                lambda arrays: self._looked_at(*join(arrays)), compiler_options=options
            )
        return self._programs[key](arrays)

    def _looked_at(self, point: Point, state: WatchState, moves: Array | None) -> WatchState:
        """The state after a step that is being traced."""
        # The schedule asks for this step, or the last step that was due had NaN.
        is_due = self.every(state.ntk_count) | (state.counter("status") == Status.POSTPONED)
        if isinstance(self.every, Every | Automatic):
            is_due |= state.counter("status") == Status.UNMEASURED
        looks = looks_finite((point.gradient, point.params))
        # Only the first of several broken steps in a row is looked at as a whole.
        is_due = is_due | (~looks & (state.counter("is_broken") == 0))
        is_due = is_due if moves is None else is_due & moves
        state = _counted(state.with_counters(is_broken=0), ~looks)
        # Branches of a conditional take arrays: functions and settings go round it.
        arrays, join = split_arrays(point)

        def measure(state: WatchState, arrays: list[Array]) -> WatchState:
            return self._with_measurement(join(arrays), state)

        # A derivative of a whole training step must not include the diagnostics.
        arrays = jax.lax.stop_gradient(arrays)
        is_due = jax.lax.stop_gradient(jnp.asarray(is_due))
        return jax.lax.cond(is_due, channels_last(measure), lambda state, _: state, state, arrays)

    def _with_measurement(self, point: Point, state: WatchState) -> WatchState:
        """The state with a measurement, which the writers get, too."""
        # Memories of another probe are of no use.
        probe_key = self._probe_key()
        is_same = state.counter("probe") == probe_key
        is_first = ~is_same | (state.counter("measurements") == 0) | (not state.ntk_memory)
        memory = state.ntk_memory or self._blank_memory(point)
        with jax.named_scope("ntkdiag"):
            step = state.ntk_count
            found = numbers_at(self.probe, self.instruments, point, memory, step, is_first)
        is_finite = found.status == Status.MEASURED
        state = _counted(state, ~is_finite & (state.counter("is_broken") == 0))
        # The first of several steps with NaN may be one that a loss scale skips: the next is due.
        is_postponed = ~is_finite & (state.counter("status") <= Status.MEASURED)
        status = jnp.where(is_postponed, Status.POSTPONED, found.status).astype(jnp.int32)
        estimates = found.estimates
        if "drift" in estimates and not state.ntk_memory:
            estimates = estimates | {"drift": Estimate.unknown()}
        by_number = flat(estimates)
        layout = Layout.of({name: jax.typeof(number) for name, number in by_number.items()})
        # All at once: every number by itself is a program of its own to XLA.
        is_known = is_finite | layout.holds(says_where)
        numbers = jnp.where(is_known, layout.packed(by_number), jnp.nan)
        if self.sink.is_wanted:
            answer = self._deliver(point, state, layout, numbers, status)
            status = jnp.maximum(status, answer - 1)  # the answer has to be used
        state = state.with_counters(
            measurements=state.counter("measurements") + is_finite,
            step=state.ntk_count,
            status=status,
            probe=probe_key,
            names=layout.key,
        )
        kept = {name: found.memory[name] for name in state.ntk_memory}
        return state._replace(ntk_numbers=numbers, ntk_memory=kept)

    def _deliver(
        self,
        point: Point,
        state: WatchState,
        layout: Layout,
        numbers: Float[Array, " k"],
        status: Array,
    ) -> Int[Array, ""]:
        """Send a measurement to the writers; only scalars and short arrays leave the device.

        A step that is postponed may be taken back, with its state: the next one sends its numbers.
        """
        record = self._record(point)
        if "drift" in layout.names and not state.ntk_memory:
            record["notes"].append(_NOT_KEPT)

        def put(*arrays: AnyArray) -> int:
            counters, step, status, numbers, before = arrays
            broken, last = broken_steps(counters), by_name(counters)
            if last["status"] == Status.POSTPONED:
                row = {**layout.plain(before), **broken, "status": Status.POSTPONED.value}
                self.sink.put(last["step"], row, record)
            if status != Status.POSTPONED:
                row = {**layout.plain(numbers), **broken, "status": int(status)}
                self.sink.put(int(step), row, record)
            return 0

        return call_host(
            put, state.ntk_counters, state.ntk_count, status, numbers, state.ntk_numbers
        )

    def _record(self, point: Point) -> dict[str, Any]:
        if self.probe.f is None:
            params = arrays_by_path(point.gradient if point.params is None else point.params)
        else:
            params = self.probe.match(point).params
        settings = {"every": self.every, "call": "watch", "notes": self.notes}
        return convention_record(self.probe, self.instruments, params, **settings)


def _counted(state: WatchState, is_broken: Array) -> WatchState:
    """The state with one more broken step, where this one is."""
    count, first = state.counter("n_broken"), state.counter("first_broken")
    return state.with_counters(
        is_broken=state.counter("is_broken") | is_broken,
        first_broken=jnp.where(is_broken & (count == 0), state.ntk_count, first),
        n_broken=count + is_broken,
    )
