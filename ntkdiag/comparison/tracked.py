"""What `track` returns: numbers of every checkpoint, and matrices over all pairs of them."""

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ntkdiag import display, errors
from ntkdiag.comparison.result import Result
from ntkdiag.comparison.store import STREAM, as_track_writes_it
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_run import start_of
from ntkdiag.runs.labelled import as_dataset
from ntkdiag.runs.run_reader import RunReader
from ntkdiag.runs.run_stream import RunStream

if TYPE_CHECKING:
    import xarray
    from rich.console import Group

    from ntkdiag.report.page import Page

# Numbers of a pair of checkpoints that are the same both ways, with that of a checkpoint beside
# itself.
_SYMMETRIC = {"distance": 0.0, "distance_centred": 0.0, "overlap": 1.0}
# Numbers with a direction, i -> j.
_DIRECTED = {"e1": math.nan, "agreement": 1.0}
MATRICES = (*_SYMMETRIC, *_DIRECTED)
# What a row has beside its numbers.
_OF_OTHER_KINDS = (
    "step",
    "from_first",
    "convention",
    "params_sha256",
    "spectrum_status",
    "margin_status",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Track(Result):
    """A run, checkpoint by checkpoint.

    Attributes:
        record: What the numbers mean: reduction, loss, probes, leaves, versions.
        rows: A dictionary for each checkpoint in order, with its "step". Numbers that are not known
            are NaN; see `docs/quantities.md` for their names.
        eigenvalues: `[T k]` of each kernel, descending.
        outputs: `[T n *o]` outputs on the probe.
        matrices: Name -> `[T T]`; see `matrix`.
        run: The run directory that kernels and modes are stored in; None where nothing is.
    """

    record: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    eigenvalues: Float[np.ndarray, "T k"]
    outputs: Float[np.ndarray, "T n *o"]
    matrices: Mapping[str, Float[np.ndarray, "T T"]]
    run: RunReader | None = None

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints."""
        return [row["step"] for row in self.rows]

    @errors.public
    def series(self, name: str) -> Float[np.ndarray, "T *shape"]:
        """One number over training, such as "trace", "drift" or "leaf_shares".

        Args:
            name: Its name; `names` has all of them.

        Returns:
            `[T]`, or `[T ...]` for a list; NaN where a checkpoint has none.

        Raises:
            InvalidInputError: No checkpoint has a number of that name.
        """
        if not isinstance(name, str) or name not in self.names:
            raise errors.InvalidInputError(
                expected=f"one of {', '.join(self.names)}",
                got=display.shortened(name),
                do="What needs labels, a loss or held-out examples is there where they were given.",
            )
        return np.asarray([row.get(name, math.nan) for row in self.rows], np.float64)

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the numbers that there are."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if name not in _OF_OTHER_KINDS]

    @errors.public
    def matrix(self, name: str) -> Float[np.ndarray, "T T"]:
        """One number of all pairs of checkpoints.

        Args:
            name: "distance" and "distance_centred" of the kernels, "overlap" of their leading
                modes, and, of the network linearized at checkpoint i for the outputs of checkpoint
                j, "e1" `[i j]` and the "agreement" of decisions.

        Returns:
            `[T T]`; NaN where it is not resolved.

        Raises:
            InvalidInputError: There is no matrix of that name.
        """
        if not isinstance(name, str) or name not in MATRICES:
            raise errors.InvalidInputError(
                expected=f"one of {', '.join(MATRICES)}",
                got=display.shortened(name),
                do="Write run.matrix('e1').",
            )
        return self.matrices[name]

    @property
    def findings(self) -> list[Finding]:
        """What is found in the run and in what was measured while it trained, as `Run.findings`."""
        from ntkdiag.report.run_page import RunSubject

        return RunSubject.of(self, self.run).findings

    @staticmethod
    def of(
        record: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
        eigenvalues: Float[np.ndarray, "T k"],
        outputs: Float[np.ndarray, "T n *o"],
        run: RunReader | None = None,
    ) -> "Track":
        """A run from its stored rows: matrices, and motion from the first checkpoint on."""
        matrices = {name: _matrix(rows, name) for name in MATRICES}
        with_motion = []
        for index, row in enumerate(rows):
            numbers = {name: value for name, value in row.items() if name != "pairs"}
            with_motion.append(numbers | _motion(rows, matrices, index))
        return Track(record, with_motion, eigenvalues, outputs, matrices, run)

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers as plain JSON values."""
        content = {
            "record": dict(self.record),
            "findings": [finding.to_dict() for finding in self.findings],
            "checkpoints": [dict(row) for row in self.rows],
            "matrices": dict(self.matrices),
        }
        return display.plain(content)

    @functools.cached_property
    def dataset(self) -> "xarray.Dataset":
        """Everything as a dataset over the steps, with the record as attributes."""
        record = dict(self.record)
        record["dims"] = {**record["dims"], **{name: ["step_2"] for name in MATRICES}}
        record["coordinates"] = {**record["coordinates"], "step_2": self.steps}
        arrays = {**self.matrices, "eigenvalues": self.eigenvalues, "outputs": self.outputs}
        by_step = {name: list(array) for name, array in arrays.items()}
        return as_dataset([dict(row) for row in self.rows], by_step, record)

    def __getitem__(self, name: str) -> "xarray.DataArray":
        return self.dataset[name]

    def _dataset_of_figures(self) -> "xarray.Dataset":
        from ntkdiag.report.run_page import RunSubject

        return RunSubject.of(self, self.run).dataset

    def _numbers_to_plot(self) -> tuple[Iterable[str], Iterable[str]]:
        return self.names, self.matrices

    def _page(self) -> "Page":
        from ntkdiag.report.run_page import RunSubject

        return RunSubject.of(self, self.run).page()

    def __repr__(self) -> str:
        steps = self.steps
        numbers = [f"Track({len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}"]
        for name in ("drift", "trace", "loss", "held_out_accuracy", "margin"):
            if name in self.names:
                values = self.series(name)
                numbers.append(f"{name} {values[0]:.4g} to {values[-1]:.4g}")
        return ", ".join(numbers) + ")"

    def __rich__(self) -> "Group":
        from ntkdiag.report.screens import track_screen

        return track_screen(self)


def read_track(run: RunReader) -> Track | None:
    """What `track(..., out=...)` stored, without the model; None where no checkpoint is finished.

    Eigenvalues and outputs of all checkpoints are read, and no kernel.
    """
    stream = RunStream(run.root, STREAM)
    committed = stream.read().committed if STREAM in run.names else {}
    if not committed:
        return None
    steps = committed.values()
    eigenvalues = [stream.array(step, "eigenvalues") for step in steps]
    outputs = [stream.array(step, "outputs") for step in steps]
    with as_track_writes_it(repr(os.fspath(stream.path))):
        rows = [step.row for step in steps]
        record = run.record(STREAM)
        return Track.of(record, rows, np.stack(eigenvalues), np.stack(outputs), run)


def _matrix(rows: Sequence[Mapping[str, Any]], name: str) -> Float[np.ndarray, "T T"]:
    """One number of all pairs, from the rows of the later ones."""
    index_of = {row["step"]: index for index, row in enumerate(rows)}
    matrix = np.full((len(rows), len(rows)), math.nan)
    np.fill_diagonal(matrix, {**_SYMMETRIC, **_DIRECTED}[name])
    to, back = (f"{name}_to", f"{name}_from") if name in _DIRECTED else (name, name)
    for now, row in enumerate(rows):
        pairs = row["pairs"]
        for number, step in enumerate(pairs["step"]):
            if step not in index_of:
                continue  # of a call that took more checkpoints
            earlier = index_of[step]
            matrix[earlier, now] = pairs[to][number]
            matrix[now, earlier] = pairs[back][number]
    return matrix


def _motion(
    rows: Sequence[Mapping[str, Any]], matrices: Mapping[str, np.ndarray], index: int
) -> dict[str, int | float]:
    """The drift from the first kernel by the parameters, as `compare` has it, and the velocity.

    With r the ratio of the norms, D^2 = (r - 1)^2 + 2 r S and a = r (1 - S).
    """
    distance = matrices["distance"][0, index]
    ratio = rows[index]["norm"] / rows[0]["norm"] if rows[0]["norm"] > 0 else math.nan
    square = (ratio - 1.0) * (ratio - 1.0) + 2.0 * ratio * distance
    motion = {
        "drift": math.sqrt(square) if square >= 0 else math.nan,
        "drift_scale": ratio * (1.0 - distance),
        "drift_rotation": 2.0 * math.asin(math.sqrt(min(max(distance / 2.0, 0.0), 1.0))),
        "drift_distance_centred": float(matrices["distance_centred"][0, index]),
    }
    # With the fixed arrays of this checkpoint, where those of the first one are others.
    start = start_of(rows[0], rows[index])
    motion |= {name: start[name] for name in motion if name in start}
    if index > 0:
        steps = rows[index]["step"] - rows[index - 1]["step"]
        motion["velocity"] = float(matrices["distance"][index - 1, index]) / steps
    return motion
