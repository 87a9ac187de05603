"""What the report of a run is about: its checkpoints, its measurements, its examples.

Each of these may be missing. Numbers are read when the subject is made; kernels lie on disk, and
are read one by one when a figure needs them, averaged over outputs, [n o n o] -> [n n].
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_run import run_findings
from ntkdiag.report.monitor_records import Measurements
from ntkdiag.report.reported import Track
from ntkdiag.runs.npy_array import damaged
from ntkdiag.runs.run_reader import RunReader, lines_passed_over
from ntkdiag.runs.run_stream import RunStream

_OF_OTHERS = ("track", "probe")  # streams that no monitor wrote
_NO_RECORD: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class RunSubject:
    """A run as figures and sentences see it."""

    track: Track | None  # the checkpoints, a `Track`; None where none was tracked
    run: RunReader | None  # the run directory; None where nothing is stored
    watched: Measurements  # what a monitor measured
    watch_record: Mapping[str, Any]  # the convention record of that
    left_out: Sequence[str]  # what the run directory holds that is not shown, in words

    @staticmethod
    def of(track: Track | None, run: RunReader | None) -> "RunSubject":
        """Read the measurements of the monitors beside the checkpoints."""
        watched = Measurements()
        record = _NO_RECORD
        left_out = []
        for name in [] if run is None else run.names:
            assert run is not None
            contents = RunStream(run.root, name).read()
            if contents.passed_over:
                left_out.append(f"{lines_passed_over(contents.passed_over)} in {name}.jsonl")
            if name in _OF_OTHERS:
                continue
            measurements = Measurements.of(contents.rows)
            if not measurements:
                continue
            if watched:
                left_out.append(f"the measurements of {name}.jsonl")
                continue
            watched = measurements
            record = contents.records[-1] if contents.records else _NO_RECORD
            _require_record(record, f"the record of {name}.jsonl")
        return RunSubject(track, run, watched, record, left_out)

    @property
    def record(self) -> Mapping[str, Any]:
        """The convention record of the checkpoints."""
        return _NO_RECORD if self.track is None else self.track.record

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints."""
        return [] if self.track is None else self.track.steps

    def series(self, name: str) -> Float[np.ndarray, "T ..."] | None:
        """A number of every checkpoint; None where there is none of that name."""
        if self.track is None or name not in self.track.names:
            return None
        return self.track.series(name)

    def matrix(self, name: str) -> Float[np.ndarray, "T T"] | None:
        """A number of all pairs of checkpoints; None where nothing but its diagonal is known."""
        if self.track is None or len(self.steps) < 2:
            return None
        matrix = self.track.matrix(name)
        off_diagonal = ~np.eye(len(matrix), dtype=bool)
        return matrix if np.isfinite(matrix[off_diagonal]).any() else None

    def measured(
        self, name: str, place: int | None = None
    ) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]] | None:
        """Steps and values of a number of the monitor; None where it has none of that name."""
        values = self.watched.numbers(name, place)
        is_known = np.isfinite(values)
        if not is_known.any():
            return None
        return self.watched.steps[is_known], values[is_known]

    def interval(self, name: str) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]] | None:
        """Lower and upper ends of the intervals of `measured`; None where it is no estimate."""
        is_known = np.isfinite(self.watched.numbers(name))
        lower = self.watched.numbers(f"{name}_lower")[is_known]
        upper = self.watched.numbers(f"{name}_upper")[is_known]
        has_ends = np.isfinite(lower) & np.isfinite(upper)
        return (lower, upper) if has_ends.any() else None

    @property
    def has_both_probes(self) -> bool:
        """Whether there are held-out examples beside those that are trained on."""
        return len(self.record.get("probes", ())) == 2

    @property
    def n_examples(self) -> int:
        """How many examples the kernels of the checkpoints are of."""
        probes = self.record.get("probes", ())
        if probes:
            return probes[0]["examples"]  # those of `train` come first
        return 0 if self.track is None else self.track.outputs.shape[1]

    def kernels_at(self, steps: Sequence[int]) -> list[Float[np.ndarray, "n n"]]:
        """The kernels of some checkpoints, averaged over outputs; none where none is stored."""
        if self.run is None or self.track is None:
            return []
        stream = RunStream(self.run.root, "track")
        n = self.n_examples
        kernels = []
        committed = stream.read().committed
        for step in steps:
            array = stream.array(committed[step], "kernel")
            is_reduced = array.shape == (n, n)
            is_full = array.ndim == 4 and array.shape == (n, array.shape[1]) * 2
            if array.dtype.kind != "f" or not (is_reduced or is_full):
                path = stream.array_path(step, "kernel")
                raise damaged(path, f"{array.dtype.name} of shape {list(array.shape)}")
            kernels.append(_per_example(array))
        return kernels

    @property
    def findings(self) -> list[Finding]:
        """All findings, the most urgent first; no kernel is read for them."""
        checkpoints = [] if self.track is None else self.track.rows
        watched = self.watched.rows
        return run_findings(checkpoints, self.record, self.matrix("e1"), watched, self.watch_record)


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


def _per_example(array: np.ndarray) -> Float[np.ndarray, "n n"]:
    """A kernel averaged over outputs, in the dtype it is stored in, whose rounding it has."""
    if array.ndim != 4:
        return array
    mean = np.einsum("nomo->nm", array.astype(np.float64)) / array.shape[1]  # [n o m o] -> [n m]
    return mean.astype(array.dtype)
