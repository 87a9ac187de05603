"""A run as figures, findings and its page see it: checkpoints, and what a monitor measured beside.

Either may be missing. No kernel is read.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_run import run_findings
from ntkdiag.quantities import QUANTITIES
from ntkdiag.report.page import Fact, Page
from ntkdiag.runs.run_reader import RunReader, lines_passed_over
from ntkdiag.runs.run_stream import RunStream

if TYPE_CHECKING:
    from xarray import Dataset

    from ntkdiag.comparison.tracked import Track

Record: TypeAlias = Mapping[str, Any]  # one line of JSON

# What a page shows of a monitor: numbers, and lists of numbers with their axes. There may be very
# many rows: nothing else is looked up.
_ESTIMATES = ("margin", "loss", "step_error", "drift", "participation_ratio", "alignment")
_NUMBERS = [f"{name}{end}" for name in _ESTIMATES for end in ("", "_lower", "_upper")]
_LISTS = {"eigenvalues": "watch_mode", "layer_update": "layer", "layer_parameter": "layer"}
# Entries of a record that are for programs, or as long as the model.
_NOT_SHOWN = ("dims", "coordinates", "optimizer_status", "parameters")


@dataclasses.dataclass(frozen=True, eq=False)
class RunSubject:
    """A run with the measurements of its monitor."""

    track: "Track | None"  # the checkpoints; None where none was tracked
    run: RunReader | None  # the run directory; None where nothing is stored
    watched: Sequence[Record]  # what a monitor measured, in the order of the steps
    watch_record: Record  # the convention record of that
    left_out: Sequence[str]  # what the run directory holds that is not shown, in words

    @staticmethod
    def of(track: "Track | None", run: RunReader | None) -> "RunSubject":
        """Read the measurements of the monitors beside the checkpoints."""
        watched: Sequence[Record] = ()
        record: Record = {}
        left_out = []
        for name in [] if run is None else run.names:
            assert run is not None
            contents = RunStream(run.root, name).read()
            if contents.passed_over:
                left_out.append(f"{lines_passed_over(contents.passed_over)} in {name}.jsonl")
            rows = [] if name == "track" else _in_order(contents.rows)
            if rows and watched:
                left_out.append(f"the measurements of {name}.jsonl")
            elif rows:
                watched = rows
                record = contents.records[-1] if contents.records else {}
        return RunSubject(track, run, watched, record, left_out)

    @property
    def record(self) -> Record:
        """The convention record of the checkpoints."""
        return {} if self.track is None else self.track.record

    @functools.cached_property
    def dataset(self) -> "Dataset":
        """The numbers of the checkpoints, and "watch_" with the name of each of a monitor."""
        import xarray

        dataset = xarray.Dataset()
        if self.track is not None:
            dataset = self.track.dataset
            alone = [name for name, pairs in self.track.matrices.items() if not _has_pairs(pairs)]
            dataset = dataset.drop_vars(alone)
        if not self.watched:
            return dataset
        variables = {}
        for name in _NUMBERS:
            values = np.array([row.get(name) for row in self.watched], np.float64)
            if np.isfinite(values).any():
                variables[f"watch_{name}"] = ("watch_step", values)
        for name, axis in _LISTS.items():
            values = _as_rows([row.get(name) or [] for row in self.watched])
            if values.size:
                variables[f"watch_{name}"] = (("watch_step", axis), values)
        steps = np.array([row["step"] for row in self.watched], np.float64)
        coordinates = {"watch_step": steps, "layer": self.watch_record.get("layers", [])}
        return dataset.assign(xarray.Dataset(variables, coordinates))

    @property
    def findings(self) -> list[Finding]:
        """All findings, the most urgent first."""
        checkpoints, e1 = (), None
        if self.track is not None:
            checkpoints, e1 = self.track.rows, self.track.matrices["e1"]
            e1 = e1 if _has_pairs(e1) else None
        return run_findings(checkpoints, self.record, e1, self.watched, self.watch_record)

    def page(self) -> Page:
        """Its page; refused where a run directory holds nothing a report is about."""
        if self.track is None and not self.watched:
            raise errors.InvalidInputError(
                expected="checkpoints of ntkdiag.track, or measurements of ntkdiag.watch",
                got=f"{self.run}",
                do="Track the checkpoints into it: ntkdiag.track(..., out=...).",
            )
        conditions = [
            ("Checkpoints", _of_record(self.record)),
            ("Monitor", _of_record(self.watch_record)),
            ("Not shown", [("of the run directory", text) for text in self.left_out]),
        ]
        return Page(
            kind="report of a run",
            title="Run" if self.run is None else self.run.root.name,
            facts=_facts(self),
            findings=self.findings,
            dataset=self.dataset,
            conditions=[(heading, facts) for heading, facts in conditions if facts],
        )


def _in_order(rows: Sequence[Record]) -> list[Record]:
    """The rows that hold numbers of the table, in the order of their steps."""
    by_step = {row["step"]: row for row in rows if "step" in row and row.keys() & QUANTITIES.keys()}
    return [by_step[step] for step in sorted(by_step)]


def _has_pairs(matrix: Float[np.ndarray, "T T"]) -> bool:
    """Whether more is known of a number of all pairs than its diagonal."""
    return bool(np.isfinite(matrix[~np.eye(len(matrix), dtype=bool)]).any())


def _as_rows(lists: Sequence[Sequence[float]]) -> Float[np.ndarray, "s k"]:
    """Lists of numbers as rows of an array; those of other lengths end in NaN."""
    array = np.full((len(lists), max(map(len, lists))), np.nan)
    for index, numbers in enumerate(lists):
        array[index, : len(numbers)] = numbers
    return array


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


def _of_record(record: Record) -> list[Fact]:
    """The entries of a record that say something."""
    facts = []
    for name, value in record.items():
        if name not in _NOT_SHOWN and value not in (None, [], {}, ""):
            facts.append((name.replace("_", " "), _in_words(value)))
    return facts


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(item)}" for name, item in value.items())
    if isinstance(value, list):
        texts = [_in_words(item) for item in value]
        are_sentences = all(text.endswith(".") for text in texts)
        return (" " if are_sentences else "; ").join(texts)
    return f"{value:g}" if isinstance(value, float) else str(value)
