"""What is found in a log that another program wrote: a loss and norms, step by step."""

import math
from collections.abc import Mapping, Sequence

from ntkdiag.judging import loss_drift
from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.spike_finding import spike_findings
from ntkdiag.judging.spike_risk import HISTORY


def log_findings(rows: Sequence[Mapping[str, float | int]]) -> list[Finding]:
    """The first step that is not finite, and the first that warns of a spike.

    Two things warn: the risk from margin and update norm, and a loss that drifts up.

    Args:
        rows: In the order of their steps, each with "step" and the numbers by our names.
    """
    if not any(row.keys() - {"step"} for row in rows):
        return [_unknown()]
    drifts = loss_drift.drifts([row.get("loss", math.nan) for row in rows])
    found = _not_finite(rows)
    for end, drift in enumerate(drifts, start=1):
        ahead = spike_findings(rows[max(end - HISTORY, 0) : end])
        if drift > loss_drift.THRESHOLD:
            ahead = ahead or [_drift_finding(int(rows[end - 1]["step"]), drift)]
        if ahead:
            return by_urgency([*found, *ahead])
    return found


def _drift_finding(step: int, drift: float) -> Finding:
    return Finding(
        id="spike-ahead",
        severity="warning",
        quantities=("loss",),
        sentence="The loss may jump within 50 steps: it has drifted up, step by step.",
        value=drift,
        threshold=loss_drift.THRESHOLD,
        step=step,
        trust="The sum of deviations above the 50 steps before (CUSUM); docs/alarms.md says how "
        "often such a warning is right.",
        do="Lower the learning rate, or look at what has changed in the data.",
        verify="The loss falls again.",
    )


def _unknown() -> Finding:
    return Finding(
        id="unknown",
        severity="info",
        quantities=("loss", "update_norm"),
        sentence="Nothing can be judged: the log has no loss and no norms under a usual name.",
        do="Log loss, update_norm and learning_rate, or watch the run: ntkdiag.watch(optimizer).",
        verify="ntkdiag check says another finding, or none.",
    )


def _not_finite(rows: Sequence[Mapping[str, float | int]]) -> list[Finding]:
    """The first number that is NaN or infinite."""
    for row in rows:
        for name in ("loss", "gradient_norm", "update_norm"):
            if name not in row or math.isfinite(row[name]):
                continue
            step = int(row["step"])
            return [
                Finding(
                    id="not-finite",
                    severity="error",
                    quantities=(name,),
                    sentence=f"The {name.replace('_', ' ')} of step {step} is not finite.",
                    value=math.nan,
                    step=step,
                    trust="As the log says.",
                    do="Go back to the last finite step; clip the gradient or lower the rate.",
                    verify="The loss of later steps is finite.",
                )
            ]
    return []
