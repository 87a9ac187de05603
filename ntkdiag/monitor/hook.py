"""A hook for training loops in Python: the measurements of `watch`, outside the compiled step.

A call asks the schedule and the time budget, measures, and hands the numbers to the writers. It
never raises into the loop: everything after the clock is read stands in one `try`.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.memory import budget
from ntkdiag.models.functional import Functional
from ntkdiag.monitor.background import Background, bytes_of, copied
from ntkdiag.monitor.checks import require_step
from ntkdiag.monitor.convention_record import convention_record, settings_of
from ntkdiag.monitor.error_isolation import (
    FailureNotice,
    say,
    warnings_are_errors,
    without_debugging_switches,
)
from ntkdiag.monitor.instrument_set import InstrumentSet, Memories
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, named
from ntkdiag.monitor.instruments.choosing import Supply, instrument_set_for
from ntkdiag.monitor.measurement import Measurement, Status
from ntkdiag.monitor.measurer import Measurer
from ntkdiag.monitor.measuring_cost import Cost
from ntkdiag.monitor.optimizer_parameters import Matched
from ntkdiag.monitor.pace import Pace, early
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.run_log import RunLog
from ntkdiag.monitor.schedule import Automatic, ScheduleLike, Step
from ntkdiag.monitor.sink import CLOSING_SECONDS, OnFinding, Sink
from ntkdiag.monitor.time_budget import USUAL_PERIOD, Budget
from ntkdiag.monitor.train_state import arrays_of_nnx, take_apart
from ntkdiag.monitor.training_step import TrainingStep, as_optimizer
from ntkdiag.monitor.writers_argument import WritersLike, read_writers
from ntkdiag.probe_batch import Pair, read_probes

if TYPE_CHECKING:
    import optax


# A copy of what the loop holds takes no more than this share of the memory budget.
_MOST_COPIED = 0.25


class Monitor:
    """Measure the neural tangent kernel of `f` on a probe batch from a Python training loop.

        monitor = ntkdiag.Monitor(
            fn,
            train=(x, y),
            every=100,
            loss="cross_entropy",
            optimizer=tx,
            writers=[JsonLines("run.jsonl")],
        )
        for step in range(steps):
            monitor(step, params, opt_state)
            params, opt_state = train_step(params, opt_state, batch)

    With the update at hand it also measures how linear the step is.

        updates, opt_state = tx.update(gradient, opt_state, params)
        monitor(step, params, opt_state, updates=updates, gradient=gradient)

    The call raises nothing into the loop but what ends the program (Ctrl-C): what goes wrong is
    said in one warning, and the call returns None. It waits for its own result, touches no buffer
    of the loop, whose program stays as it is, and leaves measurements out when they would cost more
    than `time_share`.

    With `every="auto"` training goes on while the first measurement is compiled: it is made of a
    copy of what the loop holds, in a thread, and the call returns None. `last` waits for it.

    Cost: that of the instruments. That of the kernel tier is one kernel
    and its eigenvalues, K^3, with K = N C for the full kernel, N for a reduced one; a second set of
    eigenvalues for losses other than squared error. In memory the first kernel, K^2 numbers. The
    attribute `cost` says what it was in seconds.

    Args:
        f: A `Functional`, or any `f(params, x)` that returns `[N ...]`.
        train: Examples of the training set with their labels, (x, y): N examples on the leading
            axis of every leaf of x, 64 to 256 are enough; y integer classes, targets shaped like
            the outputs, or None, which leaves the alignment out.
        held_out: Examples that are not trained on, with their labels. At least one of the two is
            given.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object
            of `ntkdiag.losses`, or a function `loss(outputs, y)`. None leaves out all numbers about
            stability.
        every: "auto" for as often as `time_share` allows, a number of steps, or a function of the
            step, such as `ntkdiag.monitor.log_spaced`.
        optimizer: The optimizer of Optax that trains. With the `opt_state` of the call it tells
            what the margin depends on.
        instruments: What is measured, as for `ntkdiag.watch`.
        batch_size: Examples of one training step, which the noise scale is compared with.
        n_train: Examples of the whole training set, as for `ntkdiag.watch`.
        out: A run directory that the measurements are written to, as for `ntkdiag.watch`.
        writers: Who gets the measurements, as for `ntkdiag.watch`. They also get `<name>_seconds`,
            the time of the measurement.
        on_finding: Functions that are called with each finding, as for `ntkdiag.watch`.
        top_k: Number of eigenvalues kept of the kernel tier.
        reduction: Reduction of its kernel over outputs: "full", "mean", "trace", "sum-of-logits",
            `ntkdiag.kernel.RandomProjections(k)`, or "auto": "full" up to 2048 rows, "mean" beyond
            up to 64 outputs per example, and with more of them `RandomProjections(8)`.
        memory: Memory budget of a kernel, as in `ntkdiag.ntk`.
        time_share: Largest share of the wall time that measuring may take, not counting the first
            measurement, which compiles: 0.01 where `every="auto"`, no limit for a schedule, of
            which measurements beyond the share are skipped where one is said. What a measurement
            costs is known from the second one on.

    Attributes:
        cost: What measuring has cost; print it for one line. Its fields: `setup_seconds` of the
            first measurement, `seconds` of all later ones, `elapsed` wall time since the first, the
            `share` of that, `measurements` made.

    Raises:
        InvalidInputError: When an argument is out of range, or, with a Functional, model and probe
            do not fit together; when `out` is of another run, or being written to.
    """

    @errors.public
    def __init__(
        self,
        f: Callable[..., PyTree],
        *,
        train: Pair | None = None,
        held_out: Pair | None = None,
        loss: LossLike | None = None,
        every: ScheduleLike = "auto",
        optimizer: "optax.GradientTransformation | optax.MultiSteps | None" = None,
        instruments: InstrumentsLike = "auto",
        batch_size: int | None = None,
        n_train: int | np.integer | None = None,
        out: str | os.PathLike[str] | None = None,
        writers: WritersLike = (),
        on_finding: Sequence[OnFinding] | OnFinding = (),
        top_k: int | np.integer = 5,
        reduction: ReductionLike = "auto",
        memory: Memory | None = None,
        time_share: float | int | np.number | None = None,
    ) -> None:
        with without_debugging_switches():
            self._probe = Probe.of(
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
        self._instruments = instruments
        transform = None if optimizer is None else as_optimizer(optimizer)
        self._measurer = Measurer.of(self._probe, transform)
        self._budget = Budget.of(every, time_share, batch_size)
        self._due = self._budget.every
        self._pace = Pace(self._budget.time_share)
        self._next = 0  # the first step that may be measured next
        run_log = None if out is None else RunLog(out)
        self._sink = Sink(read_writers(writers, run_log), on_finding)
        self._instrument_set: InstrumentSet | None = None  # chosen at the first measurement
        self._layout: ProbeLayout | None = None  # of the first measurement
        self._memories: Memories = {}
        self._layers: tuple[str, ...] = ()
        self._first_ended: float | None = None  # when the first measurement had ended
        self._failure_notice = FailureNotice()
        self._first: Background | None = None  # the first measurement, while it is compiled
        self.cost = Cost(self._budget.time_share)
        self._last: Measurement | None = None
        if run_log is not None:
            params = f.params if isinstance(f, Functional) else None
            run_log.begin(settings_of(self._probe, params))

    @errors.called("monitor(step, params)")
    def __call__(
        self,
        step: Step,
        params: PyTree,
        opt_state: PyTree = None,
        *,
        updates: PyTree = None,
        gradient: PyTree = None,
        model_state: PyTree = None,
    ) -> Measurement | None:
        """Measure if `step` is scheduled and the budget allows."""
        # The time of the loop passes whether or not this step is measured.
        begun = time.perf_counter()
        if self._first_ended is not None:
            self.cost.elapsed = begun - self._first_ended
        try:
            _require_concrete(step)
            number = require_step(step)
            if not self._due(number):
                return None
            is_bounded = self._budget.time_share is not None
            if is_bounded and (number < self._next or self._is_compiling(number)):
                return None
            # So late it is tried again where it fails; a measurement that is made says better.
            self._next = number + USUAL_PERIOD
            self._pace.begin()
            # Threads share the filters of warnings: those that raise are changed while it measures,
            # which must not be beside the loop.
            has_own_filters = warnings_are_errors()
            with without_debugging_switches():
                loop = take_apart(self._probe.f, params, opt_state, model_state)
                training_step = TrainingStep(
                    loop.params,
                    gradient=arrays_of_nnx(gradient),
                    update=arrays_of_nnx(updates),
                    state_after=loop.opt_state,
                    model_state=loop.model_state,
                )
                in_background = not has_own_filters and self._may_be_in_background(training_step)
                if in_background:
                    training_step = copied(training_step)
                due = self._prepare(number, training_step)
                if due is None:
                    return None
                if in_background:
                    self._begin_in_background(due, begun)
                    return None
                return self._measure(due, begun)
        except (KeyboardInterrupt, SystemExit):
            raise  # the user ends the run
        except BaseException as error:  # asyncio.CancelledError and GeneratorExit are no Exception
            self._note_failure(step, error, begun)
            return None

    @property
    def last(self) -> Measurement | None:
        """The last `Measurement`; None before the first."""
        if self._first is not None:
            self._first.wait()
        return self._last

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Write what is still to be written, and close the writers.

        Args:
            seconds: How long to wait for writers that are behind. What they have not written then
                is said in a warning.
        """
        if self._first is not None:
            self._first.wait()
        self._sink.close(seconds)

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Monitor({self._due}: {self.cost})"

    def _may_be_in_background(self, training_step: TrainingStep) -> bool:
        """Whether training goes on while this measurement is compiled."""
        is_first = self._first is None and not self.cost.measurements
        if not (is_first and self._is_automatic) or jax.process_count() > 1:
            return False  # several processes measure at the same step
        return bytes_of(training_step) <= _MOST_COPIED * budget(self._probe.memory)

    def _begin_in_background(self, due: "_Due", begun: float) -> None:
        """Make the first measurement in a thread; it is of a copy of what the loop holds."""

        def measure() -> None:
            try:
                with without_debugging_switches():
                    self._measure(due, begun)
            except BaseException as error:
                self._note_failure(due.step, error, begun)

        self._first = Background(measure)

    def _is_compiling(self, step: int) -> bool:
        """Whether the first measurement is under way; once it is not, the clock begins here."""
        if self._first is None:
            return False
        if self._first.is_under_way:
            return True
        self._first = None
        self._pace.restart(step)
        return False

    def _note_failure(self, step: Step, error: BaseException, begun: float) -> None:
        """Say once what went wrong; what fails at every step is kept within the budget, too."""
        self._spend(begun, measured=False)
        self._failure_notice.give("Monitor", step, error)

    def _prepare(self, step: int, training_step: TrainingStep) -> "_Due | None":
        """What is to be measured; None where no instrument can."""
        _require_concrete((training_step.params, training_step.model_state))
        matched = self._measurer.match(training_step)
        layout = self._probe.layout(matched.params)
        if self._layout is not None:
            layout.require_same(self._layout)
        instrument_set = self._instrument_set_for(training_step, matched, layout)
        if not instrument_set.instruments:
            return None
        self._measurer.verify(matched.params, instrument_set)
        return _Due(step, training_step, matched, layout, instrument_set)

    def _measure(self, due: "_Due", begun: float) -> Measurement:
        """Measure and write."""
        step, layout, instrument_set, matched = (
            due.step,
            due.layout,
            due.instrument_set,
            due.matched,
        )
        reading = self._measurer.take_outside(
            instrument_set,
            layout,
            due.training_step,
            self._memories,
            step,
            self.cost.measurements,
        )
        estimates = jax.tree.map(np.asarray, reading.estimates)  # waits for the result
        self._memories = reading.memories
        status = np.asarray(reading.status)
        if int(status) == Status.MEASURED:
            self._layout = layout
        measurement = Measurement(
            np.asarray(step, np.int32),
            status,
            estimates,
            alignment_reduction=str(self._probe.reduction_of_alignment(layout)),
            layers=self._layers,
        )
        seconds = self._spend(begun, measured=True)
        self._next = step + self._steps_to_next(step)

        # The record goes to a writer once; it is made anew as its notes depend on the optimizer.
        record = convention_record(
            self._measurer,
            layout,
            instrument_set,
            matched.params,
            every=self._due,
            call="Monitor",
            layers=self._layers,
            followed=self._probe.followed(matched.held),
            batch_size=self._budget.batch_size,
        )
        record["time_share"] = self.cost.time_share
        values = {**measurement.values(), "seconds": seconds}
        self._sink.put(step, values, record)
        self._last = measurement
        return measurement

    @property
    def _is_automatic(self) -> bool:
        """Whether each measurement says which step is the next one."""
        return isinstance(self._due, Automatic)

    def _steps_to_next(self, step: int) -> int:
        """By the clock, as soon as that is known."""
        wait = self._pace.end(step) or early(self._budget.untimed_wait)
        if self.cost.measurements == 2:
            excess = self._pace.excess_in_words(self._budget)
            if excess is not None:
                say(f"Monitor: {excess}")
        if jax.process_count() == 1 or self._budget.time_share is None:
            return wait
        return int(multihost_utils.broadcast_one_to_all(np.asarray(wait)))

    def _instrument_set_for(
        self, training_step: TrainingStep, matched: Matched, layout: ProbeLayout
    ) -> InstrumentSet:
        """The instruments, chosen at the first measurement by what is at hand then."""
        knows_optimizer = self._measurer.reads_updates and training_step.state_after is not None
        supply = Supply(
            self._probe,
            has_update=training_step.update is not None,
            has_optimizer=knows_optimizer,
        )
        if self._instrument_set is None:
            self._instrument_set = instrument_set_for(
                self._instruments, supply, layout, matched.params
            )
            for note in self._instrument_set.notes:
                say(f"Monitor: {note}")
            self._memories = self._instrument_set.blank_memories(self._probe, layout)
            if self._instrument_set.compiled:
                self._layers = self._measurer.layer_names(matched.params)
        # A last call after training has no update: what needs one is left out of it.
        able = [one for one in self._instrument_set.instruments if supply.lack(one) is None]
        return dataclasses.replace(self._instrument_set, instruments=tuple(able))

    def _spend(self, begun: float, *, measured: bool) -> float:
        """Count the seconds since `begun`; a measurement that failed is within the budget, too."""
        now = time.perf_counter()
        seconds = now - begun
        if self._first_ended is None:
            self._first_ended = now
        if measured and self.cost.measurements == 0:
            self.cost.setup_seconds = seconds
        else:
            self.cost.seconds += seconds
        self.cost.elapsed = now - self._first_ended
        self.cost.measurements += measured
        return seconds


@dataclasses.dataclass(frozen=True)
class _Due:
    """A measurement that is due: the step, and what is measured of it."""

    step: int
    training_step: TrainingStep
    matched: Matched
    layout: ProbeLayout
    instrument_set: InstrumentSet


def _require_concrete(params: PyTree) -> None:
    """Refuse parameters that are being traced: the hook is for the loop around the step."""
    if is_traced(params):
        raise errors.InvalidInputError(
            expected="parameters outside of jax.jit",
            got="parameters that are being traced",
            do="Call it from the Python loop, or use ntkdiag.watch inside the compiled step.",
        )
