"""What the report of a run is about: its checkpoints, and what a monitor measured beside them.

Either may be missing. No kernel is read.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_run import run_findings
from ntkdiag.quantities import QUANTITIES
from ntkdiag.report.reported import Track
from ntkdiag.runs.run_reader import RunReader, lines_passed_over
from ntkdiag.runs.run_stream import RunStream

if TYPE_CHECKING:
    from xarray import Dataset

Row: TypeAlias = Mapping[str, Any]  # one line of JSON: the step, and numbers by name

_NO_RECORD: Mapping[str, Any] = {}
# What a page shows of a monitor: numbers, and lists of numbers with their axes. There may be very
# many rows: nothing else is looked up.
_ESTIMATES = ("margin", "loss", "step_error", "drift", "participation_ratio", "alignment")
_NUMBERS = (
    *(f"{name}{end}" for name in _ESTIMATES for end in ("", "_lower", "_upper")),
    "status",
    "optimizer_status",
)
_LISTS = {"eigenvalues": "watch_mode", "layer_update": "layer", "layer_parameter": "layer"}


@dataclasses.dataclass(frozen=True, eq=False)
class RunSubject:
    """A run as figures and findings see it."""

    track: Track | None  # the checkpoints, a `Track`; None where none was tracked
    run: RunReader | None  # the run directory; None where nothing is stored
    watched: Sequence[Row]  # what a monitor measured, in the order of the steps
    watch_record: Mapping[str, Any]  # the convention record of that
    left_out: Sequence[str]  # what the run directory holds that is not shown, in words

    @staticmethod
    def of(track: Track | None, run: RunReader | None) -> "RunSubject":
        """Read the measurements of the monitors beside the checkpoints."""
        watched: Sequence[Row] = ()
        record = _NO_RECORD
        left_out = []
        for name in [] if run is None else run.names:
            assert run is not None
            contents = RunStream(run.root, name).read()
            if contents.passed_over:
                left_out.append(f"{lines_passed_over(contents.passed_over)} in {name}.jsonl")
            rows = [] if name == "track" else _in_order(contents.rows)
            if not rows:
                continue
            if watched:
                left_out.append(f"the measurements of {name}.jsonl")
                continue
            watched = rows
            record = contents.records[-1] if contents.records else _NO_RECORD
            _require_record(record, f"the record of {name}.jsonl")
        return RunSubject(track, run, watched, record, left_out)

    @property
    def record(self) -> Mapping[str, Any]:
        """The convention record of the checkpoints."""
        return _NO_RECORD if self.track is None else self.track.record

    @functools.cached_property
    def dataset(self) -> "Dataset":
        """The numbers of the checkpoints, and "watch_" with the name of each of a monitor."""
        import xarray

        dataset = xarray.Dataset() if self.track is None else self.track.dataset
        for name in () if self.track is None else self.track.matrices:
            if not _has_pairs(dataset[name].values):
                dataset = dataset.drop_vars(name)
        if not self.watched:
            return dataset
        variables = {}
        for name in _NUMBERS:
            values = _numbers_of([row.get(name) for row in self.watched])
            if np.isfinite(values).any():
                variables[f"watch_{name}"] = ("watch_step", values)
        layers = self.watch_record.get("layers", [])
        for name, axis in _LISTS.items():
            values = _array_of([row.get(name) for row in self.watched])
            if values.size and (axis != "layer" or values.shape[1] == len(layers)):
                variables[f"watch_{name}"] = (("watch_step", axis), values)
        if not {"watch_layer_update", "watch_layer_parameter"} <= variables.keys():
            variables.pop("watch_layer_update", None)
            variables.pop("watch_layer_parameter", None)
        coordinates = {
            "watch_step": np.array([row["step"] for row in self.watched], np.float64),
            "layer": layers,
        }
        return dataset.assign(xarray.Dataset(variables, coordinates))

    @property
    def findings(self) -> list[Finding]:
        """All findings, the most urgent first."""
        checkpoints, e1 = (), None
        if self.track is not None:
            checkpoints, e1 = self.track.rows, self.track.matrices["e1"]
            e1 = e1 if _has_pairs(e1) else None
        return run_findings(checkpoints, self.record, e1, self.watched, self.watch_record)


def _has_pairs(matrix: Float[np.ndarray, "T T"]) -> bool:
    """Whether more is known of a number of all pairs than its diagonal."""
    return bool(np.isfinite(matrix[~np.eye(len(matrix), dtype=bool)]).any())


def _require_record(record: Mapping[str, Any], of: str) -> None:
    """Refuse the record of a monitor whose layers and codes no page could name."""
    layers = record.get("layers", [])
    meanings = record.get("optimizer_status", {})
    has_layers = isinstance(layers, list) and all(isinstance(name, str) for name in layers)
    if not has_layers or not isinstance(meanings, Mapping):
        raise errors.CheckpointError(
            expected=f"{of} as a monitor writes it",
            got="another kind of optimizer_status" if has_layers else "another kind of layers",
            do="It was changed, or is of another version. Restore it from a copy.",
        )


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """The rows that hold numbers of the table, in the order of their steps."""
    by_step = {row["step"]: row for row in rows if "step" in row and row.keys() & QUANTITIES.keys()}
    return [by_step[step] for step in sorted(by_step)]


def _numbers_of(values: Sequence[Any]) -> Float[np.ndarray, " s"]:
    """Values as numbers; NaN for what is none."""
    try:
        return np.array(values, np.float64).reshape(len(values))
    except (TypeError, ValueError):  # some are lists, or text
        numbers = [value if isinstance(value, int | float) else math.nan for value in values]
        return np.array(numbers, np.float64)


def _array_of(values: Sequence[Any]) -> Float[np.ndarray, "s k"]:
    """Lists of numbers as rows of an array; NaN for what is no number."""
    lists = [value if isinstance(value, list) else [] for value in values]
    longest = max(map(len, lists), default=0)
    array = np.full((len(lists), longest), np.nan)
    if longest == 0:
        return array
    for place, entries in enumerate(lists):
        array[place, : len(entries)] = _numbers_of(entries)
    return array
