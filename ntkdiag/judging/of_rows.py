"""Findings about the rows of a run, while it trains and afterwards.

A row is the numbers of one step by name; the convention record says what they mean. Each judgement
looks at the newest row and at those before it that are remembered: the first ones, which tell where
the run began, and the last ones. None rests on a number that is NaN or flagged: a margin of an
optimizer that is not recognized, or of an eigenvalue with a large residual.
"""

import itertools
import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ntkdiag import display
from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.thresholds import (
    GRADIENT_DEVIATIONS,
    GRADIENT_FACTOR,
    GRADIENT_GROWTH,
    IN_A_ROW,
    LOSS_DIVERGED,
    LOSS_FACTOR,
    LOSS_RISE,
    MARGIN_EDGE,
    MARGIN_FAR,
    MARGIN_OVER,
    MARGIN_RESIDUAL,
    NOISE_FACTOR,
    STEP_ERROR,
)

Row: TypeAlias = Mapping[str, Any]
Record: TypeAlias = Mapping[str, Any]

FIRST, LAST = 8, 56  # rows that are remembered: of the beginning, and of the end
QUIET = 8  # rows without a finding after which it is new again

_NOT_FINITE = 2  # the "status" of a measurement with NaN or infinity
_RECOGNIZED, _YOUNG = 0, 1  # the "optimizer_status" of an optimizer that is read rightly
_MOST_NAMED = 3  # layers


def judge(rows: Sequence[Row], record: Record) -> list[Finding]:
    """The findings about the rows of a run, the most urgent first."""
    live = LiveJudge()
    found = [finding for row in rows for finding in live(row, record)]
    first = {finding.subject: finding for finding in reversed(found)}
    return by_urgency([finding for finding in found if finding is first[finding.subject]])


class LiveJudge:
    """Takes one row after the other, and returns the findings that begin with it."""

    def __init__(self) -> None:
        self._history: list[Row] = []
        self._n_rows = 0
        self._last: dict[object, int] = {}  # subject of a finding -> the last row that had it

    def __call__(self, row: Row, record: Record) -> list[Finding]:
        """The findings of this row; `record` says what its numbers mean."""
        if self._history and row["step"] < self._history[-1]["step"]:  # training began again
            self.__init__()
        self._n_rows += 1
        self._history.append(row)
        if len(self._history) > FIRST + LAST:
            del self._history[FIRST]
        findings = _findings_in(self._history, record)
        before = self._last
        self._last = before | {finding.subject: self._n_rows for finding in findings}
        return [f for f in findings if self._n_rows - before.get(f.subject, -QUIET) > QUIET]


def _findings_in(history: Sequence[Row], record: Record) -> list[Finding]:
    findings = (
        _not_finite(history, record),
        margin_finding(history),
        _step_error(history),
        _growth(history),
        _dead_layer(history, record),
        _noise_scale(history, record),
        _gradient_scale(history, record),
        _no_margin(history, record),
    )
    return [finding for finding in findings if finding is not None]


class RowNumber(NamedTuple):
    """A number of a row with the ends of its interval, which are itself where it has none.

    An end that is null in a file is infinite or unknown.
    """

    value: float
    lower: float
    upper: float
    step: int | None

    @staticmethod
    def of(row: Row, name: str) -> "RowNumber":
        """That of a name; NaN where there is none."""
        value = number_of(row, name)
        lower, upper = (number_of(row, f"{name}_{end}") for end in ("lower", "upper"))
        lower = -math.inf if math.isnan(lower) and f"{name}_lower" in row else lower
        upper = math.inf if math.isnan(upper) and f"{name}_upper" in row else upper
        lower, upper = (value if math.isnan(end) else end for end in (lower, upper))
        return RowNumber(value, lower, upper, row.get("step"))

    def finding(self, name: str, **entries: Any) -> Finding:
        """A warning about this number."""
        interval = (self.lower, self.upper) if self.lower < self.upper else None
        usual = {"severity": "warning", "quantities": (name,), "value": self.value}
        return Finding(**(usual | {"interval": interval, "step": self.step} | entries))


def number_of(row: Row, name: str) -> float:
    """A number of a row; NaN where there is none."""
    number = row.get(name)
    if type(number) is float:  # the usual case; the other test takes ten times as long
        return number
    return float(number) if isinstance(number, numbers.Real) else math.nan


def _known(rows: Sequence[Row], name: str) -> list[float]:
    """The finite numbers of a name, oldest first."""
    values = [number_of(row, name) for row in rows]
    return [value for value in values if math.isfinite(value)]


def _last(history: Sequence[Row], name: str, count: int) -> list[RowNumber]:
    """The last numbers of a name, without unknown and flagged ones; none if the newest is one."""
    numbers: list[RowNumber] = []
    for row in reversed(history):
        number = RowNumber.of(row, name)
        if math.isfinite(number.value) and not (name == "margin" and flag_of(row)):
            numbers.insert(0, number)
        if len(numbers) == count or not numbers:
            break
    return numbers


def flag_of(row: Row) -> str:
    """Why no finding rests on the margin of a row, as a sentence; empty where one may."""
    status = row.get("margin_status", "ok")
    if status != "ok":  # of a checkpoint
        return status
    if row.get("optimizer_status", _RECOGNIZED) != _RECOGNIZED:  # known, though: moments are young
        return (
            "The second moments of the optimizer have seen fewer steps than they average over: "
            "margins are judged after step 1 / (1 - b2), 1,000 for b2 = 0.999."
        )
    if number_of(row, "margin_residual") > MARGIN_RESIDUAL:
        return "The eigenvalue behind it has not converged."
    return ""


def margin_finding(history: Sequence[Row], count: int = IN_A_ROW) -> Finding | None:
    """Margins at or beyond the edge of stability, in so many measurements in a row."""
    last = _last(history, "margin", count)
    newest = last[-1] if last else RowNumber.of({}, "margin")
    values, lower_ends = [margin.value for margin in last], [margin.lower for margin in last]
    times = f" in {count} measurements in a row" if count > 1 else ""
    if newest.lower > MARGIN_FAR or (len(last) == count and min(lower_ends) > MARGIN_OVER):
        is_far = newest.lower > MARGIN_FAR
        threshold = MARGIN_FAR if is_far else MARGIN_OVER
        return newest.finding(
            "margin",
            id="margin-beyond-edge",
            sentence=f"The stability margin is {newest.value:.3g}, and the lower end of its "
            f"interval is above {threshold:g}{'' if is_far else times}; the edge of stability is "
            "1.",
            threshold=threshold,
            trust="Healthy training stays near 1 and may start at 2.",
            do="Lower the learning rate or the momentum (beta), or lengthen the warm-up.",
        )
    if len(last) == count and min(values) > MARGIN_EDGE:
        where, do = "training is at the edge of stability.", ""
        if newest.value > MARGIN_OVER:
            where = f"beyond the edge of stability, but its interval begins at {newest.lower:.2g}."
            do = "Take a larger probe of training examples."
        return newest.finding(
            "margin",
            id="margin-at-edge",
            severity="info",
            sentence=f"The stability margin is {newest.value:.3g}, above {MARGIN_EDGE:g}{times}: "
            f"{where}",
            threshold=MARGIN_EDGE,
            trust="Full-batch training settles there; some spikes of the loss begin there.",
            do=do,
        )
    return None


def _step_error(history: Sequence[Row]) -> Finding | None:
    """Steps that are not linear, in two measurements in a row; the first alone is information."""
    last = _last(history, "step_error", 2)
    if not last or not min(error.lower for error in last) > STEP_ERROR:
        return None
    severity, times = "warning", "in two measurements in a row"
    if len(last) == 1:
        severity, times = "info", "at the first measurement"
    return last[-1].finding(
        "step_error",
        id="step-error-high",
        severity=severity,
        sentence=f"The linearized step misses {100 * last[-1].value:.2g} % of the change of the "
        f"outputs: the step error is above {STEP_ERROR:g} {times}.",
        threshold=STEP_ERROR,
        trust="The margin assumes linear steps, and says little here.",
        do="Lower the learning rate, lengthen the warm-up or clip the gradient.",
    )


def _not_finite(history: Sequence[Row], record: Record) -> Finding | None:
    """NaN or infinity in a measurement, or in the gradient of a step since the last one."""
    row, before = history[-1], history[:-1]
    step, n_steps = row["step"], number_of(row, "not_finite_steps")
    if "status" in row:
        is_lost = row["status"] == _NOT_FINITE
    else:  # a checkpoint
        is_lost = "loss" in row and not _known([row], "loss") and bool(_known(before, "loss"))
    if not is_lost and not n_steps > max(_known(before, "not_finite_steps"), default=0.0):
        return None
    what, of = "measurement", _layers_not_finite(row, record, "layer_parameter")
    if not is_lost:
        step = int(number_of(row, "not_finite_step")) if n_steps == 1.0 else step
        in_gradient = _layers_not_finite(row, record, "layer_gradient")
        what, of = ("gradient", in_gradient) if in_gradient else ("update", of)
    where = f" in {display.some_of(of, _MOST_NAMED)}" if of else ""
    return Finding(
        id="not-finite",
        severity="error" if is_lost else "warning",
        quantities=("status", "loss", "not_finite_steps"),
        sentence=f"The {what} of step {step} has NaN or infinity{where}.",
        value=math.nan,
        step=step,
        layer=of[0] if of else None,
        trust="Measured steps examine all numbers, other steps some of each array.",
        do="Return to the last finite checkpoint; lower the rate or clip the gradient."
        if is_lost
        else "Look at the batch of that step; skip such steps (optax.apply_if_finite).",
    )


def _layers_not_finite(row: Row, record: Record, name: str) -> list[str]:
    norms = zip(record.get("layers", ()), row.get(name, ()), strict=False)
    return [layer for layer, norm in norms if not math.isfinite(norm)]


def _growth(history: Sequence[Row]) -> Finding | None:
    """A loss that rises beside its first value, or a gradient that outgrows the first ones."""
    losses, norms = (_known(history[:-1], name) for name in ("loss", "gradient_norm"))
    loss, norm = (RowNumber.of(history[-1], name) for name in ("loss", "gradient_norm"))
    do = "Lower the learning rate or clip the gradient; keep the last checkpoint."
    smallest = min(losses, default=0.0)
    limit = max(smallest + LOSS_RISE * losses[0], LOSS_FACTOR * smallest) if losses else 0.0
    if loss.value > limit > 0.0:
        has_diverged = loss.value > LOSS_DIVERGED * max(losses)
        return loss.finding(
            "loss",
            id="growth",
            severity="error" if has_diverged else "warning",
            sentence=f"The loss rose from {smallest:.3g} to {loss.value:.3g}; the first was "
            f"{losses[0]:.3g}.",
            threshold=limit,
            do=do,
        )
    largest = max(norms[:FIRST], default=0.0)
    if norm.value > GRADIENT_GROWTH * largest > 0.0:
        return norm.finding(
            "gradient_norm",
            id="growth",
            sentence=f"The norm of the gradient is {norm.value:.3g}, more than "
            f"{GRADIENT_GROWTH:g} times the largest at the beginning, {largest:.3g}.",
            threshold=GRADIENT_GROWTH * largest,
            do=do,
        )
    return None


def _dead_layer(history: Sequence[Row], record: Record) -> Finding | None:
    """A layer that does not learn while others do.

    While a kernel of zeros is about to move, as in LoRA, none is dead: what it multiplies has no
    gradient until then.
    """
    measured = [row for row in history if row.get("layer_gradient")]
    if len(measured) < 2 or measured[-1] is not history[-1]:
        return None
    names = list(record.get("layers") or ())
    shapes = record.get("parameters") or {}
    # A kernel has two axes or more in its "float32[3, 4]".
    kernels = [
        k
        for k, name in enumerate(names)
        if "," in shapes.get(name, "float32[1, 1]") and not name.endswith("bias")
    ]
    dead = [_dead(row, kernels) for row in measured]
    twice = [now & before for before, now in itertools.pairwise(dead)]
    died = [names[k] for k in sorted(twice[-1] - set().union(*twice[:-1]))]
    if not died:
        return None
    return Finding(
        id="dead-layer",
        severity="warning",
        quantities=("layer_gradient",),
        sentence=f"Layer{'s' if len(died) > 1 else ''} {display.some_of(died, _MOST_NAMED)} had "
        "a gradient of zero in two measurements in a row while other layers train.",
        value=0.0,
        threshold=0.0,
        layer=died[0],
        step=int(history[-1]["step"]),
        do="If it is not frozen on purpose, check its initialization, its activations (dead ReLUs) "
        "and its learning rate.",
    )


def _dead(row: Row, kernels: Collection[int]) -> set[int]:
    """Kernels without a gradient, where other layers have one."""
    gradients, norms = row["layer_gradient"], row.get("layer_parameter")
    is_about_to_move = [norms[k] == 0.0 and gradients[k] > 0.0 for k in kernels] if norms else []
    if max(gradients) == 0.0 or any(is_about_to_move):
        return set()
    return {k for k in kernels if gradients[k] == 0.0}


def _noise_scale(history: Sequence[Row], record: Record) -> Finding | None:
    """A batch that is far from the gradient noise scale, in several measurements in a row."""
    batch = record.get("batch_size")
    last = _last(history, "noise_scale", IN_A_ROW)
    if not isinstance(batch, int) or len(last) < IN_A_ROW:
        return None
    if min(scale.lower for scale in last) > NOISE_FACTOR * batch:
        side, bound, end, threshold = "below", "at least", last[-1].lower, NOISE_FACTOR * batch
        do = "If steps are expensive, double the batch: training needs about half the steps."
    elif max(scale.upper for scale in last) < batch / NOISE_FACTOR:
        side, bound, end, threshold = "above", "at most", last[-1].upper, batch / NOISE_FACTOR
        do = "Halve the batch: training needs hardly more steps."
    else:
        return None
    return last[-1].finding(
        "noise_scale",
        id=f"batch-{side}-noise",
        severity="info",
        sentence=f"A batch of {batch} is far {side} the gradient noise scale, which is {bound} "
        f"{end:.2g} examples.",
        threshold=threshold,
        trust="Holds for this step and for rates tuned to the batch.",
        do=do,
    )


def _gradient_scale(history: Sequence[Row], record: Record) -> Finding | None:
    """A gradient of another scale than that of the named loss, in the first measurements."""
    n = record.get("n_examples") or math.inf
    known, least = [], []
    for row in (row for row in history if "gradient_scale" in row):
        scale = RowNumber.of(row, "gradient_scale")
        if 0.0 < scale.lower < scale.value < math.inf:
            known.append(scale)
            # Of the examples of the probe themselves, a gradient is as much longer than the mean.
            noise = number_of(row, "noise_scale") if "noise_scale" in row else 0.0
            least.append(scale.value / (1.0 + noise / n))
        if len(known) == IN_A_ROW:
            break
    # The ends are a / (s + 2 sigma) and a / (s - 2 sigma), of a scale a / s with an error sigma.
    deviations = [
        2.0 * (1.0 - 1.0 / scale.value) / (1.0 / scale.lower - 1.0 / scale.value) for scale in known
    ]
    if len(known) < IN_A_ROW or not (
        (min(deviations) > GRADIENT_DEVIATIONS and min(least) > GRADIENT_FACTOR)
        or max(deviations) < -GRADIENT_DEVIATIONS
    ):
        return None
    scale = sorted(known)[IN_A_ROW // 2]
    return scale.finding(
        "gradient_scale",
        id="gradient-scale",
        step=history[-1]["step"],
        sentence=f"The gradient is {scale.value:.2g} times that of the loss {record.get('loss')} "
        "on the probe. The margin is that of the named loss; multiply it by this factor for the "
        "trained one.",
        threshold=1.0,
        trust=f"It differs from 1 by at least {min(map(abs, deviations)):.2g} standard errors "
        f"in each of the first {IN_A_ROW} measurements.",
        do="Name the trained loss: one of ntkdiag.losses with denominator=, or loss(outputs, y).",
    )


def _no_margin(history: Sequence[Row], record: Record) -> Finding | None:
    """Why there is no margin, where there is none from the beginning."""
    rows = [row for row in history if "margin" in row and "optimizer_status" in row]
    if len(rows) < IN_A_ROW or _known(rows, "margin"):
        return None
    reason = record.get("optimizer_status", {}).get(f"{number_of(rows[-1], 'optimizer_status'):g}")
    if reason is None:
        return None
    if number_of(rows[-1], "optimizer_status") <= _YOUNG:
        reason = "The loss has no curvature on the probe."
    return Finding(
        id="no-margin",
        severity="info",
        quantities=("margin", "optimizer_status"),
        sentence=f"There is no stability margin. {reason}",
        step=rows[-1]["step"],
    )
