"""The findings about a run: its checkpoints, and the rows of its monitor."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.labels import label_findings
from ntkdiag.judging.of_ends import Ends, loss_change, state_of
from ntkdiag.judging.of_rows import Record, Row, RowNumber, flag_of, judge, number_of
from ntkdiag.judging.thresholds import LAZY_E1

# A run with one of these numbers can be judged.
_JUDGED = ("margin", "step_error", "loss", "gradient_norm", "not_finite_steps", "dead")


def run_findings(
    checkpoints: Sequence[Row],
    record: Record,
    e1: Float[np.ndarray, "T T"] | None,
    watched: Sequence[Row],
    watch_record: Record,
) -> list[Finding]:
    """All findings, the most urgent first.

    `e1` is that of all pairs of checkpoints; None where there are not two.
    """
    record = {**record, "batch_size": watch_record.get("batch_size")}
    exact = [row for row in watched if "dead" in row]  # of a monitor with the exact kernel
    if exact and state_of(exact[-1], number_of(exact[0], "output_spread")) == "alive":
        exact = []
    findings = [
        *_of_ends(checkpoints or exact, record, e1),
        *judge(watched, watch_record),
        *judge(checkpoints, record),
        *_of_labels(checkpoints),
    ]
    if any(finding.id in ("dead", "collapsed") for finding in findings):
        # The margin of a dead network says nothing.
        findings = [finding for finding in findings if "margin" not in finding.quantities]
    elif not any(finding.quantities == ("margin",) for finding in findings):
        findings += margin_finding_of([*watched, *checkpoints])
    losses = [row for row in watched if math.isfinite(number_of(row, "loss"))]
    change = loss_change(losses[0], losses[-1], {}) if len(losses) > 1 else None
    if change is not None and not checkpoints:
        findings.append(change)
    first = {finding.subject: finding for finding in reversed(findings)}
    findings = [finding for finding in findings if finding is first[finding.subject]]
    rows = [*watched, *checkpoints]
    if not findings and not any(row.get(name) is not None for row in rows for name in _JUDGED):
        what = "Nothing can be judged: no margin was measured, and no checkpoint tracked."
        do = "Watch with loss=, or track the checkpoints: ntkdiag.track(..., loss=, descent=)."
        judged = ("margin", "dead")
        return [Finding(id="unknown", severity="info", quantities=judged, sentence=what, do=do)]
    return by_urgency(findings)


def margin_finding_of(rows: Sequence[Row]) -> list[Finding]:
    """The largest and the last margin, where no other finding is about it."""
    measured = [row for row in rows if math.isfinite(number_of(row, "margin"))]
    measured.sort(key=lambda row: row.get("step") or 0)
    known = [row for row in measured if not flag_of(row)]
    if not measured:
        return []
    if not known:
        last = RowNumber.of(measured[-1], "margin")
        sentence = f"No stability margin is judged; the last one is {last.value:.3g}. "
        sentence += flag_of(measured[-1])
        trust = f"Every one of {_counted(measured)} is flagged."
        flagged = {"id": "no-margin", "severity": "info", "sentence": sentence, "trust": trust}
        return [last.finding("margin", **flagged)]
    largest = max(known, key=lambda row: number_of(row, "margin"))
    at = "" if largest.get("step") is None else f" (step {largest['step']})"
    newest, most = RowNumber.of(known[-1], "margin"), number_of(largest, "margin")
    return [
        newest.finding(
            "margin",
            id="margin",
            severity="info",
            sentence=f"The stability margin is at most {most:.3g}{at} and ends at "
            f"{newest.value:.3g}; the edge of stability is 1.",
            threshold=1.0,
            trust=f"Based on the {len(known)} of {_counted(measured)} that are not flagged.",
        )
    ]


def _counted(rows: Sequence[Row]) -> str:
    return f"{len(rows)} {'measurement' if len(rows) == 1 else 'measurements'}"


def _of_ends(
    checkpoints: Sequence[Row], record: Record, e1: Float[np.ndarray, "T T"] | None
) -> list[Finding]:
    """The findings about the first and the last checkpoint."""
    if not checkpoints:
        return []
    before, after = checkpoints[0], checkpoints[-1]
    spread = number_of(before, "output_spread")
    states = [state_of(row, spread) for row in checkpoints]
    if len(checkpoints) < 2 and states[-1] == "alive":  # nothing lies between
        return []
    since = len(states) - 1
    while since > 0 and states[since - 1] == states[-1]:
        since -= 1
    from_first = math.nan if e1 is None else float(e1[0, -1])
    linear = None if e1 is None else linear_from(e1)
    ends = Ends(
        before=before,
        after=after,
        e1=from_first if math.isfinite(from_first) else None,
        distance_centred=number_of(after, "drift_distance_centred"),
        first=f"step {before['step']}",
        step=after["step"],
        examples={probe["name"]: probe["examples"] for probe in record.get("probes", ())},
        start=start_of(before, after),
        linear_from=None if linear is None else checkpoints[linear]["step"],
        since=checkpoints[since]["step"],
    )
    return ends.findings


def start_of(before: Row, after: Row) -> Row:
    """Numbers of the first parameters with the fixed arrays of a checkpoint; {} without others."""
    start: Any = after.get("from_first") or {}
    return start if start.get("step") == before["step"] else {}


def linear_from(e1: Float[np.ndarray, "T T"]) -> int | None:
    """The index of the first checkpoint from which on each, linearized, predicts the last one."""
    fails = np.flatnonzero(~(e1[:-1, -1] < LAZY_E1))  # NaN predicts nothing
    index = int(fails[-1]) + 1 if len(fails) else 0
    return index if index < len(e1) - 1 else None


def _of_labels(checkpoints: Sequence[Row]) -> list[Finding]:
    """Labels that all other examples contradict, over the checkpoints."""
    doubts = [row["label_doubts"] for row in checkpoints if row.get("label_doubts")]
    if not doubts or len({len(of_one) for of_one in doubts}) > 1:
        return []
    return label_findings(np.mean(np.asarray(doubts, np.float64), axis=0))
