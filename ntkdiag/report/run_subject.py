"""What the report of a run is about: its checkpoints, its measurements, its examples.

Each of these may be missing. Numbers are read when the subject is made; kernels lie on disk, and
are read one by one when a figure needs them.

What figures need of kernels and labels is computed here, once. Labels are those of the examples of
the kernel. Kernels are averaged over outputs, [n o n o] -> [n n]: all outputs of an example share
their modes, and one decomposition costs n^3.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8

from ntkdiag.analysis.alignment import label_power
from ntkdiag.analysis.generalization import leave_one_out
from ntkdiag.losses.targets import read_targets
from ntkdiag.report.monitor_records import Row, measured_in
from ntkdiag.report.reported import Track
from ntkdiag.runs.run_reader import RunReader

# Ridge of leave-one-out in units of the mean diagonal entry of the kernel, as `compare` has it.
RELATIVE_RIDGE = 1e-3
_OF_OTHERS = ("track", "probe", "compare")  # streams that no monitor wrote
_NO_RECORD: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class RunSubject:
    """A run as figures and sentences see it.

    Attributes:
        track: The checkpoints, a `Track`; None where none was tracked.
        run: The run directory; None where nothing is stored.
        watched: Measurements of a monitor in the order of their steps, under names that begin with
            "ntk_".
        watch_record: Their convention record.
        left_out: What the run directory holds that is not shown, in words.
    """

    track: Track | None
    run: RunReader | None
    watched: Sequence[Row]
    watch_record: Mapping[str, Any]
    left_out: Sequence[str]

    @staticmethod
    def of(track: Track | None, run: RunReader | None) -> "RunSubject":
        """Read the measurements of the monitors beside the checkpoints."""
        watched: list[Row] = []
        record = _NO_RECORD
        left_out = []
        for name in [] if run is None else run.names:
            if name in _OF_OTHERS:
                continue
            assert run is not None
            record_of_stream = run.record(name)
            of_monitors = measured_in(run.rows(name), [record_of_stream])
            for monitor, rows in of_monitors.items():
                if watched:
                    left_out.append(f"{len(rows)} measurements of {monitor} in {name}.jsonl")
                else:
                    watched, record = rows, record_of_stream
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
        """Steps and values of a number of the monitor; None where it has none of that name.

        Of an array by name, `place` is the one of its numbers that is meant.
        """
        steps = []
        values = []
        for row in self.watched:
            value = _entry(row.get(f"ntk_{name}", math.nan), place)
            if math.isfinite(value):
                steps.append(row["step"])
                values.append(value)
        if not steps:
            return None
        return np.array(steps, np.float64), np.array(values)

    def interval(self, name: str) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]] | None:
        """Lower and upper ends of the intervals of `measured`; None where it is no estimate."""
        lower = []
        upper = []
        for row in self.watched:
            if math.isfinite(_entry(row.get(f"ntk_{name}", math.nan), None)):
                lower.append(_entry(row.get(f"ntk_{name}_lower", math.nan), None))
                upper.append(_entry(row.get(f"ntk_{name}_upper", math.nan), None))
        has_ends = np.isfinite(lower) & np.isfinite(upper)
        return (np.array(lower), np.array(upper)) if has_ends.any() else None

    @property
    def has_both_probes(self) -> bool:
        """Whether there are held-out examples beside those that are trained on."""
        return len(self.record.get("probes", ())) == 2

    @property
    def n_examples(self) -> int:
        """How many examples the kernels of the checkpoints are of."""
        return 0 if self.track is None else self.track.outputs.shape[1]

    def examples_of(self, name: str | None) -> int:
        """How many examples the probe "train" or "held_out" has; of None, that of the kernels."""
        if name is None:
            return self.n_examples
        for probe in self.record.get("probes", ()):
            if probe["name"] == name:
                return probe["examples"]
        return 0

    @functools.cached_property
    def kernels(self) -> list[Float[np.ndarray, "n n"]]:
        """The kernel of every checkpoint, averaged over outputs; none where none is stored."""
        if self.run is None or self.track is None:
            return []
        return [_per_example(self.run.array(step, "kernel", name="track")) for step in self.steps]

    @functools.cached_property
    def targets(self) -> Float[np.ndarray, "n o"] | None:
        """Labels of the examples of the kernel as the network would put them out, centred."""
        labels = self._of_probe("labels")
        if labels is None or self.track is None:
            return None
        with jax.enable_x64(True):
            targets = np.asarray(read_targets(labels, self.track.outputs.shape[1:]), np.float64)
        targets = targets.reshape(len(targets), -1)
        return targets - targets.mean(axis=0)

    @functools.cached_property
    def label_powers(self) -> list[Float[np.ndarray, " n"]]:
        """Of every checkpoint C(k), the share of the labels in the k fastest modes."""
        if self.targets is None:
            return []
        return [np.asarray(label_power(kernel, self.targets)) for kernel in self.kernels]

    @functools.cached_property
    def residuals_left_out(self) -> list[Float[np.ndarray, "n o"]]:
        """Of every checkpoint what kernel regression on all other examples gets wrong on each."""
        if self.targets is None:
            return []
        residuals = []
        for kernel in self.kernels:
            ridge = RELATIVE_RIDGE * float(np.mean(np.diagonal(kernel)))
            residuals.append(np.asarray(leave_one_out(kernel, self.targets, ridge).residuals))
        return residuals

    @functools.cached_property
    def errors_left_out(self) -> Float[np.ndarray, " T"]:
        """Of every checkpoint the mean square of these, over the variance of the labels."""
        if self.targets is None:
            return np.zeros(0)
        variance = float(np.mean(np.sum(self.targets**2, axis=1)))
        squares = [np.mean(np.sum(residual**2, axis=1)) for residual in self.residuals_left_out]
        return np.array(squares, np.float64) / variance

    @functools.cached_property
    def labels(self) -> list[str]:
        """The label of each example in words; none where labels are not one number each."""
        labels = self._of_probe("labels")
        if labels is None or labels.ndim > 1:
            return []
        return [f"{label:g}" for label in labels.tolist()]

    @functools.cached_property
    def thumbnails(self) -> UInt8[np.ndarray, "m h w c"] | None:
        """Small images of the first examples; None where they are no images."""
        return self._of_probe("thumbnails")

    def _of_probe(self, key: str) -> np.ndarray | None:
        """An array that is stored of the examples; None without."""
        if self.run is None or "probe" not in self.run.names:
            return None
        try:
            return self.run.array(0, key, name="probe")
        except ValueError:  # it is not stored, or damaged: the report does without
            return None


def _entry(value: float | Sequence[float], place: int | None) -> float:
    """A number, or one of a list of numbers; NaN where it is no such thing."""
    if place is None:
        return float(value) if isinstance(value, int | float) else math.nan
    if not isinstance(value, Sequence) or place >= len(value):
        return math.nan
    return float(value[place])


def _per_example(array: np.ndarray) -> Float[np.ndarray, "n n"]:
    """A kernel averaged over outputs, in the dtype it is stored in, whose rounding it has."""
    if array.ndim != 4:
        return array
    mean = np.einsum("nomo->nm", array.astype(np.float64)) / array.shape[1]  # [n o m o] -> [n m]
    return mean.astype(array.dtype)
