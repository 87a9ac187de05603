"""A hook for training loops in Python: the measurements of `watch`, outside the compiled step.

A call asks the schedule and the time budget, measures, and hands the numbers to the writers. It
never raises into the loop: everything after the clock is read stands in one `try`.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.descent import Descent, DescentLike
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.calls.call import Memory
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.memory import budget
from ntkdiag.models.functional import Functional
from ntkdiag.monitor.courier import CLOSING_SECONDS
from ntkdiag.monitor.loop_state import LoopState, take_apart
from ntkdiag.monitor.measurement import Measurement, Status
from ntkdiag.monitor.measurement_plan import MeasurementPlan
from ntkdiag.monitor.measuring_cost import Cost
from ntkdiag.monitor.never_raise import FailureNotice, warn, without_debugging_switches
from ntkdiag.monitor.optimizer_parameters import have_not_moved, match
from ntkdiag.monitor.optimizer_state import learning_rate_in, objection_to_margin
from ntkdiag.monitor.outbox import Outbox
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.record import convention_record
from ntkdiag.monitor.schedule import ScheduleLike, Step, as_schedule
from ntkdiag.monitor.writers import Writer
from ntkdiag.probe_batch import Pair, read_probes
from ntkdiag.progress import under_way


class Monitor:
    """Measure the neural tangent kernel of `f` on a probe batch from a Python training loop.

        monitor = ntkdiag.Monitor(
            fn,
            train=(x, y),
            every=100,
            loss="cross_entropy",
            descent=0.1,
            writers=[JsonLines("run.jsonl")],
        )
        for step in range(steps):
            monitor(step, params, opt_state)
            params, opt_state = train_step(params, opt_state, batch)

    The call never raises into the loop: what goes wrong is said in one warning, and the call
    returns None. It waits for its own result, touches no buffer of the loop, and leaves
    measurements out when they would cost more than `time_share`.

    Cost: per measurement one kernel and its eigenvalues, K^3, with K = N C for the full kernel, N
    for a reduced one; a second set of eigenvalues for losses other than squared error. In memory
    the first kernel, K^2 numbers. The attribute `cost` says what it was in seconds.

    Args:
        f: A `Functional`, or any `f(params, x)` that returns `[N ...]`.
        train: Examples of the training set with their labels, (x, y): N examples on the leading
            axis of every leaf of x, 64 to 256 are enough; y integer classes, targets shaped like
            the outputs, or None, which leaves the alignment out.
        held_out: Examples that are not trained on, with their labels. At least one of the two is
            given.
        every: Number of steps, or a schedule: `Every`, `LogSpaced`, `At`, any function of the step.
        top_k: Number of eigenvalues kept.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object
            of `ntkdiag.losses`, or a function `loss(outputs, y)`. None leaves out all numbers about
            stability.
        descent: How it is trained: a `Descent`, or the learning rate of plain gradient descent.
            Where it has no learning rate, that is taken from the `opt_state` of the call if
            `optax.inject_hyperparams` keeps it there.
        reduction: Reduction of the kernel over outputs: "full", "mean", "trace", "sum-of-logits",
            or "auto", which is "full" up to 2048 rows and "mean" beyond.
        writers: Objects with `write(step, values)`, or one of them. They also get
            `<name>_seconds`, the time of the measurement.
        name: First part of the names the writers see: "ntk" gives "ntk_trace".
        memory: Memory budget of a kernel, as in `ntkdiag.ntk`.
        time_share: Largest share of the wall time that measuring may take, not counting the first
            measurement, which compiles; scheduled measurements beyond it are skipped. None for no
            limit. What a measurement costs is known from the second one on.
        first_measurement: Seconds that the first measurement may take by plan, compiling not
            counted. Beyond them, or beyond the memory budget, nothing is measured, and one warning
            names what costs less. None for no limit; see the method `plan`.

    Attributes:
        cost: What measuring has cost; print it for one line. Its fields: `setup_seconds` of the
            first measurement, `seconds` of all later ones, `elapsed` wall time since the first, the
            `share` of that, `measurements` made, `skipped` ones, `last`, the seconds of the last
            one.
        last: The last `Measurement`, None before the first.

    Raises:
        InvalidInputError: When an argument is out of range, or, with a Functional, model and probe
            do not fit together.
    """

    @errors.public
    def __init__(
        self,
        f: Callable[..., PyTree],
        *,
        train: Pair | None = None,
        held_out: Pair | None = None,
        every: ScheduleLike = 100,
        top_k: int | np.integer = 5,
        loss: LossLike | None = None,
        descent: DescentLike | None = None,
        reduction: str = "auto",
        writers: Writer | Sequence[Writer] = (),
        name: str = "ntk",
        memory: Memory | None = None,
        time_share: float | int | np.number | None = 0.02,
        first_measurement: float | int | np.number | None = 60.0,
    ) -> None:
        _require_limit(
            "time_share",
            time_share,
            expected="a positive share of the wall time",
            do="0.02 is two percent; None sets no limit.",
        )
        _require_limit(
            "first_measurement",
            first_measurement,
            expected="a positive number of seconds",
            do="None sets no limit.",
        )
        with without_debugging_switches():
            self._probe = Probe.of(
                f,
                read_probes(train, held_out),
                top_k=top_k,
                descent=descent,
                loss=loss,
                reduction=reduction,
                memory=memory,
            )
        self._due = as_schedule(every)
        self._outbox = Outbox(writers)
        self._name = name
        self._kernel0: Float[Array, "k k"] | None = None
        self._layout: ProbeLayout | None = None  # of that kernel
        self._most_seconds = first_measurement
        self._is_refused = False  # the first measurement, and so all
        self._first_ended: float | None = None  # when the first measurement had ended
        self._failure_notice = FailureNotice()
        self.cost = Cost(time_share)
        self.last: Measurement | None = None

    @errors.called("monitor(step, params)")
    def __call__(
        self, step: Step, params: PyTree, opt_state: PyTree = None, *, model_state: PyTree = None
    ) -> Measurement | None:
        """Measure if `step` is scheduled and the budget allows.

        Args:
            step: The step the parameters belong to: 0 before the first update.
            params: What the loop holds: a TrainState; the parameters, as the optimizer holds them
                or as `f` takes them; all variables of the model; an NNX module; an Equinox module,
                or the pair (module, state). Beside a `Functional`, arrays that come with the
                parameters, such as running statistics, are taken as they are at this step.
            opt_state: The optimizer state, or an `nnx.Optimizer`, if it is at hand and not in the
                TrainState. An injected learning rate is read from it, and the margin is left out
                where it would not hold: for Adam and its like, and for momentum that was not
                stated.
            model_state: What moves beside the parameters where these come alone: an Equinox
                `State`, or a tree of collections such as ``{"batch_stats": ...}``. Without it, it
                stays as it was when `f` was made.

        Returns:
            The measurement with numpy values, or None when nothing was measured.
        """
        # The time of the loop passes whether or not this step is measured.
        begun = time.perf_counter()
        if self._first_ended is not None:
            self.cost.elapsed = begun - self._first_ended
        try:
            if not self._due(int(step)):
                return None
            if self._is_refused or not self._budget_allows(begun):
                self.cost.skipped += 1
                return None
            with without_debugging_switches():
                loop = take_apart(self._probe.f, params, opt_state, model_state)
                return self._measure(int(step), loop, begun)
        except (KeyboardInterrupt, SystemExit):
            raise  # the user ends the run
        except BaseException as error:  # asyncio.CancelledError and GeneratorExit are no Exception
            # A measurement that fails at every step is kept within the budget like any other.
            self._spend(begun, measured=False)
            self._failure_notice.give("Monitor", step, error)
            return None

    @errors.called("monitor.plan(params)")
    def plan(self, params: PyTree = None, *, model_state: PyTree = None) -> MeasurementPlan:
        """What a measurement costs; nothing is computed.

        Args:
            params: As in a call; None for those of the `Functional`.
            model_state: As in a call.

        Returns:
            A plan that prints as one line, with `flops`, `bytes` and `seconds`.

        Raises:
            InvalidInputError: There are no parameters, or the batch is measured as a whole
                (mode="train"), which has no plan.
            MemoryBudgetError: The kernel does not fit into the memory budget.

        Cost: tracing f a few times.
        """
        f = self._probe.f
        if params is None and isinstance(f, Functional):
            params = f.params
        with without_debugging_switches():
            loop = take_apart(f, params, None, model_state)
            matched = match(f, loop.params, loop.model_state)
            layout = self._probe.layout(matched.params)
            return self._probe.plan(matched.params, layout)

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Write what is still to be written, and close the writers.

        Args:
            seconds: How long to wait for writers that are behind. What they have not written then
                is said in a warning.
        """
        self._outbox.close(seconds)

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Monitor({self._due}: {self.cost})"

    def _measure(self, step: int, loop: LoopState, begun: float) -> Measurement | None:
        """Measure, unless that costs too much; write; keep the first finite kernel as reference."""
        # The parameters in the structure `f` takes; the values in training of what it holds fixed,
        # or, where it cannot take them, whether they have moved; and once, whether examples
        # interact.
        _require_concrete((loop.params, loop.model_state))
        matched = match(self._probe.f, loop.params, loop.model_state)
        params = matched.params
        followed = self._probe.followed(matched.held)
        unmoved = True
        if isinstance(self._probe.f, Functional) and not followed:
            unmoved = have_not_moved(matched.held, self._probe.f.fixed)
        layout = self._probe.layout(params)
        if self._layout is not None:
            layout.require_same(self._layout)
        if self.cost.measurements == 0 and self._refuses(params, layout):
            return None
        update_rule = self._update_rule(loop.opt_state)

        # Drift is measured from the first kernel that was finite; until then zeros stand for it.
        is_first = self._kernel0 is None
        kernel0 = self._kernel0
        if kernel0 is None:
            _, kernel0 = self._probe.blank(layout)
        # The first measurement compiles, which takes long enough to show it.
        show = None if self.cost.measurements == 0 else False
        with under_way("first measurement", steps=2, show=show) as work:
            self._probe.verify(params)
            work.advance()
            measurement, kernel0 = self._probe.measure(
                params,
                layout,
                kernel0,
                step=step,
                first=is_first,
                unmoved=unmoved,
                descent=update_rule.descent,
                held=followed,
            )
            measurement = jax.tree.map(np.asarray, measurement)  # waits for the result
        if int(measurement.status) == Status.MEASURED:
            self._kernel0 = kernel0
            self._layout = layout
        seconds = self._spend(begun, measured=True)

        # The record goes to a writer once; it is made anew as its notes depend on the optimizer.
        record = convention_record(
            self._probe,
            layout,
            name=self._name,
            every=self._due,
            source="Monitor",
            injected=update_rule.is_injected,
            followed=followed,
        )
        record["time_share"] = self.cost.time_share
        if update_rule.objection and self._probe.loss is not None:
            record["notes"].append(update_rule.objection)
        values = {**measurement.values(self._name), f"{self._name}_seconds": seconds}
        self._outbox.send(step, values, record)
        self.last = measurement
        return measurement

    def _update_rule(self, opt_state: PyTree) -> "_UpdateRule":
        """The update rule as it was stated, completed by the state of the optimizer."""
        descent = self._probe.descent or Descent()
        injected_rate = None
        if descent.learning_rate is None:
            injected_rate = learning_rate_in(opt_state)
        objection = objection_to_margin(opt_state, descent.momentum)
        # Without a learning rate there is no margin.
        if objection:
            descent = dataclasses.replace(descent, learning_rate=None)
        elif injected_rate is not None:
            descent = dataclasses.replace(descent, learning_rate=injected_rate)
        return _UpdateRule(descent, injected_rate is not None, objection)

    def _refuses(self, params: PyTree, layout: ProbeLayout) -> bool:
        """Whether a measurement is refused for what it costs by plan, which is said once."""
        reason = None
        try:
            plan = self._probe.plan(params, layout)
            excess = plan.excess(budget(self._probe.memory), self._most_seconds)
            if excess is not None:
                reason = f"{plan}, {excess}."
        except errors.MemoryBudgetError as error:
            reason = str(error)
        except Exception:  # what has no plan, as a batch that is differentiated as a whole
            pass
        self._is_refused = self._agreed(reason is not None)
        if self._is_refused:
            self.cost.skipped += 1
            choices = "; ".join(self._probe.cheaper(params, layout)) or "a smaller probe"
            warn(
                f"Monitor: the first measurement is not made: {reason} What costs less: {choices}. "
                "first_measurement=None sets no limit of time, memory= one of memory. Nothing is "
                "measured; training goes on."
            )
        return self._is_refused

    def _agreed(self, decision: bool) -> bool:
        """The decision of the first process, which all have to follow: they measure together."""
        if jax.process_count() == 1:
            return decision
        return bool(multihost_utils.broadcast_one_to_all(np.asarray(decision)))

    def _budget_allows(self, now: float) -> bool:
        """Whether the budget of time allows a measurement now."""
        is_allowed = self.cost.allows(now, self._first_ended)
        return is_allowed if self.cost.time_share is None else self._agreed(is_allowed)

    def _spend(self, begun: float, *, measured: bool) -> float:
        """Count the seconds since `begun`; a measurement that failed is within the budget, too."""
        now = time.perf_counter()
        seconds = now - begun
        if self._first_ended is None:
            self._first_ended = now
        if measured and self.cost.measurements == 0:
            self.cost.setup_seconds = seconds
        else:
            self.cost.last = seconds
            self.cost.seconds += seconds
        self.cost.elapsed = now - self._first_ended
        self.cost.measurements += measured
        return seconds


@dataclasses.dataclass(frozen=True)
class _UpdateRule:
    """How the optimizer trains, as far as the margin depends on it.

    `is_injected` tells that the learning rate is from the state of the optimizer, `objection` why
    there is no margin.
    """

    descent: Descent
    is_injected: bool
    objection: str | None


def _require_limit(name: str, limit: object, expected: str, do: str) -> None:
    """Refuse a limit that is neither None nor a number above zero."""
    if limit is None:
        return
    is_number = isinstance(limit, int | float | np.number)
    if not (is_number and limit > 0):
        raise errors.InvalidInputError(expected=expected, got=f"{name}={limit!r}", do=do)


def _require_concrete(params: PyTree) -> None:
    """Refuse parameters that are being traced: the hook is for the loop around the step."""
    if is_traced(params):
        raise errors.InvalidInputError(
            expected="parameters outside of jax.jit",
            got="parameters that are being traced",
            do="Call it from the Python loop, or use ntkdiag.watch inside the compiled step.",
        )
