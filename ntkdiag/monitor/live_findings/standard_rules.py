"""The rules that a monitor has unless told otherwise.

Each compares the newest record with a threshold, or with what the run itself showed before. What
fluctuates has to be seen in several measurements in a row. In a number that was not measured
nothing is found. All thresholds are attributes of the rules, with their defaults here, and
docs/findings.md has a paragraph for each id.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.measured_row import number_of
from ntkdiag.monitor.live_findings.dead_layers import (
    certainly_dead,
    dead_layers,
    layer_name,
    layer_names,
)
from ntkdiag.monitor.live_findings.rule import (
    History,
    Row,
    Rule,
    interval,
    numbers,
    step_of,
)
from ntkdiag.scalars import require_positive

NON_FINITE = 2  # the status of a measurement that met NaN or infinity
FEWEST_EARLIER = 3  # numbers that make a median


@dataclasses.dataclass(frozen=True)
class MarginAbove(Rule):
    """Fires when the stability margin has risen through 1 without a pause, or is far above it.

    One of two criteria, on the number itself:

    1. Rise: the margin has risen in each of the last `rises` measurements, from below `calm` times
       the threshold, and is above the threshold in the last `times`.
    2. Far above: it is more than `far` times the threshold, after three measurements that were not;
       or so in `times` measurements in a row, the last no lower than the first.

    Being above 1 is no fault by itself. At the edge of stability the margin hovers there for
    thousands of steps, 1.0 to 1.2 and with noise of batches to 1.6: oscillations are kept small
    there, as they lower the curvature. The loss jumps where the margin rises smoothly through 1
    before anything oscillates: with Adam by 10 to 100 times, 20 to 70 steps later; with full-batch
    gradient descent that comes to its edge by 2 to 10 times, for a moment. After a cold start of
    Adam the margin is far above 1, and falls.

    Attributes:
        threshold: Largest margin that is in order.
        times: Measurements in a row that are above it.
        rises: Measurements in a row that are each above the one before; 0 for no such condition:
            then being above the threshold in `times` measurements in a row is enough.
        calm: Share of the threshold below which the rise began.
        far: Multiple of the threshold that is far above it.

    Raises:
        InvalidInputError: When a number is not positive, or a count is no integer.
    """

    threshold: float | int = 1.0
    times: int = 3
    rises: int = 8
    calm: float | int = 0.9
    far: float | int = 5.0

    @errors.public
    def __post_init__(self) -> None:
        require_positive(self.threshold, "threshold")
        require_positive(self.calm, "calm")
        require_positive(self.far, "far")
        _require_count(self.times, "times", least=1)
        _require_count(self.rises, "rises", least=0)

    def check(self, history: Sequence[Row]) -> Finding | None:
        """A finding where the margin has risen through the threshold, or is far above it."""
        margins = _numbers_of(history, "margin")
        if not margins or math.isnan(number_of(history[-1], "margin")):
            return None
        what = self._far_above(margins) or self._rise(margins)
        if not what:
            return None
        return Finding(
            id="margin-rises",
            severity="warning",
            quantities=("margin",),
            sentence=f"The stability margin is {margins[-1]:.3g}{what}.",
            value=margins[-1],
            interval=interval(history[-1], "margin"),
            threshold=self.threshold,
            step=step_of(history),
            trust=_of_measurements(len(margins)),
            do="Lower the learning rate or the momentum (beta), or lengthen the warm-up.",
            verify=f"Later margins stay below {self.threshold:g}.",
        )

    def _rise(self, margins: Sequence[float]) -> str:
        """What to say of a rise through the threshold; "" where there is none."""
        if not _are_above(margins, self.threshold, self.times):
            return ""
        above = f"has been above {self.threshold:g} in {_in_a_row(self.times)}"
        if self.rises == 0:
            return f" and {above}"
        begin = len(margins) - 1
        while begin > 0 and margins[begin - 1] < margins[begin]:
            begin -= 1
        n_rises = len(margins) - 1 - begin
        if n_rises < self.rises or not margins[begin] < self.calm * self.threshold:
            return ""
        return f" and {above}: it has risen in {_in_a_row(n_rises)} from {margins[begin]:.3g}"

    def _far_above(self, margins: Sequence[float]) -> str:
        """What to say of a margin that is far above the threshold; "" where it is not."""
        limit = self.far * self.threshold
        if not margins[-1] > limit:
            return ""
        before = margins[-1 - FEWEST_EARLIER : -1]
        has_jumped = len(before) == FEWEST_EARLIER and max(before) <= limit
        stays = _are_above(margins, limit, self.times) and margins[-1] >= margins[-self.times]
        is_far = has_jumped or stays
        return f", more than {self.far:g} times {self.threshold:g}" if is_far else ""


@dataclasses.dataclass(frozen=True)
class StepErrorAbove(Rule):
    """Fires when steps leave the region where the linearization of the model holds.

    e1 of a step, ||df - J dtheta|| / ||df||, is above `threshold` in `times` measurements in a row;
    where it has a 95 % interval, its lower end is.

    Attributes:
        threshold: Largest e1 of a step that is in order.
        times: Measurements in a row.

    Raises:
        InvalidInputError: When `threshold` is not positive or `times` not a positive integer.
    """

    threshold: float | int = 0.5
    times: int = 2

    @errors.public
    def __post_init__(self) -> None:
        require_positive(self.threshold, "threshold")
        _require_count(self.times, "times", least=1)

    def check(self, history: Sequence[Row]) -> Finding | None:
        """A finding where the lower ends of the last errors are all above the threshold."""
        if not history or math.isnan(number_of(history[-1], "step_error")):
            return None
        lower_ends = _lower_ends(history, "step_error")
        if not _are_above(lower_ends, self.threshold, self.times):
            return None
        measured = [row for row in history if not math.isnan(number_of(row, "step_error"))]
        value = number_of(measured[-1], "step_error")
        return Finding(
            id="step-error-high",
            severity="warning",
            quantities=("step_error",),
            sentence=f"A step changes the outputs otherwise than its linearization by {value:.3g} "
            f"of the change; it has been above {self.threshold:g} in {_in_a_row(self.times)}.",
            value=value,
            interval=interval(measured[-1], "step_error"),
            threshold=self.threshold,
            step=step_of(history),
            trust=_of_measurements(len(measured)),
            do="Lower the learning rate or clip the gradient; do not trust the margin there.",
            verify=f"The step error of later steps stays below {self.threshold:g}.",
        )


@dataclasses.dataclass(frozen=True)
class NaNNear(Rule):
    """Fires when numbers of a run are NaN or infinite, or are about to be.

    One of two criteria, of the newest record:

    1. Not finite: the status says so; or the loss or the gradient norm is infinite; or one of them
       is NaN after it was a number in every earlier record, in records without a status.
    2. Growth: the loss or the gradient norm is above `factor` times the median of its earlier
       numbers, of which there are three at least.

    Attributes:
        factor: Growth over the median of the history.

    Raises:
        InvalidInputError: When `factor` is not a number above 1.
    """

    factor: float | int = 100.0

    @errors.public
    def __post_init__(self) -> None:
        require_positive(self.factor, "factor")
        if not self.factor > 1.0:
            raise errors.InvalidInputError(
                expected="a factor above 1",
                got=repr(self.factor),
                do="NaNNear(factor=100) fires at a hundredfold of the median.",
            )

    def check(self, history: Sequence[Row]) -> Finding | None:
        """A finding where something is not finite, or else where something has grown."""
        if number_of(history[-1], "status") == NON_FINITE:
            return self._not_finite(history, "status", NON_FINITE)
        quantities = ("loss", "gradient_norm")
        for quantity in quantities:
            if _became_non_finite(history, quantity):
                value = number_of(history[-1], quantity)
                return self._not_finite(history, quantity, value)
        for quantity in quantities:
            growth = self._growth(history, quantity)
            if growth is not None:
                return growth
        return None

    def _not_finite(self, history: History, quantity: str, value: float | int) -> Finding:
        """The finding of numbers that are NaN or infinite."""
        what = "The measurement" if quantity == "status" else f"The {_in_words(quantity)}"
        return Finding(
            id="not-finite-near",
            severity="warning",
            quantities=(quantity,),
            sentence=f"{what} is NaN or infinite.",
            value=value,
            threshold=math.inf if quantity != "status" else NON_FINITE,
            step=step_of(history),
            trust=_of_measurements(1),
            do="Go back to a checkpoint before it, and lower the learning rate, clip the "
            "gradient, or look for an example that is out of range.",
            verify="The loss and the gradient norm of later steps are finite.",
        )

    def _growth(self, history: History, quantity: str) -> Finding | None:
        """The finding of a quantity that is far above its median."""
        earlier = _numbers_of(history[:-1], quantity)
        if len(earlier) < FEWEST_EARLIER:
            return None
        threshold = self.factor * statistics.median(earlier)
        value = number_of(history[-1], quantity)
        # A loss may be negative, and then no multiple of its median is a limit.
        if threshold <= 0.0 or not value > threshold:
            return None
        return Finding(
            id="not-finite-near",
            severity="warning",
            quantities=(quantity,),
            sentence=f"The {_in_words(quantity)} is {value:.3g}, more than {self.factor:g} times "
            "its median in the last measurements.",
            value=value,
            interval=interval(history[-1], quantity),
            threshold=threshold,
            step=step_of(history),
            trust=_of_measurements(len(earlier) + 1),
            do="Lower the learning rate or clip the gradient; keep the last checkpoint.",
            verify=f"The {_in_words(quantity)} falls back below {threshold:.3g}.",
        )


@dataclasses.dataclass(frozen=True)
class DeadLayer(Rule):
    """Fires when a layer does not learn while others do.

    In two measurements in a row the norm of its gradient is exactly zero while another layer has a
    gradient; or its share of the trace of the kernel is below `share` while that of another is not.
    One measurement is enough where both are exactly zero, the gradient of the batch and the share
    on the probe. Measurements do not count while an array of zeros that is no bias is about to
    move, as the last layer of a LoRA is at first: what it multiplies has no gradient yet. A layer
    that was dead before in the history is not told of again: so that one that is frozen on purpose
    does not hide another.

    A bias alone is not told of. In front of a normalisation, or of the keys of an attention, its
    gradient is zero by symmetry, while the kernel beside it trains: `use_bias=False` saves it. A
    layer that is dead is dead in all of its arrays.

    Attributes:
        share: Smallest share of the trace of a layer that learns.

    Raises:
        InvalidInputError: When `share` is not positive.
    """

    share: float | int = 1e-6

    @errors.public
    def __post_init__(self) -> None:
        require_positive(self.share, "share")

    def check(self, history: Sequence[Row]) -> Finding | None:
        """A finding where a layer died, by its gradient or else by its share of the trace."""
        return self._died(history, "layer_gradient", 0.0) or self._died(
            history, "layer_trace", self.share
        )

    def _died(self, history: History, quantity: str, threshold: float) -> Finding | None:
        """The finding of layers that a quantity shows dead for the first time."""
        rows = [row for row in history if numbers(row, quantity)]
        # Where the newest record has no such list, nothing died now.
        if not rows or not numbers(history[-1], quantity):
            return None
        dead = [dead_layers(row, quantity, threshold) for row in rows]
        told: set[int] = set()
        newly: set[int] = set()
        for row, now, before in zip(rows, dead, [set(), *dead[:-1]], strict=True):
            told |= newly
            newly = now & (before | certainly_dead(row))
        died = sorted(newly - told)
        if not died:
            return None
        quantities, n_measurements = (quantity,), 2
        what = "a gradient of zero in two measurements in a row"
        if len(dead) < 2 or not set(died) <= dead[-2]:
            quantities, n_measurements = ("layer_gradient", "layer_trace"), 1
            what = "a gradient of zero and no share of the kernel's trace"
        elif quantity == "layer_trace":
            what = f"less than {threshold:g} of the kernel's trace in two measurements in a row"
        return Finding(
            id="dead-layer",
            severity="warning",
            quantities=quantities,
            sentence=f"{layer_names(history[-1], died)} had {what} while other layers train.",
            value=numbers(history[-1], quantity)[died[0]],
            threshold=threshold,
            step=step_of(history),
            layer=layer_name(history[-1], died[0]),
            trust=_of_measurements(n_measurements),
            do="If it is not frozen on purpose, look at its initialization, its activations "
            "(dead ReLUs) and its learning rate.",
            verify="It has a gradient and a share of the kernel's trace in later measurements.",
        )


def _require_count(count: int, name: str, least: int) -> None:
    """Refuse what is no integer of so many at least."""
    if isinstance(count, int | np.integer) and not isinstance(count, bool) and count >= least:
        return
    raise errors.InvalidInputError(
        expected=f"`{name}` as {'a positive integer' if least else 'an integer, 0 or more'}",
        got=repr(count),
        do="It counts measurements in a row.",
    )


def _numbers_of(history: History, quantity: str) -> list[float]:
    """The numbers of a quantity, oldest first, without those that were not measured."""
    values = [number_of(row, quantity) for row in history]
    return [value for value in values if not math.isnan(value)]


def _lower_ends(history: History, quantity: str) -> list[float]:
    """Lower ends of the interval of a quantity, the number itself where it has no interval."""
    lower_ends = []
    for row in history:
        value = number_of(row, quantity)
        lower = number_of(row, f"{quantity}_lower")
        if not math.isnan(value):
            lower_ends.append(value if math.isnan(lower) else lower)
    return lower_ends


def _are_above(values: Sequence[float], threshold: float, times: int) -> bool:
    """Whether there are so many numbers, and the last of them are all above the threshold."""
    return len(values) >= times and min(values[-times:]) > threshold


def _became_non_finite(history: History, quantity: str) -> bool:
    """Whether a quantity is infinite now, or NaN where it always was a number."""
    value = number_of(history[-1], quantity)
    if math.isinf(value):
        return True
    # A record with a status says by it what is NaN; else NaN is what was not measured.
    if not math.isnan(value) or "status" in history[-1]:
        return False
    earlier = [number_of(row, quantity) for row in history[:-1]]
    return len(earlier) > 0 and not any(map(math.isnan, earlier))


def _in_words(quantity: str) -> str:
    return quantity.replace("_", " ")


def _of_measurements(count: int) -> str:
    """What a finding rests on."""
    return f"Of {'one measurement' if count == 1 else f'{count} measurements'} while it trained."


def _in_a_row(times: int) -> str:
    """So many measurements in words."""
    return "one measurement" if times == 1 else f"{times} measurements in a row"


# At the end of the file: making them runs their checks.
DEFAULT_RULES: tuple[Rule, ...] = (
    MarginAbove(),
    StepErrorAbove(),
    NaNNear(),
    DeadLayer(),
)
