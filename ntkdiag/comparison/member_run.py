"""One of several runs: its numbers over the steps, whatever it was read from.

A stream of `track` is read as a `Track`, which has the motion of the kernel beside the numbers that
are stored; a stream of a monitor as its rows, of which the last of each step holds.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float

from ntkdiag.comparison.tracked import Track
from ntkdiag.runs.run_reader import RunReader, require_run

if TYPE_CHECKING:
    import xarray

RunLike: TypeAlias = str | os.PathLike[str] | RunReader | Track


@dataclasses.dataclass(frozen=True, eq=False)
class MemberRun:
    """One run among several.

    Attributes:
        name: What tells it from the others.
        group: The label of the runs that differ from it in their seed alone.
        record: What its numbers mean.
        rows: Its numbers, a dictionary for each step in ascending order.
        source: What they were read from.
        stream: The stream of the run directory.
    """

    name: str
    group: str
    record: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    source: RunReader | Track
    stream: str

    @property
    def steps(self) -> list[int]:
        """The steps that were measured."""
        return [row["step"] for row in self.rows]

    @property
    def names(self) -> list[str]:
        """Names of the quantities: numbers, and lists of numbers of one length."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if name != "step" and self.series(name) is not None]

    def series(self, name: str) -> Float[np.ndarray, "T *shape"] | None:
        """A quantity over the steps; None where it is no number, or not of one length."""
        values = [row.get(name, math.nan) for row in self.rows]
        try:
            series = np.asarray(values, np.float64)
        except (TypeError, ValueError):  # text, or lists of several lengths
            return None
        return series

    def dataset(self) -> "xarray.Dataset":
        """All its numbers with their axes, a row for each step."""
        if isinstance(self.source, Track):
            return self.source.to_xarray()
        dataset = self.source.to_xarray(self.stream)
        return dataset.drop_duplicates("step", keep="last").sortby("step")


def read_member(run: RunLike, name: str, group: str, stream: str) -> MemberRun:
    """Read one run; the stream "track" becomes a `Track`."""
    if isinstance(run, str | os.PathLike):
        run = RunReader(require_run(run))
    if isinstance(run, RunReader) and stream == "track":
        run = Track.of_run(run)
    if isinstance(run, Track):
        return MemberRun(name, group, run.record, run.rows, run, stream)
    # A run that was resumed writes some steps again: the later row takes the place of the earlier.
    by_step = {row["step"]: row for row in run.rows(stream)}
    rows = [by_step[step] for step in sorted(by_step)]
    return MemberRun(name, group, run.record(stream), rows, run, stream)
