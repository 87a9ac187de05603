"""A hook for training loops in Python: the measurements of `watch`, outside the compiled step."""

import contextlib
import dataclasses
import reprlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils

from ntkdiag import errors
from ntkdiag.descent import Descent, DescentLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.monitor.measurement import Measurement, Status
from ntkdiag.monitor.measuring_cost import Cost
from ntkdiag.monitor.optimizer_state import learning_rate_in, objection_to_margin
from ntkdiag.monitor.outbox import Outbox, warn
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.record import convention_record
from ntkdiag.monitor.schedule import Schedule, as_schedule
from ntkdiag.monitor.writers import Writer


class Monitor:
    """Measure the neural tangent kernel of `f` on a probe batch from a Python training loop.

        monitor = ntkdiag.Monitor(
            fn, x, y, every=100, loss="cross_entropy", descent=0.1, writers=[JsonLines("run.jsonl")]
        )
        for step in range(steps):
            monitor(step, params, opt_state)
            params, opt_state = train_step(params, opt_state, batch)

    The call never raises into the loop: what goes wrong is said in one warning, and the call returns None. It waits for
    its own result, touches no buffer of the loop, and leaves measurements out when they would cost more than `time_share`.

    Cost: as `watch`; see the attribute `cost` for what it was.

    Args:
        f: As for `watch`.
        x: As for `watch`.
        y: As for `watch`.
        every: As for `watch`.
        top_k: As for `watch`.
        loss: As for `watch`.
        descent: As for `watch`; where it has no learning rate, that is taken from the `opt_state` of the call if
            `optax.inject_hyperparams` keeps it there.
        reduction: As for `watch`.
        writers: As for `watch`; they also get `<name>_seconds`, the time of the measurement.
        name: As for `watch`.
        memory: As for `watch`.
        time_share: Largest share of the wall time that measuring may take, not counting the first measurement, which
            compiles; scheduled measurements beyond it are skipped. None for no limit. What a measurement costs is known
            from the second one on.

    Attributes:
        cost: What measuring has cost; print it for one line. Its fields: `setup_seconds` of the first
            measurement, `seconds` of all later ones, `elapsed` wall time since the first, the `share` of
            that, `measurements` made, `skipped` ones, `last`, the seconds of the last one.
        last: The last `Measurement`, None before the first.

    Raises:
        InvalidInputError: As `watch`, and when `time_share` is not positive.
    """

    @errors.public
    def __init__(
        self,
        f: Callable[..., Any],
        x: Any,
        y: Any = None,
        *,
        every: int | Schedule = 100,
        top_k: int = 5,
        loss: LossLike | None = None,
        descent: DescentLike | None = None,
        reduction: str = "auto",
        writers: Sequence[Writer] = (),
        name: str = "ntk",
        memory: Any = None,
        time_share: float | None = 0.02,
    ) -> None:
        if not (
            time_share is None
            or (isinstance(time_share, int | float | np.number) and time_share > 0)
        ):
            raise errors.InvalidInputError(
                expected="a positive share of the wall time",
                got=f"time_share={time_share!r}",
                do="0.02 is two percent; None sets no limit.",
            )
        with _undisturbed():
            self._probe = Probe.of(
                f,
                x,
                y,
                top_k=top_k,
                descent=descent,
                loss=loss,
                reduction=reduction,
                memory=memory,
            )
        self._due = as_schedule(every)
        self._outbox = Outbox(writers)
        self._name = name
        self._kernel0: jax.Array | None = None
        self._started: float | None = None
        self._warned = False
        self.cost = Cost(time_share)
        self.last: Measurement | None = None

    @errors.called("monitor(step, params)")
    def __call__(self, step: int, params: Any, opt_state: Any = None) -> Measurement | None:
        """Measure if `step` is scheduled and the budget allows.

        Args:
            step: The step the parameters belong to: 0 before the first update.
            params: The parameters, as the optimizer holds them or as `f` takes them.
            opt_state: The optimizer state, if it is at hand. An injected learning rate is read from it, and the margin
                is left out where it would not hold: for Adam and its like, and for momentum that was not stated.

        Returns:
            The measurement with numpy values, or None when nothing was measured.
        """
        begun = time.perf_counter()
        if self._started is not None:
            self.cost.elapsed = begun - self._started
        try:
            if not self._due(int(step)):
                return None
            if not self._allowed(begun):
                self.cost.skipped += 1
                return None
            with _undisturbed():
                return self._measured(int(step), params, opt_state, begun)
        except Exception as error:
            self._spend(begun)
            if not self._warned:
                self._warned = True
                warn(
                    f"Monitor: step {reprlib.repr(step)} could not be measured: {type(error).__name__}: {error} "
                    "This is said once; training goes on."
                )
            return None

    def _allowed(self, now: float) -> bool:
        """What the budget allows; the first process decides for all, as all of them have to measure together."""
        allowed = self.cost.allows(now, self._started)
        if self.cost.time_share is None or jax.process_count() == 1:
            return allowed
        return bool(multihost_utils.broadcast_one_to_all(np.asarray(allowed)))

    def close(self) -> None:
        """Close the writers."""
        self._outbox.close()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Monitor({self._due}: {self.cost})"

    def _measured(self, step: int, params: Any, opt_state: Any, begun: float) -> Measurement:
        """Measure, write, and keep the first kernel that could be measured as the reference."""
        _require_concrete(params)
        params, unmoved = self._probe.parameters(params)
        layout = self._probe.layout(params)
        self._probe.verify(params)
        descent, injected, objection = self._descent(opt_state)
        reference = self._kernel0
        first = reference is None
        if reference is None:
            _, reference = self._probe.blank(layout)
        measurement, kernel0 = self._probe.measure(
            params,
            layout,
            reference,
            step=step,
            first=first,
            unmoved=unmoved,
            descent=descent,
        )
        measurement = jax.tree.map(np.asarray, measurement)
        if int(measurement.status) == Status.MEASURED:
            self._kernel0 = kernel0
        seconds = self._spend(begun, measured=True)
        record = convention_record(
            self._probe,
            layout,
            name=self._name,
            every=self._due,
            source="Monitor",
            injected=injected,
        )
        record["time_share"] = self.cost.time_share
        if objection and self._probe.loss is not None:
            record["notes"].append(objection)
        values = {**measurement.values(self._name), f"{self._name}_seconds": seconds}
        self._outbox.send(step, values, record)
        self.last = measurement
        return measurement

    def _descent(self, opt_state: Any) -> tuple[Descent, bool, str | None]:
        """The update rule, whether its rate is from the optimizer's state, and what speaks against a margin."""
        descent = self._probe.descent or Descent()
        objection = objection_to_margin(opt_state, descent.momentum)
        injected = None
        if descent.learning_rate is None:
            injected = learning_rate_in(opt_state)
        if objection:
            descent = dataclasses.replace(descent, learning_rate=None)
        elif injected is not None:
            descent = dataclasses.replace(descent, learning_rate=injected)
        return descent, injected is not None, objection

    def _spend(self, begun: float, *, measured: bool = False) -> float:
        """Count the time since `begun`; what failed is within the budget, too."""
        now = time.perf_counter()
        seconds = now - begun
        self._started = now if self._started is None else self._started
        if measured and not self.cost.measurements:
            self.cost.setup_seconds = seconds
        else:
            self.cost.last = seconds
            self.cost.seconds += seconds
        self.cost.elapsed = now - self._started
        self.cost.measurements += measured
        return seconds


def _require_concrete(params: Any) -> None:
    """Refuse parameters that are being traced: the hook is for the loop around the compiled step."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(params)):
        raise errors.InvalidInputError(
            expected="parameters outside of jax.jit",
            got="parameters that are being traced",
            do="Call it from the Python loop, or use ntkdiag.watch inside the compiled step.",
        )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without what users switch on to find faults in their own code: what is unmeasured is NaN, and moved by itself."""
    with jax.debug_nans(False), jax.transfer_guard("allow"), jax.numpy_rank_promotion("allow"):
        yield
