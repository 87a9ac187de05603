"""A writer that turns measurements into TensorBoard event files."""

import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter


class TensorBoardWriter:
    """Writes each number as a scalar, and each list as one scalar per entry and a histogram.

    Entries are named by the layers where there is one for each, and numbered otherwise.

    The convention record of the monitor becomes a text, so that the board says what the numbers
    mean. Numbers that are not finite are left out. tensorboardX writes the files; neither
    TensorFlow nor TensorBoard is needed for that.

    Args:
        logdir: Folder of the event files, as `tensorboard --logdir` takes it. Made at the first
            measurement.
        prefix: Put before every tag; TensorBoard groups tags by what stands before the first slash.
        flush_secs: Longest time, in seconds, before what was written is on disk.
    """

    def __init__(
        self, logdir: str | os.PathLike[str], *, prefix: str = "ntkdiag/", flush_secs: int = 30
    ) -> None:
        self.logdir = os.fspath(logdir)
        self.prefix = prefix
        self.flush_secs = flush_secs
        self._events: SummaryWriter | None = None
        self._layers: list[str] = []

    def start(self, record: Mapping[str, Any]) -> None:
        """Write the convention record as a text."""
        name = record.get("name", "ntk")
        self._layers = list(record.get("layers", ()))
        self._open().add_text(
            f"{self.prefix}{name}_record", f"```\n{json.dumps(dict(record), indent=2)}\n```"
        )

    def write(self, step: int, values: Mapping[str, float | list[float]]) -> None:
        """Write one measurement."""
        for name, value in values.items():
            tag = self.prefix + name
            if isinstance(value, list):
                self._write_list(tag, value, step)
            else:
                self._write_scalar(tag, value, step)

    def close(self) -> None:
        """Flush and close the event file; writing again begins another one in the same folder."""
        if self._events is not None:
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
        return self._events

    def _write_scalar(self, tag: str, value: float, step: int) -> None:
        if math.isfinite(value):
            self._open().add_scalar(tag, value, step)

    def _write_list(self, tag: str, values: list[float], step: int) -> None:
        entries: Sequence[object] = range(len(values))
        if "_layer_" in tag and len(self._layers) == len(values):
            entries = self._layers
        for entry, value in zip(entries, values, strict=True):
            self._write_scalar(f"{tag}/{entry}", value, step)
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            self._open().add_histogram(tag, np.asarray(finite), step)
