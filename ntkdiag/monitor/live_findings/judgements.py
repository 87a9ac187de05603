"""What is wrong with a run while it trains: docs/findings.md has a paragraph for each id."""

import math
import statistics
from collections.abc import Sequence

from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.live_findings.dead_layers import Layer, dead_layer
from ntkdiag.monitor.live_findings.history import History, Row, live_finding, number_of
from ntkdiag.monitor.measurement import Status

MOST_MARGIN = 1.0
ABOVE = 3  # measurements in a row above it
RISES = 8  # measurements in a row that are each above the one before
CALM = 0.9  # share of the largest margin below which the rise began
FAR = 5.0  # multiple of the largest margin that is far above it
MOST_STEP_ERROR = 0.5
GROWTH = 100.0  # of a loss or a gradient norm over its median
FEWEST_EARLIER = 3  # numbers that make a median


def judged(history: History, layers: Sequence[Layer]) -> tuple[Finding | None, ...]:
    """What each judgement finds in the newest record."""
    return (
        margin_rises(history),
        step_error_high(history),
        not_finite_near(history),
        dead_layer(history, layers),
    )


def margin_rises(history: History) -> Finding | None:
    """Whether the margin has risen through 1 without a pause, or is far above it."""
    margins = _measured(history, "margin")
    if not margins or math.isnan(number_of(history[-1], "margin")):
        return None
    what = _far_above(margins) or _rise(margins)
    if not what:
        return None
    return live_finding(
        history,
        "margin",
        id="margin-rises",
        sentence=f"The stability margin is {margins[-1]:.3g}{what}.",
        threshold=MOST_MARGIN,
        n_measurements=len(margins),
        do="Lower the learning rate or the momentum (beta), or lengthen the warm-up.",
        verify=f"Later margins stay below {MOST_MARGIN:g}.",
    )


def _rise(margins: Sequence[float]) -> str:
    """What to say of a rise through the threshold; "" where there is none."""
    if not min(margins[-ABOVE:]) > MOST_MARGIN:
        return ""
    begin = len(margins) - 1
    while begin > 0 and margins[begin - 1] < margins[begin]:
        begin -= 1
    n_rises = len(margins) - 1 - begin
    if n_rises < RISES or not margins[begin] < CALM * MOST_MARGIN:
        return ""
    return (
        f" and has been above {MOST_MARGIN:g} in {ABOVE} measurements in a row: it has risen in "
        f"{n_rises} measurements in a row from {margins[begin]:.3g}"
    )


def _far_above(margins: Sequence[float]) -> str:
    """What to say of a margin that is far above the threshold; "" where it is not."""
    limit = FAR * MOST_MARGIN
    before = margins[-1 - FEWEST_EARLIER : -1]
    has_jumped = len(before) == FEWEST_EARLIER and max(before) <= limit < margins[-1]
    last = margins[-ABOVE:]
    stays = len(last) == ABOVE and min(last) > limit and last[-1] >= last[0]
    return f", more than {FAR:g} times {MOST_MARGIN:g}" if has_jumped or stays else ""


def step_error_high(history: History) -> Finding | None:
    """Whether steps leave the region where the linearization holds, by the ends of intervals."""
    error = number_of(history[-1], "step_error")
    measured = [row for row in history if not math.isnan(number_of(row, "step_error"))]
    if math.isnan(error) or len(measured) < 2:
        return None
    if not min(_lower_end(row, "step_error") for row in measured[-2:]) > MOST_STEP_ERROR:
        return None
    return live_finding(
        history,
        "step_error",
        id="step-error-high",
        sentence=f"A step changes the outputs otherwise than its linearization by {error:.3g} "
        f"of the change; it has been above {MOST_STEP_ERROR:g} in 2 measurements in a row.",
        threshold=MOST_STEP_ERROR,
        n_measurements=len(measured),
        do="Lower the learning rate or clip the gradient; do not trust the margin there.",
        verify=f"The step error of later steps stays below {MOST_STEP_ERROR:g}.",
    )


def not_finite_near(history: History) -> Finding | None:
    """Whether something is NaN or infinite, or else has grown a hundredfold."""
    row = history[-1]
    if row.get("status") == Status.NON_FINITE:
        return _not_finite(history, "status", "measurement", float(Status.NON_FINITE))
    quantities = {"loss": "loss", "gradient_norm": "gradient norm"}
    for quantity, words in quantities.items():
        if math.isinf(number_of(row, quantity)):
            return _not_finite(history, quantity, words, math.inf)
    for quantity, words in quantities.items():
        earlier = _measured(history[:-1], quantity)
        if len(earlier) < FEWEST_EARLIER:
            continue
        threshold = GROWTH * statistics.median(earlier)
        # A loss may be negative, and then no multiple of its median is a limit.
        if threshold > 0.0 and number_of(row, quantity) > threshold:
            return live_finding(
                history,
                quantity,
                id="not-finite-near",
                sentence=f"The {words} is {number_of(row, quantity):.3g}, more than {GROWTH:g} "
                "times its median in the last measurements.",
                threshold=threshold,
                n_measurements=len(earlier) + 1,
                do="Lower the learning rate or clip the gradient; keep the last checkpoint.",
                verify=f"The {words} falls back below {threshold:.3g}.",
            )
    return None


def _not_finite(history: History, quantity: str, words: str, threshold: float) -> Finding:
    """The finding of numbers that are NaN or infinite."""
    return live_finding(
        history,
        quantity,
        id="not-finite-near",
        sentence=f"The {words} is NaN or infinite.",
        threshold=threshold,
        n_measurements=1,
        do="Go back to a checkpoint before it, and lower the learning rate, clip the gradient, or "
        "look for an example that is out of range.",
        verify="The loss and the gradient norm of later steps are finite.",
    )


def _measured(history: History, name: str) -> list[float]:
    """The numbers of a name, oldest first, without those that were not measured."""
    values = [number_of(row, name) for row in history]
    return [value for value in values if not math.isnan(value)]


def _lower_end(row: Row, name: str) -> float:
    """The lower end of the interval of a number, the number itself where it has none."""
    lower = number_of(row, f"{name}_lower")
    return number_of(row, name) if math.isnan(lower) else lower
