"""What a margin of stability is a finding of."""

import numpy as np
from jaxtyping import Float

from ntkdiag.judging.finding import Finding, Severity
from ntkdiag.judging.margin_levels import EDGE, OVER, SLACK

# Id -> severity, threshold, sentence, what to do, how to verify.
_OF_MARGINS: dict[str, tuple[Severity, float, str, str, str]] = {
    "margin-beyond-edge": (
        "warning",
        OVER,
        "Training ends beyond the edge of stability, with a margin of {margin:.3g}.",
        "Lower the learning rate, or let it decay.",
        "The margin of later steps stays below 1.",
    ),
    "margin-was-beyond-edge": (
        "warning",
        OVER,
        "Training was beyond the edge of stability, with a margin of {margin:.3g}.",
        "Warm up the learning rate, or lower it.",
        "No margin of another run is above 1.",
    ),
    "margin-at-edge": (
        "info",
        EDGE,
        "Training ends at the edge of stability, with a margin of {margin:.3g}.",
        "",
        "",
    ),
    "rate-could-be-larger": (
        "info",
        SLACK,
        "The learning rate could be larger: the margin was at most {margin:.3g}.",
        "Try twice the learning rate.",
        "The loss falls faster, and the margin stays below 0.8.",
    ),
}

Margins = Float[np.ndarray, " s"]


def margin_findings(
    steps: list[int | None], values: Margins, lower: Margins, upper: Margins, trust: str
) -> list[Finding]:
    """At most one finding of the margins of a training, in the order of its steps."""
    if not np.isfinite(values).any():
        return []
    largest = int(np.nanargmax(values))
    has_intervals = bool(np.any(lower < upper))
    if values[-1] > OVER:
        name, place = "margin-beyond-edge", len(values) - 1
    elif values[largest] > OVER:
        name, place = "margin-was-beyond-edge", largest
    elif values[-1] >= EDGE:
        name, place = "margin-at-edge", len(values) - 1
    elif has_intervals and np.nanmax(upper) < SLACK:
        name, place = "rate-could-be-larger", largest
    else:
        return []
    severity, threshold, sentence, do, verify = _OF_MARGINS[name]
    margin = float(values[place])
    ends = float(lower[place]), float(upper[place])
    return [
        Finding(
            id=name,
            severity=severity,
            quantities=("margin",),
            sentence=sentence.format(margin=margin),
            value=margin,
            interval=ends if ends[0] < ends[1] else None,
            threshold=threshold,
            step=steps[place],
            trust=trust,
            do=do,
            verify=verify,
        )
    ]
