"""Reading a run directory, finished or while it is written: lines at once, arrays one by one."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkdiag import errors
from ntkdiag.display import shortened, some_of
from ntkdiag.path_argument import as_path
from ntkdiag.runs.labelled import as_dataset
from ntkdiag.runs.npz_file import read_arrays
from ntkdiag.runs.run_stream import RunStream, StreamContents

if TYPE_CHECKING:
    import pandas
    import xarray


def require_run(path: str | os.PathLike[str]) -> pathlib.Path:
    """The absolute path of a run directory."""
    root = as_path(path)
    if not RunReader(root).names:
        raise errors.CheckpointError(
            expected=f"a run directory at {os.fspath(path)!r}",
            got="a path without a .jsonl file in it" if root.exists() else "no such path",
            do="Pass the folder that was written to, as seen from the working directory.",
        )
    return root


@dataclasses.dataclass(frozen=True)
class RunReader:
    """The reading half of a `Run`: what does not depend on the streams that are in it.

    A directory holds streams, each with the rows that one writer wrote: "watch", "track".
    `name` is one of them; where none is named it is "track", or else the only one there is.
    """

    root: pathlib.Path  # the directory

    @property
    def names(self) -> list[str]:
        """The streams: every ``.jsonl`` file of the directory, without its ending."""
        return sorted(path.stem for path in self.root.glob("*.jsonl") if path.is_file())

    @errors.public
    def record(self, name: str | None = None) -> dict[str, Any]:
        """The last convention record of a stream: what its numbers mean. {} where there is none."""
        records = self._read(name).records
        return records[-1] if records else {}

    @errors.public
    def steps(self, name: str | None = None) -> list[int]:
        """The steps of a stream, one for each of its rows."""
        return [row["step"] for row in self._read(name).rows]

    @errors.public
    def rows(self, name: str | None = None) -> list[dict[str, Any]]:
        """The scalars of a stream, one dictionary for each step, with NaN for null."""
        return self._read(name).rows

    @errors.public
    def passed_over(self, name: str | None = None) -> int:
        """How many lines of a stream say nothing: torn, damaged, or of something else."""
        return self._read(name).passed_over

    @errors.public
    def array(self, step: int, key: str, *, name: str | None = None) -> np.ndarray:
        """The array `key` of one step, in the dtype it was written in.

        Raises:
            InvalidInputError: There is no such step, or it has no such array.
            CheckpointError: The array is damaged; the message names its file.
        """
        contents = self._read(name)
        _require_known(step, contents.committed, "a step with arrays")
        committed = contents.committed[step]
        _require_known(key, committed.arrays, "an array")
        return RunStream(self.root, self._chosen(name)).array(committed, key)

    @errors.public
    def to_pandas(self, name: str | None = None) -> "pandas.DataFrame":
        """The rows of a stream as a table over the steps, with the record in its `attrs`."""
        import pandas

        rows = self.rows(name)
        frame = pandas.DataFrame.from_records(rows)
        if rows:
            frame = frame.set_index("step")
        frame.attrs["record"] = self.record(name)
        return frame

    @errors.public
    def to_xarray(self, name: str | None = None) -> "xarray.Dataset":
        """All numbers of a stream with their axes; the attributes are the convention record.

        Arrays have the axes that the record names in its "dims". What differs in shape between
        steps is left out, and named in the attribute ``left_out``. Where a training that was
        resumed measured a step again, the later row holds.

        Raises:
            CheckpointError: An array is damaged; the message names its file.
        """
        stream = RunStream(self.root, self._chosen(name))
        contents = stream.read()
        finished = contents.committed.values()
        loose = {row["step"]: row for row in contents.rows[len(finished) :]}
        rows = [item.row for item in finished] + [loose[step] for step in sorted(loose)]
        arrays: dict[str, list[np.ndarray | None]] = {}
        for index, item in enumerate(finished):
            of_step = read_arrays(stream.array_path(item.row["step"]), item.arrays)
            for key, array in of_step.items():
                arrays.setdefault(key, [None] * len(rows))[index] = array
        return as_dataset(rows, arrays, self.record(name))

    def __repr__(self) -> str:
        extents = "; ".join(f"{name} {self._extent(name)}" for name in self.names)
        return f"{type(self).__name__}({os.fspath(self.root)!r}: {extents})"

    def _extent(self, name: str) -> str:
        """How much a stream holds, in words."""
        contents = self._read(name)
        steps = [row["step"] for row in contents.rows]
        range_ = f", {min(steps)} to {max(steps)}" if steps else ""
        passed_over = f", {lines_passed_over(contents.passed_over)}" if contents.passed_over else ""
        return f"{len(steps)} steps{range_}{passed_over}"

    def _chosen(self, name: str | None) -> str:
        """The stream that is asked for; where none is, "track" or the only one."""
        names = self.names
        if name is None and ("track" in names or len(names) == 1):
            return "track" if "track" in names else names[0]
        _require_known(name, names, f"a stream of {os.fspath(self.root)!r}")
        return str(name)

    def _read(self, name: str | None) -> StreamContents:
        return RunStream(self.root, self._chosen(name)).read()


def lines_passed_over(count: int) -> str:
    """How many lines say nothing, in words."""
    return "1 line skipped" if count == 1 else f"{count:,} lines skipped"


def _require_known(value: object, known: Iterable[object], what: str) -> None:
    """Refuse a stream, a step or an array that is not there."""
    listed = list(known)
    if value not in listed:
        raise errors.InvalidInputError(
            expected=f"{what}: {some_of(listed, most=12) or 'none'}",
            got=shortened(value),
            do="See run.names, run.steps(name) and run.rows(name) for what there is.",
        )
