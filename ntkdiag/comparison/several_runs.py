"""Several runs together: seeds averaged, settings laid over each other.

1. Runs are read and grouped: those of one group are the same but for the seed (`run_groups`).
2. A quantity that all of them have is averaged within each group, over the steps that all runs of
   the group have (`seed_mean`).
3. What comes out is a mean with its band for each group, to draw, or a dataset with the seed as an
   axis.
"""

import dataclasses
import functools
import json
import os
import pathlib
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ntkdiag import display, errors
from ntkdiag.comparison.member_run import MemberRun
from ntkdiag.comparison.run_groups import (
    RunsLike,
    read_groups,
    require_comparable,
    varying_settings,
)
from ntkdiag.comparison.seed_mean import SeedMean, common_steps, mean_over_seeds
from ntkdiag.display import imported

if TYPE_CHECKING:
    import pandas
    import xarray

_MOST_NAMES = 5  # of runs, in a message


@errors.public
def open_runs(
    runs: RunsLike,
    *,
    by: str | None = None,
    stream: str = "track",
    may_differ: Sequence[str] = (),
) -> "Runs":
    """Open several runs, to average over seeds and to compare settings.

        runs = ntkdiag.open_runs({"lr 0.1": ["a0", "a1", "a2"], "lr 0.3": ["b0", "b1", "b2"]})
        runs.plot.drift()

    Runs of one group are taken to differ in their seed alone: they are averaged, and their spread
    is that over seeds. Groups are laid over each other. Without labels and without `by` each run is
    a group of its own, and nothing is averaged.

    Args:
        runs: Run directories, as paths or as `Run`, or results of `track`: a list; a dictionary
            from labels to one or several of them; or a folder that holds them, or a pattern such as
            ``"runs/lr_*"``.
        by: An entry of the records whose value makes the groups, such as "descent", "parameters" or
            "model.mode".
        stream: The stream of the run directories.
        may_differ: Entries of the records that may differ where they should not, such as "probes".

    Returns:
        The runs, as they are now.

    Raises:
        CheckpointError: A path is no run directory.
        InvalidInputError: Probes, loss or reduction differ between runs, or another setting within
            a group; no record has the entry `by`; or a run has no such stream.
    """
    members = read_groups(runs, by, stream)
    require_comparable(members, may_differ)
    return Runs(tuple(members))


@dataclasses.dataclass(frozen=True, eq=False)
class Runs:
    """Several runs with numbers of one meaning, in groups that differ in more than a seed.

    Attributes:
        members: The runs, each with its name, the label of its group, its record and its rows.
    """

    members: tuple[MemberRun, ...]

    @property
    def groups(self) -> dict[str, list[MemberRun]]:
        """Label -> the runs that differ in their seed alone."""
        groups: dict[str, list[MemberRun]] = {}
        for member in self.members:
            groups.setdefault(member.group, []).append(member)
        return groups

    @property
    def names(self) -> list[str]:
        """Names of the quantities that every run has."""
        of_all = [set(member.names) for member in self.members]
        return [name for name in self.members[0].names if name in set.intersection(*of_all)]

    @errors.public
    def series(self, name: str) -> dict[str, Float[np.ndarray, "T *shape"]]:
        """A quantity of every run, over the steps of that run.

        Args:
            name: Of the quantity; `names` has all of them.

        Returns:
            Name of a run -> `[T ...]`, over the steps in `steps`; NaN where it is not known.

        Raises:
            InvalidInputError: A run does not have the quantity.
        """
        self._require(name)
        return {member.name: _series(member, name) for member in self.members}

    @property
    def steps(self) -> dict[str, list[int]]:
        """Name of a run -> the steps it was measured at."""
        return {member.name: member.steps for member in self.members}

    @errors.public
    def mean(self, name: str) -> dict[str, SeedMean]:
        """A quantity averaged over the seeds of each group, with its spread.

        Averaged is over the steps that all runs of a group have. The 95 % interval of the mean is
        that of Student's distribution, mean ± t s / √n.

        Args:
            name: Of the quantity; `names` has all of them.

        Returns:
            Label of a group -> mean, standard deviation and interval; of a group of one run the
            last two are NaN, with the reason.

        Raises:
            InvalidInputError: A run does not have the quantity, or its length differs in a group.
        """
        self._require(name)
        means = {}
        for label, group in self.groups.items():
            series = {member.name: _series(member, name) for member in group}
            shapes = {values.shape[1:] for values in series.values()}
            if len(shapes) > 1:
                raise errors.InvalidInputError(
                    expected=f"{name} of one length in the group {label!r}",
                    got=", ".join(str(list(shape)) for shape in sorted(shapes)),
                    do="Average networks of one size.",
                )
            means[label] = mean_over_seeds(series, {member.name: member.steps for member in group})
        return means

    @property
    def plot(self) -> display.Plots:
        """The figures: `runs.plot.drift()`, a line with its band for each group.

        Each quantity that is one number for a step is a method, which takes `ax`, axes of
        matplotlib, and `band`: "interval", the 95 % interval of the mean, drawn for groups of four
        runs or more, "deviation", one standard deviation, or None. Thin lines are single runs,
        which the axes have room for. Drawn are all steps; a mean is there for those that all runs
        of a group have.
        """
        from ntkdiag.report.seed_curves import draw_seed_curves

        drawings = {}
        for name in self.names:
            if _series(self.members[0], name).ndim == 1:
                drawings[name] = functools.partial(draw_seed_curves, self, name)
        return display.Plots("Runs", drawings)

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """Name of a run -> the settings that are not the same in all runs, by dotted path."""
        return varying_settings(self.members)

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The runs by name as plain JSON values: group, settings that differ, record and rows."""
        settings = self.settings
        of_runs = {}
        for member in self.members:
            of_runs[member.name] = {
                "group": member.group,
                "settings": settings[member.name],
                "record": dict(member.record),
                "rows": list(member.rows),
            }
        return display.plain(of_runs)

    @errors.public
    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Write the runs together as one self-contained HTML page, or their numbers as JSON.

            ntkdiag.open_runs("runs/lr_*").save("sweep.html")

        The page begins with a table: of each run the settings that differ, its last loss and its
        largest margin. Figures follow, each with a line for every run. It loads nothing, and is
        written beside its place and then renamed.

        Args:
            path: File ending in ``.html`` or ``.json``; replaced if it exists. Its folder is made
                if need be.

        Returns:
            The path written.

        Raises:
            InvalidInputError: The path has another ending, or cannot be written.
            MissingDependencyError: jinja2 or matplotlib is not installed (HTML only).

        Cost: a fifth of a second for each figure.
        """
        from ntkdiag.report.runs_page import save_runs

        return save_runs(path, self)

    @errors.public
    def to_pandas(self) -> "pandas.DataFrame":
        """All numbers as one long table, a row for each run and step.

        Returns:
            The table, with the columns group, run, seed (the place of the run in its group), step,
            and one for each number that every run has; the records are in its `attrs`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        pandas = imported("pandas", "makes the table")
        rows = []
        for label, group in self.groups.items():
            for seed, member in enumerate(group):
                where = {"group": label, "run": member.name, "seed": seed}
                for row in member.rows:
                    numbers = {name: row.get(name, np.nan) for name in self.names}
                    rows.append({**where, "step": row["step"], **numbers})
        frame = pandas.DataFrame.from_records(rows)
        frame.attrs["records"] = {member.name: dict(member.record) for member in self.members}
        return frame

    @errors.public
    def to_xarray(self) -> "xarray.Dataset":
        """Everything as one dataset over group, seed and step.

        Steps that a run does not have, and seeds that a group does not have, are NaN. `run` has the
        name of each run.

        Returns:
            The dataset, whose attributes are the records by name of the run, and the steps that all
            runs of a group have; it writes itself as netCDF or zarr.

        Raises:
            MissingDependencyError: xarray is not installed.
            InvalidInputError: Axes of the runs do not fit, such as layers of other names.
        """
        xarray = imported("xarray", "makes the dataset")
        labels = list(self.groups)
        of_groups = []
        for group in self.groups.values():
            datasets = [member.dataset().drop_attrs() for member in group]
            of_group = _concatenated(xarray, datasets, "seed")
            of_groups.append(of_group.assign_coords(seed=np.arange(len(group))))
        dataset = _concatenated(xarray, of_groups, "group")
        n_seeds = max(len(group) for group in self.groups.values())
        names = [
            [member.name for member in group] + [""] * (n_seeds - len(group))
            for group in self.groups.values()
        ]
        common = {
            label: common_steps([member.steps for member in group])
            for label, group in self.groups.items()
        }
        records = {member.name: dict(member.record) for member in self.members}
        dataset = dataset.assign_coords(group=labels, run=(["group", "seed"], names))
        attributes = {
            "common_steps": json.dumps(common),
            "records": json.dumps(display.plain(records)),
            "left_out": ", ".join(self._left_out(set(map(str, dataset.variables)))),
        }
        return dataset.assign_attrs(attributes)

    def __repr__(self) -> str:
        parts = [f"{label!r} {_counted(len(group))}" for label, group in self.groups.items()]
        return f"Runs({_counted(len(self.members))}: {', '.join(parts)})"

    def _repr_html_(self) -> str:
        """The groups with their steps, for notebooks."""
        rows = []
        for label, group in self.groups.items():
            common = common_steps([member.steps for member in group])
            span = f"steps {common[0]} to {common[-1]}" if common else "no step in common"
            rows.append((label, f"{_counted(len(group))}, {len(common)} {span}", ""))
        return display.html_table(_counted(len(self.members)), rows)

    def _left_out(self, there: set[str]) -> list[str]:
        """Names that some run has and the dataset has not."""
        names = dict.fromkeys(name for member in self.members for name in member.names)
        return [name for name in names if name not in there]

    def _require(self, name: str) -> None:
        """Refuse a quantity that a run does not have."""
        is_name = isinstance(name, str)
        lacking = [
            member.name for member in self.members if not is_name or name not in member.names
        ]
        if lacking:
            raise errors.InvalidInputError(
                expected=f"a quantity that every run has: {', '.join(self.names)}",
                got=f"{display.shortened(name)}, which {', '.join(lacking[:_MOST_NAMES])} has not",
                do="What needs labels, a loss or held-out examples is there where they were given.",
            )


def _series(member: MemberRun, name: str) -> Float[np.ndarray, "T *shape"]:
    """A quantity that a run is known to have."""
    series = member.series(name)
    assert series is not None
    return series


def _concatenated(
    xarray: types.ModuleType, datasets: Sequence["xarray.Dataset"], axis: str
) -> "xarray.Dataset":
    """Datasets along a new axis; NaN at steps that one of them does not have."""
    # What is not in all of them is left out, as is what has no place on common axes.
    shared = set.intersection(*[set(dataset.data_vars) for dataset in datasets])
    shared = sorted(shared, key=list(datasets[0].data_vars).index)
    try:
        return xarray.concat(
            [dataset[shared] for dataset in datasets],
            dim=axis,
            join="outer",
            data_vars="all",
            coords="minimal",
            compat="override",
        )
    except ValueError as error:
        raise errors.InvalidInputError(
            expected="runs whose axes fit each other",
            got=str(error).partition("\n")[0],
            do="Open the runs of each size by themselves.",
        ) from error


def _counted(n_runs: int) -> str:
    return "1 run" if n_runs == 1 else f"{n_runs} runs"
