"""What is found in a run: in the rows of its monitor, and in its checkpoints."""

import math

from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.labels import label_findings
from ntkdiag.judging.of_comparison import regime_findings, state_findings
from ntkdiag.judging.of_rows import judge
from ntkdiag.judging.regime import regime_of
from ntkdiag.report.run_state import sentence_of_state, states_of
from ntkdiag.report.run_subject import RunSubject

# A run with one of these numbers can be judged.
_JUDGED = ("margin", "step_error", "loss", "gradient_norm", "not_finite_steps", "dead")


def findings_of(subject: RunSubject) -> list[Finding]:
    """All findings, the most urgent first."""
    track = subject.track
    checkpoints = [] if track is None else track.rows
    record = {**subject.record, "batch_size": subject.watch_record.get("batch_size")}
    doubts = subject.label_doubts
    found = [
        *_state(subject),
        *judge(subject.watched.rows, subject.watch_record),
        *judge(checkpoints, record),
        *_regime(subject),
        *(label_findings(doubts) if doubts is not None else ()),
    ]
    if sentence_of_state(subject):  # the margin of a dead network says nothing
        found = [finding for finding in found if "margin" not in finding.quantities]
    first = {finding.subject: finding for finding in reversed(found)}
    found = [finding for finding in found if finding is first[finding.subject]]
    rows = [*subject.watched.rows, *checkpoints]
    if not found and not any(row.get(name) is not None for row in rows for name in _JUDGED):
        return [_unknown()]
    return by_urgency(found)


def _unknown() -> Finding:
    return Finding(
        id="unknown",
        severity="info",
        quantities=("margin", "dead"),
        sentence="Nothing can be judged: no margin was measured, and no checkpoint tracked.",
        do="Watch with loss=, or track the checkpoints: ntkdiag.track(..., loss=, descent=).",
    )


def _state(subject: RunSubject) -> list[Finding]:
    """A network that ends dead or collapsed."""
    states = states_of(subject)
    if not states:
        return []
    spread = subject.series("output_spread")
    return state_findings(
        states[-1],
        None if spread is None else float(spread[-1]),
        f"{sentence_of_state(subject)}.",
        int(subject.steps[-1]),
        f"Of {len(states)} checkpoints and {subject.n_examples} examples.",
    )


def _regime(subject: RunSubject) -> list[Finding]:
    """How far the network linearized at the first checkpoint explains the last one."""
    distances, e1 = subject.series("drift_distance_centred"), subject.matrix("e1")
    if distances is None or e1 is None or not math.isfinite(e1[0, -1]):
        return []
    if sentence_of_state(subject):
        return []
    from_first = float(e1[0, -1])
    return regime_findings(
        regime_of(from_first, float(distances[-1])),
        from_first,
        first=f"step {subject.steps[0]}",
        step=int(subject.steps[-1]),
        trust=f"Of {len(subject.steps)} checkpoints and {subject.n_examples} examples.",
    )
