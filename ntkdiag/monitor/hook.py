"""A hook for training loops in Python: the measurements of `watch`, in programs of their own.

A call asks the schedule, measures, and passes the numbers to the writers. It never raises into the
loop: everything is in one `try`.
"""

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.estimate import Estimate
from ntkdiag.jaxtools.cpu import channels_last, compiler_options
from ntkdiag.jaxtools.tracing import is_traced, settings_of_thread
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.memory import budget
from ntkdiag.models.array_leaves import split_arrays
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.monitor.convention_record import convention_record, settings_of
from ntkdiag.monitor.error_isolation import (
    FailureNotice,
    say,
    warnings_are_errors,
    without_debugging_switches,
)
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, chosen
from ntkdiag.monitor.measure import Memory, Numbers, blank_memory, measure_point
from ntkdiag.monitor.measurement import Measurement, Status
from ntkdiag.monitor.point import Point
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.schedule import (
    RECENT,
    UNTIMED_PERIOD,
    Automatic,
    Cost,
    ScheduleLike,
    Step,
    as_schedule,
)
from ntkdiag.monitor.sink import OnFinding, Sink
from ntkdiag.monitor.train_state import arrays_of_nnx, found_in, steps_made, take_apart
from ntkdiag.monitor.writers_argument import WritersLike, read_writers
from ntkdiag.probe_batch import Pair
from ntkdiag.runs.run_log import RunLog

if TYPE_CHECKING:
    import optax

# A copy of what the loop holds takes no more than this share of the memory budget.
_MOST_COPIED = 0.25


class Monitor:
    """Measure the neural tangent kernel of `f` on a probe batch from a Python training loop.

        monitor = ntkdiag.Monitor(
            fn, train=(x, y), loss="cross_entropy", optimizer=tx, writers="terminal"
        )
        train_step = monitor.around(train_step)

    `around` measures before a step. You can also call the monitor yourself:

        for step in range(steps):
            monitor(step, params, opt_state)
            params, opt_state = train_step(params, opt_state, batch)

    The call never raises into your loop, except for what ends the program (Ctrl-C): an error
    becomes one warning, and the call returns None. With `every="auto"` training continues while the
    first measurement compiles: it uses a copy of the parameters, in a thread, and the call returns
    None. `last` waits for it.

    Args:
        f: A `Functional`, or any `f(params, x)` that returns `[N ...]`.
        train: Examples of the training set with their labels, (x, y), as for `ntkdiag.watch`.
        held_out: Examples that are not trained on, with their labels.
        loss: The loss that is trained, as for `ntkdiag.watch`. None leaves out all numbers about
            stability.
        every: "auto" for as often as 1 % of the time allows, a number of steps, or a function of
            the step, such as `ntkdiag.monitor.log_spaced`.
        optimizer: The Optax optimizer that trains. The margin needs it, and the `opt_state` of the
            call.
        instruments: What is measured, as for `ntkdiag.watch`.
        batch_size: Examples of one training step, which the noise scale is compared with.
        n_train: Examples of the whole training set, as for `ntkdiag.watch`.
        out: A run directory for the rows, as for `ntkdiag.watch`.
        writers: Destinations of the rows, as for `ntkdiag.watch`.
        on_finding: Functions that are called with each finding, as for `ntkdiag.watch`.
        top_k: Number of eigenvalues, at most as many as the kernel has.
        kernel: Whether to measure the exact kernel, too, as `ntkdiag.track` does, of the model in
            evaluation mode. Cost: `ntkdiag.ntk` of the probe.

    Attributes:
        cost: What measuring has cost; prints as one line. Fields: `setup_seconds` of the first
            measurement, `seconds` of all later ones, `elapsed` wall time since the first, the
            `share` of it, the number of `measurements`.

    Raises:
        InvalidInputError: When an argument is out of range, when model and probe do not fit (with
            a Functional), or when `out` belongs to another run or is being written to.
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
        kernel: bool = False,
    ) -> None:
        with without_debugging_switches():
            self._probe = Probe.of(
                f,
                train=train,
                held_out=held_out,
                loss=loss,
                optimizer=optimizer,
                top_k=top_k,
                n_train=n_train,
                batch_size=batch_size,
            )
            self._exact: Any = None
            if kernel:
                from ntkdiag.monitor.exact_kernel import (
                    ExactKernel,
                )  # avoids a circular import

                self._exact = ExactKernel(self._probe)
        self._instruments, self._notes = chosen(instruments, self._probe)
        for note in self._notes:
            say(f"Monitor: {note}")
        self._due = as_schedule(every)
        self._next = 0  # the first step that may be measured next
        self._next_call: int | None = None  # the step that `around` is called for next
        run_log = None if out is None else RunLog(out)
        self._sink = Sink(read_writers(writers, run_log), on_finding)
        self._program: Callable[..., Numbers] | None = None
        self._structure: Any = None  # of the points that the program is for
        self._memory: Memory | None = None
        self._layers: tuple[str, ...] = ()
        self._is_from_start = True  # whether the first measurement was that of step 0
        self._has_measured = False  # whether a measurement found no NaN
        self._failure_notice = FailureNotice()
        self._first: threading.Thread | None = None  # the first measurement, while it is compiled
        self.cost = Cost()
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
        gradient: PyTree = None,
        model_state: PyTree = None,
    ) -> Measurement | None:
        """Measure if `step` is scheduled.

        Args:
            step: Updates made before these parameters.
            params: The parameters, the model, or a train state with its optimizer.
            opt_state: The state of the optimizer, or an `nnx.Optimizer`.
            gradient: The last gradient that the optimizer got; that of the probe where it is None.
            model_state: State that changes with the parameters, such as running statistics.
        """
        return self._observe(step, lambda: self._point(params, opt_state, gradient, model_state))

    def _observe(self, step: Step, point_of: Callable[[], Point]) -> Measurement | None:
        """Measure a point if its step is due; nothing is raised into the loop."""
        begun = self.cost.now()
        try:
            _require_concrete(step)
            number = int(step)
            if not self._is_due(number):
                return None
            # After a failure it is tried again this late; a successful measurement sets a better
            # time.
            self._next = number + UNTIMED_PERIOD
            # Threads share the filters of warnings: those that raise are changed while it measures,
            # which must not be beside the loop.
            has_own_filters = warnings_are_errors()
            with without_debugging_switches():
                point = point_of()
                if has_own_filters or not self._may_be_in_background(point):
                    return self._measure(number, point, begun)
                self._begin_in_background(number, point, begun)
                return None
        except (KeyboardInterrupt, SystemExit):
            raise  # the user ends the run
        except BaseException as error:  # asyncio.CancelledError and GeneratorExit are no Exception
            self._note_failure(step, error, begun)
            return None

    @errors.public
    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A training step that is measured before it is called.

            train_step = monitor.around(train_step)

        Parameters and optimizer state are found among its arguments by their structure, also in a
        train state, a model, a tuple or a dictionary. Steps are counted by calls, from the number
        of steps that the state has made.

        Args:
            step: The step as the loop calls it, compiled or not.

        Returns:
            A function that does the same.
        """

        @functools.wraps(step)
        def measured(*args: Any, **kwargs: Any) -> Any:
            held = (*args, *kwargs.values())
            if not is_traced(held):
                if self._next_call is None:
                    self._next_call = steps_made(self._probe, held)
                self._observe(self._next_call, lambda: found_in(self._probe, held))
                self._next_call += 1
            return step(*args, **kwargs)

        return measured

    @property
    def last(self) -> Measurement | None:
        """The last `Measurement`; None before the first."""
        if self._first is not None:
            self._first.join()
        return self._last

    def close(self) -> None:
        """Write what is still to be written, and close the writers."""
        if self._first is not None:
            self._first.join()
        self._sink.close()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _is_due(self, step: int) -> bool:
        if isinstance(self._due, Automatic):
            return not self._is_compiling(step) and step >= self._next
        return bool(self._due(step))

    def _point(
        self, params: PyTree, opt_state: PyTree, gradient: PyTree, model_state: PyTree
    ) -> Point:
        point = take_apart(self._probe.model, params, opt_state, model_state)
        _require_concrete((point.params, point.model_state))
        return point._replace(gradient=arrays_of_nnx(gradient))

    def _may_be_in_background(self, point: Point) -> bool:
        """Whether training continues while this measurement is compiled."""
        is_first = self._first is None and not self.cost.measurements
        if not (is_first and isinstance(self._due, Automatic)) or jax.process_count() > 1:
            return False  # several processes measure at the same step
        # Programs with collectives on another thread would wait for those of the loop.
        leaves = jax.tree.leaves(point)
        if any(isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 for leaf in leaves):
            return False
        n_bytes = sum(getattr(leaf, "nbytes", 0) for leaf in leaves)
        return n_bytes <= _MOST_COPIED * budget(None)

    def _begin_in_background(self, step: int, point: Point, begun: float) -> None:
        """Make the first measurement in a thread; it is of a copy of what the loop holds."""

        def copy(leaf: Any) -> Any:
            return leaf.copy() if isinstance(leaf, jax.Array | np.ndarray) else leaf

        copied, settings = jax.tree.map(copy, point), settings_of_thread()

        def measure() -> None:
            try:
                with settings(), without_debugging_switches():
                    self._measure(step, copied, begun)
            except BaseException as error:
                self._note_failure(step, error, begun)

        in_context = functools.partial(contextvars.copy_context().run, measure)
        self._first = threading.Thread(target=in_context, name="ntkdiag first measurement")
        self._first.start()

    def _is_compiling(self, step: int) -> bool:
        """Whether the first measurement is under way; once it is not, the clock begins here."""
        if self._first is None:
            return False
        if self._first.is_alive():
            return True
        self._first = None
        self.cost.restart(step)
        return False

    def _note_failure(self, step: Step, error: BaseException, begun: float) -> None:
        self.cost.fail(begun)
        self._failure_notice.give("Monitor", step, error)

    def _measure(self, step: int, point: Point, begun: float) -> Measurement:
        probe = self._probe
        matched = probe.match(point)
        shape = probe.fit(matched.params)
        probe.verify(matched.params)
        is_first = self._memory is None
        if is_first:
            self._memory = blank_memory(probe, self._instruments, shape)
            self._layers = tuple(leaves_by_path(matched.params))
            self._is_from_start = step == 0
        found = self._run(point, step)
        estimates = jax.tree.map(np.asarray, found.estimates)  # waits for the result
        self._memory = found.memory
        if self._exact is not None and int(found.status) == Status.MEASURED:
            estimates |= self._exact.estimates(matched, step, shape.shape[1:])
        notes = list(self._notes)
        if "drift" in estimates and not self._is_from_start:
            estimates["drift"] = jax.tree.map(np.asarray, Estimate.unknown())
            notes.append("Drift is NaN: the first measurement was not that of step 0.")
        if "gradient_scale" in estimates and point.gradient is None:
            notes.append("gradient_scale is NaN: no gradient= was passed.")
        status = np.asarray(found.status)
        self._has_measured |= int(status) == Status.MEASURED
        measurement = Measurement(np.asarray(step, np.int32), status, estimates, self._layers)
        seconds = self.cost.add(step, begun)
        if is_first:
            say(f"Monitor: the first measurement took {seconds:.2g} s, compilation included.")
        excess = self.cost.excess(self._due)
        if excess is not None and self.cost.measurements == 1 + RECENT:
            say(f"Monitor: {excess}")
        self._next = step + self._steps_to_next()
        record = convention_record(
            probe,
            self._instruments,
            matched.params,
            every=self._due,
            call="Monitor",
            notes=notes,
        )
        self._sink.put(step, {**measurement.values(), "seconds": seconds}, record)
        self._last = measurement
        return measurement

    def _run(self, point: Point, step: int) -> Numbers:
        """The measurement, as a program of our own."""
        arrays, join = split_arrays(point)
        structure = jax.tree.structure(point)
        if self._program is None or structure != self._structure:
            self._structure = structure

            def measure(
                arrays: list[Array], memory: Memory, step: Array, is_first: Array
            ) -> Numbers:
                point = join(arrays)
                return measure_point(self._probe, self._instruments, point, memory, step, is_first)

            self._program = jax.jit(
                channels_last(measure), compiler_options=compiler_options(reduces=True)
            )
        is_first = np.asarray(not self._has_measured)
        return self._program(arrays, self._memory, np.asarray(step, np.int32), is_first)

    def _steps_to_next(self) -> int:
        """By the clock of the first process."""
        wait = self.cost.steps_to_next()
        if jax.process_count() == 1 or not isinstance(self._due, Automatic):
            return wait
        return int(multihost_utils.broadcast_one_to_all(np.asarray(wait)))


def _require_concrete(params: PyTree) -> None:
    """Refuse parameters that are being traced: the hook is for the loop around the step."""
    if is_traced(params):
        raise errors.InvalidInputError(
            expected="parameters outside of jax.jit",
            got="parameters that are being traced",
            do="Call it from the Python loop, or use ntkdiag.watch inside the compiled step.",
        )
