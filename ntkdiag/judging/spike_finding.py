"""What a risk of a spike is a finding of: what it looks like, and what to do about it."""

import math
from collections.abc import Sequence

from ntkdiag.judging.finding import Finding
from ntkdiag.judging.measured_row import Row, number_of
from ntkdiag.judging.spike_risk import (
    STEPS_AHEAD,
    THRESHOLD,
    over_median,
    spike_numbers,
    spike_risk,
)

# A number that is so many times its median has risen.
_RISEN = 1.5
_NEAR_THE_EDGE = 0.7  # a margin from which the learning rate may be meant
_HALF_PRECISION = {"bfloat16", "float16"}

_RATIO = "layer_update_ratio"
_FAR_MORE = 2.0  # than that of any other layer

_WORTH = (
    "On a hundred runs that did not choose the threshold one such warning in four was right, and "
    "came 17 to 24 steps ahead: docs/alarms.md."
)

# What it looks like -> what to do.
_CAUSES = {
    "the learning rate, which has risen": "Lower it again, or let it rise more slowly.",
    "a margin that rises while the learning rate stands still, as where second moments fall": (
        "Lower the learning rate, or take a larger eps or beta2."
    ),
    "a batch, whose gradient is far larger than those before": (
        "Look at the batch, leave it out, or clip the gradient."
    ),
    "a learning rate at the edge of stability, or beyond it": "Lower the learning rate.",
    "rounding, as arrays are in half precision and nothing else that was measured explains it": (
        "Keep parameters and the state of the optimizer in float32, and compute the loss in it."
    ),
    "an update that is larger than those before, which nothing else that was measured explains": (
        "Look at what the last steps had in common, and clip the update."
    ),
}


def spike_findings(history: Sequence[Row], threshold: float = THRESHOLD) -> list[Finding]:
    """The finding `spike-ahead` of the last measurement, where the risk is above the threshold.

    Args:
        history: Measurements, newest last, each with its "step" and the numbers by name.
        threshold: Between 0 and 1.
    """
    numbers = spike_numbers(history)
    risk = spike_risk(numbers)
    if not risk > threshold:
        return []
    cause = _cause(history)
    shown = ", ".join(f"{name} {x:.3g}" for name, x in numbers.items() if math.isfinite(x))
    return [
        Finding(
            id="spike-ahead",
            severity="warning",
            quantities=("margin", "update_norm"),
            sentence=f"The loss may jump within {STEPS_AHEAD} steps (risk {risk:.2f}): it looks "
            f"like {cause}.",
            value=risk,
            threshold=threshold,
            step=int(number_of(history[-1], "step")),
            layer=_layer(history),
            trust=f"From {shown}. {_WORTH}",
            do=_CAUSES[cause],
            verify="The risk falls below the threshold, and the loss does not jump.",
        )
    ]


def _cause(history: Sequence[Row]) -> str:
    """What it looks like: the first that fits."""
    rate, moments, batch, edge, rounding, update = _CAUSES
    if over_median(history, "learning_rate") > _RISEN:
        return rate
    has_moved = over_median(history, "margin") > _RISEN
    if over_median(history, "gradient_norm") > 2.0 * _RISEN and not has_moved:
        return batch
    if has_moved:
        return moments
    if number_of(history[-1], "margin") > _NEAR_THE_EDGE:
        return edge
    dtypes = history[-1].get("dtypes")
    is_rounded = isinstance(dtypes, list) and not _HALF_PRECISION.isdisjoint(dtypes)
    return rounding if is_rounded else update


def _layer(history: Sequence[Row]) -> str | None:
    """The layer whose relative step has grown most, and far more than that of any other."""
    names = history[-1].get("layers")
    if not isinstance(names, list):
        return None
    grown = []
    for number, name in enumerate(names):
        ratios = [{_RATIO: _entry(row, number)} for row in history]
        grown.append((over_median(ratios, _RATIO), name))
    grown = sorted((ratio, name) for ratio, name in grown if math.isfinite(ratio))
    if len(grown) < 2 or not grown[-1][0] > _FAR_MORE * grown[-2][0]:
        return None
    return str(grown[-1][1])


def _entry(row: Row, number: int) -> float:
    """The relative step of a layer in a measurement."""
    ratios = row.get(_RATIO)
    if not isinstance(ratios, list) or number >= len(ratios):
        return math.nan
    return float(ratios[number])
