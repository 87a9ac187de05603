"""Reading a run directory, finished or while it is written: lines at once, arrays one by one."""

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.path_argument import as_path
from ntkdiag.runs.labelled import as_dataset, as_frame
from ntkdiag.runs.run_stream import CommittedStep, RunStream, StreamContents
from ntkdiag.runs.stacking import stacked

if TYPE_CHECKING:
    import pandas
    import xarray


def require_run(path: str | os.PathLike[str]) -> pathlib.Path:
    """The absolute path of a run directory."""
    root = as_path(path)
    if root.is_dir() and RunReader(root).names:
        return root
    if root.is_dir():
        got, do = "a folder without a .jsonl file", "Pass the folder that was written to."
    elif root.exists():
        got, do = "a file", f"Pass its folder: {os.fspath(root.parent)!r}."
    else:
        got, do = "no such path", "Check the spelling and the working directory."
    expected = f"a run directory at {os.fspath(path)!r}"
    raise errors.CheckpointError(expected=expected, got=got, do=do)


@dataclasses.dataclass(frozen=True)
class RunReader:
    """The reading half of a `Run`: what does not depend on the streams that are in it.

    A directory holds streams, each with the rows that one writer wrote: "watch", "track".
    Where none is named it is "track", or else the only one there is.

    Attributes:
        root: The directory.
    """

    root: pathlib.Path

    @property
    def names(self) -> list[str]:
        """The streams: every ``.jsonl`` file of the directory, without its ending."""
        return sorted(path.stem for path in self.root.glob("*.jsonl") if path.is_file())

    @errors.public
    def record(self, name: str | None = None) -> dict[str, Any]:
        """The convention record of a stream: what its numbers mean.

        Args:
            name: The stream.

        Returns:
            The last one, where a run was gone on with under other versions; {} where none was
            written.
        """
        records = self._read(name).records
        return records[-1] if records else {}

    @errors.public
    def steps(self, name: str | None = None) -> list[int]:
        """The steps of a stream, one for each of its rows.

        Args:
            name: The stream.
        """
        return [row["step"] for row in self._read(name).rows]

    @errors.public
    def rows(self, name: str | None = None) -> list[dict[str, Any]]:
        """The scalars of a stream, one dictionary for each step, with NaN for null.

        Args:
            name: The stream.
        """
        return self._read(name).rows

    @errors.public
    def passed_over(self, name: str | None = None) -> int:
        """How many lines of a stream say nothing: torn, damaged, or of something else.

        A process that was killed leaves one at most, which the next one ends.

        Args:
            name: The stream.
        """
        return self._read(name).passed_over

    @errors.public
    def array(self, step: int, key: str, *, name: str | None = None) -> np.ndarray:
        """One array of one step.

        Args:
            step: The step.
            key: The name of the array.
            name: The stream.

        Returns:
            The array in the dtype it was written in.

        Raises:
            InvalidInputError: There is no such step, or it has no such array.
            CheckpointError: The array is damaged; the message names its file.
        """
        name = self._chosen(name)
        committed = self._read(name).committed
        if not isinstance(step, int | np.integer) or step not in committed:
            raise errors.InvalidInputError(
                expected=f"a step of {name!r} with arrays: {_listed(committed)}",
                got=shortened(step),
                do="A step that is still being written comes later.",
            )
        if not isinstance(key, str) or key not in committed[step].sha256s:
            raise _no_such_array(key, committed)
        return RunStream(self.root, name).array(committed[step], key)

    @errors.public
    def arrays(self, key: str, *, name: str | None = None) -> np.ndarray:
        """One array over all steps that have arrays.

        Args:
            key: The name of the array.
            name: The stream.

        Returns:
            `[steps ...]` in ascending order of the steps; NaN at steps without it, where it is of
            floating-point numbers.

        Raises:
            InvalidInputError: No step has it, its shape differs between steps, or it is not of
                floating-point numbers and some step is without it.
            CheckpointError: One is damaged; the message names its file.
        """
        name = self._chosen(name)
        committed = self._read(name).committed
        is_name = isinstance(key, str)
        if not is_name or not any(key in item.sha256s for item in committed.values()):
            raise _no_such_array(key, committed)
        together = stacked(self._of_all_steps(name, key, committed))
        if together is None:
            raise errors.InvalidInputError(
                expected="an array of one shape, which every step has",
                got=f"{key!r}, which differs between steps",
                do="Read them one by one: run.array(step, key).",
            )
        return together

    @errors.public
    def to_pandas(self, name: str | None = None) -> "pandas.DataFrame":
        """The rows of a stream as a table, its index the steps.

        Args:
            name: The stream.

        Returns:
            A `pandas.DataFrame`, with the convention record as ``attrs["record"]``.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return as_frame(self.rows(name), self.record(name))

    @errors.public
    def to_xarray(self, name: str | None = None) -> "xarray.Dataset":
        """All numbers of a stream with their axes.

        Scalars are over step; arrays have the axes that the record names for them in its "dims"
        after it, and ``<name>_0, <name>_1, ...`` where it names none. Values along an axis are
        taken from "coordinates" of the record. What differs in shape between steps is left out, and
        named in the attribute ``left_out``. Where a training that was resumed measured a step once
        more, the later row holds.

        Args:
            name: The stream.

        Returns:
            An `xarray.Dataset`; its attributes are the convention record, dictionaries and lists
            as JSON text, so that netCDF and zarr take them.

        Raises:
            MissingDependencyError: xarray is not installed.
            CheckpointError: An array is damaged; the message names its file.
        """
        name = self._chosen(name)
        contents = self._read(name).latest
        keys: dict[str, None] = {}  # in the order first seen
        for item in contents.committed.values():
            keys.update(dict.fromkeys(item.sha256s))
        arrays = {}
        for key in keys:
            of_steps = self._of_all_steps(name, key, contents.committed)
            arrays[key] = of_steps + [None] * len(contents.loose)  # one for each row
        return as_dataset(contents.rows, arrays, self.record(name))

    def __repr__(self) -> str:
        parts = [f"{name} {text}" for name, text in self._extents().items()]
        return f"{type(self).__name__}({os.fspath(self.root)!r}: {'; '.join(parts)})"

    def _extents(self) -> dict[str, str]:
        """How much each stream holds, in words."""
        return {name: self._extent(name) for name in self.names}

    def _extent(self, name: str) -> str:
        """How much a stream holds, in words; never an error, as it is for a `repr`."""
        try:
            contents = self._read(name)
        except errors.NtkdiagError as error:
            return f"not read: {type(error).__name__}"
        steps = [row["step"] for row in contents.rows]
        text = f"{len(steps)} steps"
        if steps:
            text += f", {min(steps)} to {max(steps)}"
        if contents.passed_over:
            text += f", {lines_passed_over(contents.passed_over)}"
        return text

    def _chosen(self, name: str | None) -> str:
        """The stream that is asked for; where none is, "track" or the only one."""
        if name is not None and not isinstance(name, str):
            raise errors.InvalidInputError(
                expected="the name of a stream", got=shortened(name), do='Write rows("watch").'
            )
        names = self.names
        if name is None and ("track" in names or len(names) == 1):
            return "track" if "track" in names else names[0]
        if name is None or name not in names:
            raise errors.InvalidInputError(
                expected=f"a stream of {os.fspath(self.root)!r}: {', '.join(names)}",
                got="no name" if name is None else shortened(name),
                do="Each is a .jsonl file of the folder.",
            )
        return name

    def _read(self, name: str | None) -> StreamContents:
        """The lines of a stream as they are now."""
        return RunStream(self.root, self._chosen(name)).read()

    def _of_all_steps(
        self, name: str, key: str, committed: dict[int, CommittedStep]
    ) -> list[np.ndarray | None]:
        """One array at every step with arrays; None at steps without it."""
        stream = RunStream(self.root, name)
        steps = committed.values()
        return [stream.array(step, key) if key in step.sha256s else None for step in steps]


def lines_passed_over(count: int) -> str:
    """How many lines say nothing, in words."""
    return "1 line passed over" if count == 1 else f"{count:,} lines passed over"


def _no_such_array(key: str, committed: dict[int, CommittedStep]) -> errors.InvalidInputError:
    """The error for an array that is not there; the message lists those that are."""
    names = sorted({name for item in committed.values() for name in item.sha256s})
    return errors.InvalidInputError(
        expected=f"one of the arrays {', '.join(names)}" if names else "a stream with arrays",
        got=shortened(key),
        do="Scalars are in run.rows(name).",
    )


def _listed(steps: dict[int, CommittedStep]) -> str:
    """Steps for a message; of many, how many there are."""
    text = ", ".join(str(step) for step in list(steps)[:12])
    return f"{text}, ... ({len(steps)} in all)" if len(steps) > 12 else text or "none"
