"""What is on the page of a run, and under which conditions its numbers hold."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from ntkdiag import errors
from ntkdiag.monitor.measurement import Status
from ntkdiag.report.page import Fact, Page
from ntkdiag.report.run_subject import RunSubject

# Of the record of the checkpoints; probes and versions stand by themselves.
_OF_CHECKPOINTS = ("format", "model", "outputs", "reduction", "loss", "descent")
_MEANINGS = "optimizer_status"  # in the record of a monitor: what the codes mean
# For programs: what the codes mean, and along which axes the numbers of a row lie.
_OF_PROGRAMS = (_MEANINGS, "dims", "coordinates")
_STATUS_NAMES = {int(status): status.name.lower() for status in Status}


def run_page(subject: RunSubject) -> Page:
    """Its findings and figures; refused where a run directory holds nothing a report is about."""
    if subject.track is None and not subject.watched:
        raise errors.InvalidInputError(
            expected="checkpoints of ntkdiag.track, or measurements of ntkdiag.watch",
            got=f"{subject.run}",
            do="Track the checkpoints into it: ntkdiag.track(..., out=...).",
        )
    return Page(
        kind="report of a run",
        title="Run" if subject.run is None else subject.run.root.name,
        facts=_facts(subject),
        findings=subject.findings,
        dataset=subject.dataset,
        conditions=_conditions(subject),
    )


def _facts(subject: RunSubject) -> list[Fact]:
    """What a reader has to know first: names and values in words."""
    record = subject.record
    facts: list[Fact] = []
    if subject.track is not None:
        steps = subject.track.steps
        n_examples = len(subject.track.outputs[0])
        facts.append(("checkpoints", f"{len(steps)}, step {steps[0]} to {steps[-1]}"))
        facts.append(("kernel", f"{record['reduction']}, of {n_examples} examples"))
    if subject.watched:
        first, last = subject.watched[0]["step"], subject.watched[-1]["step"]
        facts.append(("measurements", f"{len(subject.watched)}, step {first} to {last}"))
    if record.get("loss"):
        facts.append(("loss", _in_words(record["loss"])))
    return facts


def _conditions(subject: RunSubject) -> list[tuple[str, list[Fact]]]:
    """Everything else, under headings."""
    record = subject.record
    parts = [
        ("Checkpoints", _of_record(record, _OF_CHECKPOINTS)),
        ("Probes", _probes(record)),
        ("Monitor", _of_monitor(subject)),
        ("Status of the numbers", _statuses(subject)),
        ("Versions", _versions(record)),
    ]
    return [(heading, facts) for heading, facts in parts if facts]


def _of_record(record: Mapping[str, Any], names: tuple[str, ...]) -> list[Fact]:
    facts = []
    for name in names:
        if record.get(name) not in (None, [], {}, ""):
            facts.append((name.replace("_", " "), _in_words(record[name])))
    return facts


def _of_monitor(subject: RunSubject) -> list[Fact]:
    """The record of the monitor; of the codes of its optimizer those that there are."""
    record = subject.watch_record
    facts = _of_record(record, tuple(name for name in record if name not in _OF_PROGRAMS))
    meanings = record.get(_MEANINGS, {})
    for code, count in _codes(subject, _MEANINGS).items():
        meaning = meanings.get(str(code), f"status {code}")
        facts.append(("optimizer", f"{count} of {len(subject.watched)}: {meaning}"))
    return facts


def _probes(record: Mapping[str, Any]) -> list[Fact]:
    facts = []
    for probe in record.get("probes", ()):
        text = f"{probe['examples']} examples, x {probe['x']}"
        if probe.get("y"):
            text += f", y {probe['y']}"
        facts.append((probe["name"].replace("_", " "), text))
    return facts


def _statuses(subject: RunSubject) -> list[Fact]:
    """How many numbers are what they seem."""
    facts = []
    if subject.track is not None:
        counts = Counter(str(row.get("spectrum_status", "")) for row in subject.track.rows)
        facts.append(("spectra", _counted(counts)))
    codes = _codes(subject, "status")
    if codes:
        names = {_STATUS_NAMES.get(code, f"status {code}"): count for code, count in codes.items()}
        facts.append(("measurements", _counted(names)))
    facts += [("not shown", text) for text in subject.left_out]
    return facts


def _codes(subject: RunSubject, name: str) -> dict[int, int]:
    """How often a monitor wrote each code, in the order first seen."""
    if f"watch_{name}" not in subject.dataset:
        return {}
    statuses = subject.dataset[f"watch_{name}"].values
    return dict(Counter(statuses[np.isfinite(statuses)].astype(int).tolist()))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())


def _versions(record: Mapping[str, Any]) -> list[Fact]:
    facts = []
    for line in record.get("versions", ()):
        name, _, version = str(line).partition(" ")
        facts.append((name, version))
    return facts


def _in_words(value: Any) -> str:
    """A value of a record on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(item)}" for name, item in value.items())
    if isinstance(value, list):
        texts = [_in_words(item) for item in value]
        are_sentences = all(text.endswith(".") for text in texts)
        return (" " if are_sentences else ", ").join(texts)
    return f"{value:g}" if isinstance(value, float) else str(value)
