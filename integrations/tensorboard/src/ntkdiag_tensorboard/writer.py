"""A writer that turns measurements into TensorBoard event files.

Everything goes into one folder, which TensorBoard shows as one run: scalars, histograms, texts,
figures, and what its HPARAMS tab needs to show runs beside each other.
"""

import importlib.util
import json
import math
import os
import uuid
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from ntkdiag import errors
from ntkdiag.monitor import Finding, scalars_of
from ntkdiag_tensorboard.figures import spectrum_figure

# Facts of the record that tell runs apart.
HPARAMS = (
    "loss",
    "optimizer",
    "learning_rate",
    "momentum",
    "kind",
    "weight_decay",
    "reduction",
    "schedule",
    "n_examples",
    "library",
    "mode",
    "dtype",
)


class TensorBoardWriter:
    """Writes each number as a scalar, and each list as one scalar per entry and a histogram.

    Entries are named by the layers where there is one for each, and numbered otherwise.

    The convention record of the monitor becomes a text, so that the board says what the numbers
    mean, and its single facts become hyperparameters, with the numbers as their metrics. Findings
    are texts. Numbers that are not finite are left out. tensorboardX writes the files; neither
    TensorFlow nor TensorBoard is needed for that. Of the processes of one JAX program the first one
    writes.

    Args:
        logdir: Folder of the event files, as `tensorboard --logdir` takes it. Made at the first
            measurement. None is the folder ``tensorboard`` of the run directory of the monitor
            (`out=`), and without one a folder of this hour below ``runs``.
        prefix: Put before every tag; TensorBoard groups tags by what stands before the first slash.
        flush_secs: Longest time, in seconds, before what was written is on disk.
        figures: Draw the spectrum of each measurement, beside that of the first; needs Matplotlib.

    Raises:
        MissingDependencyError: Figures are asked for, and Matplotlib is not installed.
    """

    @errors.public
    def __init__(
        self,
        logdir: str | os.PathLike[str] | None = None,
        *,
        prefix: str = "ntkdiag/",
        flush_secs: int = 30,
        figures: bool = False,
    ) -> None:
        if figures and importlib.util.find_spec("matplotlib") is None:
            raise errors.MissingDependencyError(
                argument="figures=True",
                expected="an installed Matplotlib",
                got="no such package",
                do='Run "pip install matplotlib".',
            )
        self.logdir = None if logdir is None else os.fspath(logdir)
        self.prefix = prefix
        self.flush_secs = flush_secs
        self.figures = figures
        self._events: SummaryWriter | None = None
        self._record: dict[str, Any] = {}
        self._end_of_session: Any = None  # what the HPARAMS tab needs at the end
        self._first_spectrum: list[float] | None = None

    def remember_in(self, folder: str | os.PathLike[str]) -> None:
        """Write to the run directory of the monitor, unless a folder was given."""
        if self.logdir is None:
            self.logdir = os.path.join(folder, "tensorboard")

    def start(self, record: Mapping[str, Any]) -> None:
        """Write the convention record as a text."""
        self._record = dict(record)
        self._end_of_session = None
        self._first_spectrum = None
        self._add_text("record", f"```\n{json.dumps(self._record, indent=2)}\n```", 0)

    def write(self, step: int, values: Mapping[str, float | list[float]]) -> None:
        """Write one measurement."""
        if jax.process_index() != 0:
            return
        events = self._open()
        scalars = scalars_of(values, self._record)
        if self._record and self._end_of_session is None:
            self._write_hparams([name for name in scalars if "/" not in name])
        for name, number in scalars.items():
            events.add_scalar(self.prefix + name, number, step)
        for name, value in values.items():
            if isinstance(value, list):
                self._write_histogram(name, value, step)
        if self.figures:
            self._write_figure(step, values)

    def finding(self, finding: Finding) -> None:
        """Write one finding as a text."""
        step = 0 if finding.step is None else int(finding.step)
        self._add_text("findings", str(finding), step)

    def close(self) -> None:
        """Flush and close the event file; writing again begins another one in the same folder."""
        if self._events is not None:
            if self._end_of_session is not None:
                self._events.file_writer.add_summary(self._end_of_session)
            self._events.close()
            self._events = None

    def _open(self) -> SummaryWriter:
        if self._events is None:
            # tensorboardX names files by the second and opens them for writing: two writers in one
            # folder would overwrite each other.
            suffix = f".{uuid.uuid4().hex[:8]}"
            self._events = SummaryWriter(
                self.logdir, flush_secs=self.flush_secs, filename_suffix=suffix
            )
            self.logdir = self._events.logdir  # where it goes on after a close
        return self._events

    def _add_text(self, kind: str, text: str, step: int) -> None:
        if jax.process_index() == 0:
            self._open().add_text(self.prefix + kind, text, step)

    def _write_hparams(self, metrics: list[str]) -> None:
        """Write what runs are compared by, and which numbers are compared."""
        facts = {name: self._record.get(name) for name in HPARAMS}
        facts["instruments"] = ", ".join(self._record.get("instruments", []))
        tags = dict.fromkeys((self.prefix + name for name in metrics), 0.0)
        # `SummaryWriter.add_hparams` would write them to a folder, and so a run, of their own.
        experiment, start_of_session, self._end_of_session = hparams(facts, tags)
        self._open().file_writer.add_summary(experiment)
        self._open().file_writer.add_summary(start_of_session)

    def _write_histogram(self, name: str, values: list[float], step: int) -> None:
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            self._open().add_histogram(self.prefix + name, np.asarray(finite), step)

    def _write_figure(self, step: int, values: Mapping[str, float | list[float]]) -> None:
        """Draw the eigenvalues of the kernel; where they are not measured, the curvatures."""
        for quantity in ("eigenvalues", "curvatures"):
            spectrum = values.get(quantity)
            if not isinstance(spectrum, list):
                continue
            if self._first_spectrum is None:
                self._first_spectrum = spectrum
            figure = spectrum_figure(quantity, spectrum, self._first_spectrum)
            self._open().add_figure(f"{self.prefix}spectrum", figure, step, close=False)
            return
