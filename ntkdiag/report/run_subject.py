"""What the report of a run is about: its checkpoints, its measurements, its examples.

Each of these may be missing. Numbers are read when the subject is made; kernels lie on disk, and
are read one by one when a figure needs them.

What figures need of kernels and labels is computed here, once. Labels are those of the examples of
the kernel. Kernels are averaged over outputs, [n o n o] -> [n n]: all outputs of an example share
their modes, and one decomposition costs n^3.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.analysis.generalization import leave_one_out
from ntkdiag.judging.labels import label_doubts
from ntkdiag.losses.alignable import why_not_targets
from ntkdiag.losses.targets import read_targets
from ntkdiag.losses.weighted import have_all_weight
from ntkdiag.report.monitor_records import Measurements
from ntkdiag.report.reported import Track
from ntkdiag.runs.npy_array import damaged
from ntkdiag.runs.run_reader import RunReader, lines_passed_over
from ntkdiag.runs.run_stream import RunStream

# Ridge of leave-one-out in units of the mean diagonal entry of the kernel, as `compare` has it.
RELATIVE_RIDGE = 1e-3
# Checkpoints whose kernels have a say about labels.
MOST_DOUBTING = 5
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

    def examples_of(self, name: str | None) -> int:
        """How many examples the probe "train" or "held_out" has; of None, that of the kernels."""
        if name is None:
            return self.n_examples
        for probe in self.record.get("probes", ()):
            if probe["name"] == name:
                return probe["examples"]
        return 0

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

    @functools.cached_property
    def targets(self) -> Float[np.ndarray, "n o"] | None:
        """Labels of the examples of the kernel as the network would put them out, centred."""
        labels = self._of_probe("labels")
        weights = self._of_probe("weights")
        if labels is None or self.track is None or labels.shape[:1] != (self.n_examples,):
            return None
        shape = self.track.outputs.shape[1:]
        has_all_weight = weights is None or have_all_weight(weights)
        if not has_all_weight or why_not_targets(labels, shape):
            return None
        with jax.enable_x64(True):
            targets = np.asarray(read_targets(labels, shape), np.float64)
        targets = targets.reshape(len(targets), -1)
        return targets - targets.mean(axis=0)

    @functools.cached_property
    def label_doubts(self) -> Float[np.ndarray, " n"] | None:
        """By how much all other examples contradict the label of each, over a few checkpoints."""
        labels = self._of_probe("labels")
        if self.targets is None or labels is None or self.targets.shape[1] < 2:
            return None
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            return None
        places = np.unique(np.linspace(0, len(self.steps) - 1, MOST_DOUBTING).round().astype(int))
        kernels = self.kernels_at([self.steps[place] for place in places])
        if not kernels:
            return None
        residuals = np.mean([_left_out(kernel, self.targets) for kernel in kernels], axis=0)
        # Without the mean over examples, which targets and predictions lack alike.
        frequencies = np.bincount(labels, minlength=self.targets.shape[1]) / len(labels)
        return label_doubts(self.targets - residuals + frequencies, labels)

    def _of_probe(self, key: str) -> np.ndarray | None:
        """An array that is stored of the examples; None without."""
        if self.run is None or "probe" not in self.run.names:
            return None
        try:
            return self.run.array(0, key, name="probe")
        except ValueError:  # it is not stored, or damaged: the report does without
            return None


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


def _left_out(
    kernel: Float[np.ndarray, "n n"], targets: Float[np.ndarray, "n o"]
) -> Float[np.ndarray, "n o"]:
    """What kernel regression on all other examples gets wrong on each."""
    ridge = RELATIVE_RIDGE * float(np.mean(np.diagonal(kernel)))
    return np.asarray(leave_one_out(kernel, targets, ridge).residuals)


def _per_example(array: np.ndarray) -> Float[np.ndarray, "n n"]:
    """A kernel averaged over outputs, in the dtype it is stored in, whose rounding it has."""
    if array.ndim != 4:
        return array
    mean = np.einsum("nomo->nm", array.astype(np.float64)) / array.shape[1]  # [n o m o] -> [n m]
    return mean.astype(array.dtype)
