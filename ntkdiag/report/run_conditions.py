"""Under which conditions the numbers of a run hold: records, probes, versions, what was stored."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ntkdiag.monitor.measurement import Status
from ntkdiag.report.run_subject import RunSubject

Fact = tuple[str, str]
# Of the record of the checkpoints; probes and versions stand by themselves.
_OF_CHECKPOINTS = ("format", "model", "outputs", "reduction", "loss", "descent")
_MEANINGS = "optimizer_status"  # in the record of a monitor: what the codes mean
# For programs: what the codes mean, and along which axes the numbers of a row lie.
_OF_PROGRAMS = (_MEANINGS, "dims", "coordinates")
_STATUS_NAMES = {int(status): status.name.lower() for status in Status}


def facts_of_run(subject: RunSubject) -> list[Fact]:
    """What a reader has to know first: names and values in words."""
    record = subject.record
    facts: list[Fact] = []
    steps = subject.steps
    if steps:
        facts.append(("checkpoints", f"{len(steps)}, step {steps[0]:.0f} to {steps[-1]:.0f}"))
        facts.append(("kernel", f"{record['reduction']}, of {subject.n_examples} examples"))
    if subject.watched:
        steps = subject.watched.steps
        facts.append(("measurements", f"{len(steps)}, step {steps[0]:.0f} to {steps[-1]:.0f}"))
    if record.get("loss"):
        facts.append(("loss", _in_words(record["loss"])))
    return facts


def conditions(subject: RunSubject) -> list[tuple[str, list[Fact]]]:
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
    statuses = subject.watched.numbers(_MEANINGS)
    for code, count in _codes(statuses).items():
        meaning = meanings.get(str(code), f"status {code}")
        facts.append(("optimizer", f"{count} of {len(statuses)}: {meaning}"))
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
    codes = _codes(subject.watched.numbers("status"))
    if codes:
        names = {_STATUS_NAMES.get(code, f"status {code}"): count for code, count in codes.items()}
        facts.append(("measurements", _counted(names)))
    facts += [("not shown", text) for text in subject.left_out]
    return facts


def _codes(statuses: Float[np.ndarray, " s"]) -> dict[int, int]:
    """How often each code is there, in the order first seen."""
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
