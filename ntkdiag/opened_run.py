"""A run directory: the measurements of one training, and its report."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ntkdiag import display, errors
from ntkdiag.comparison.result import Result
from ntkdiag.comparison.tracked import Track, read_track
from ntkdiag.judging.finding import Finding
from ntkdiag.runs.run_reader import RunReader, require_run

if TYPE_CHECKING:
    import xarray

    from ntkdiag.report.page import Page
    from ntkdiag.report.run_page import RunSubject

# Entries of a record that decide what the numbers of a run are, and of which examples.
_MEANING = ("source", "reduction", "loss", "outputs", "probes", "probe")


@errors.public
def open_run(path: str | os.PathLike[str]) -> "Run":
    """Open a run directory for reading, also while it is written.

    Args:
        path: The folder.

    Returns:
        The run. It reads the folder at each call, so it grows with it.

    Raises:
        CheckpointError: There is no such folder, or no stream in it.
    """
    return Run(require_run(path))


@errors.public
def open_runs(
    folders: Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]],
) -> "xarray.Dataset":
    """Open several run directories as one dataset with the dimension `run`.

        runs = ntkdiag.open_runs(["runs/lr0.1", "runs/lr0.3"])
        runs["loss"].plot.line(x="step")

    Args:
        folders: The run directories. A dictionary names them; otherwise their paths do.

    Returns:
        The numbers of `track`, or else of the monitor, that all runs have. A run is NaN at steps
        that it does not have.

    Raises:
        InvalidInputError: Runs differ in probe, loss, reduction or outputs.
        CheckpointError: A path is no run directory.
    """
    import xarray

    if isinstance(folders, str) or not isinstance(folders, Sequence | Mapping) or not folders:
        raise errors.InvalidInputError(
            expected="a list of run directories, or a dictionary from names to them",
            got=display.shortened(folders),
            do='Write open_runs(["a", "b"]).',
        )
    if not isinstance(folders, Mapping):
        folders = {str(folder): folder for folder in folders}
    datasets: list[xarray.Dataset] = []
    for folder in folders.values():
        run = Run(require_run(folder))
        tracked = run.tracked
        datasets.append(run.to_xarray() if tracked is None else tracked.dataset)
    first = datasets[0]
    for entry in _MEANING:
        values = [dataset.attrs.get(entry) for dataset in datasets]
        for name, value in zip(folders, values, strict=True):
            if value != values[0]:
                raise errors.InvalidInputError(
                    expected=f"runs with the same {entry}",
                    got=f"{values[0]} of {next(iter(folders))!r} and {value} of {name!r}",
                    do="Measure all runs on the same examples, with one loss and one reduction.",
                )
    shared = [key for key in first.data_vars if all(key in dataset for dataset in datasets)]
    return xarray.concat(
        [dataset[shared] for dataset in datasets],
        dim=xarray.DataArray(list(folders), dims="run", name="run"),
        join="outer",
        data_vars="all",
        coords="minimal",
        compat="override",
        combine_attrs="drop_conflicts",
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Run(RunReader, Result):
    """The measurements of one training, read from its directory.

    A directory holds streams, each with the rows that one writer wrote: "track", "watch".

    Attributes:
        root: The directory.
    """

    @property
    def tracked(self) -> Track | None:
        """The checkpoints that `track` stored; None where none is finished."""
        return read_track(self)

    @property
    def findings(self) -> list[Finding]:
        """The findings about the run, the most urgent first.

        Dead or collapsed networks, numbers that are not finite, the margin, the regime, and
        findings made while it trained. docs/findings.md explains each.
        """
        return self._subject.findings

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers as plain JSON values: of each stream its record and rows, and the matrices.

        Returns:
            A dictionary; arrays are left out, what is not finite is None.
        """
        streams = {}
        for name in self.names:
            streams[name] = {"record": self.record(name), "rows": self.rows(name)}
        tracked = self.tracked
        matrices = {} if tracked is None else dict(tracked.matrices)
        return display.plain({"streams": streams, "matrices": matrices})

    @property
    def dataset(self) -> "xarray.Dataset":
        """The numbers of the checkpoints, and those of the monitor that pages show."""
        return self._subject.dataset

    @property
    def _subject(self) -> "RunSubject":
        from ntkdiag.report.run_page import RunSubject

        return RunSubject.of(self.tracked, self)

    def _numbers_to_plot(self) -> tuple[Iterable[str], Iterable[str]]:
        tracked = self.tracked
        return ((), ()) if tracked is None else (tracked.names, tracked.matrices)

    def _page(self) -> "Page":
        return self._subject.page()
