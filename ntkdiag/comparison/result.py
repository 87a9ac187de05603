"""What `compare`, `track` and `open_run` return: one dataset, and every way to show it."""

import abc
import html
import os
import pathlib
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ntkdiag import display, errors
from ntkdiag.judging.finding import Finding
from ntkdiag.quantities import QUANTITIES

if TYPE_CHECKING:
    import pandas
    import xarray

    from ntkdiag.report.page import Page

_MOST_ROWS, _MOST_COLUMNS = 60, 12  # of a table in a notebook


class Result(abc.ABC):
    """Numbers by their names in `ntkdiag.quantities`, and the findings about them.

    A notebook shows findings and numbers, `table` gives them as a DataFrame, `plot` draws the
    figures, and `save` writes all of it.
    """

    @property
    @abc.abstractmethod
    def dataset(self) -> "xarray.Dataset":
        """All numbers with their axes, and what they mean as attributes.

        Numbers of checkpoints lie along `step`, those of all pairs along `step` and `step_2`: `e1`
        of the network linearized at `step`, for the outputs at `step_2`. The two sides of a
        comparison lie along `side`. A run that was watched has the numbers of the monitor along
        `watch_step`, with the prefix ``watch_`` in their names.
        """

    @property
    @abc.abstractmethod
    def findings(self) -> list[Finding]:
        """The findings, the most urgent first; docs/findings.md explains all of them."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers as plain JSON values; what is not finite or not known is None."""

    @abc.abstractmethod
    def _page(self) -> "Page":
        """What is on the page of the report."""

    def _dataset_of_figures(self) -> "xarray.Dataset":
        """The dataset that figures are drawn from."""
        return self.dataset

    def _numbers_to_plot(self) -> tuple[Iterable[str], Iterable[str]]:
        """Names of numbers of every checkpoint, and of all pairs of them."""
        return (), ()

    @errors.public
    def table(self, section: str | None = None) -> "pandas.DataFrame":
        """Every single number of the checkpoints, or of both sides, in a row for each.

            print(comparison.table("With labels and a loss"))

        Args:
            section: A section of the table in docs/quantities.md; None for all numbers.

        Returns:
            The table. What lies between the sides of a comparison is in a last row "a to b".

        Raises:
            InvalidInputError: There is no such section.
        """
        import pandas

        sections = dict.fromkeys(known.section for known in QUANTITIES.values())
        if section is not None and section not in sections:
            raise errors.InvalidInputError(
                expected=f"one of {', '.join(map(repr, sections))}",
                got=display.shortened(section),
                do="Leave it out for all numbers.",
            )
        dataset = self.dataset
        over = "side" if "side" in dataset.dims else "step"
        variables = dict(dataset.data_vars)
        if section is not None:
            variables = {
                name: variable
                for name, variable in variables.items()
                if name in QUANTITIES and QUANTITIES[str(name)].section == section
            }
        columns = {name: of.values for name, of in variables.items() if of.dims == (over,)}
        rows = [] if over not in dataset.dims else dataset[over].values
        table = pandas.DataFrame(columns, index=pandas.Index(rows, name=over))
        between = {name: float(of) for name, of in variables.items() if of.dims == ()}
        if between:
            table = table.reindex(columns=[*table, *between])
            table.loc["a to b", list(between)] = np.array(list(between.values()))
        return table

    @property
    def plot(self) -> types.SimpleNamespace:
        """The figures: `comparison.plot.spectrum()`, `run.plot.e1(ax=ax)`.

        Each figure of the report is a method, and so is each number of a run; a notebook completes
        their names. They take `ax`, axes of matplotlib, and return the axes.
        """
        from ntkdiag.report.figures import plots

        return plots(type(self).__name__, self._dataset_of_figures, *self._numbers_to_plot())

    @errors.public
    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Write a self-contained page, or the numbers.

        The page loads nothing: it begins with the findings, and has a section for each question.
        A file is written under a temporary name and then renamed.

        Args:
            path: File ending in ``.html``; ``.json`` for `to_dict()`, ``.csv`` for `table()`,
                ``.nc`` for `dataset` as netCDF. Replaced if it exists; its folder is made if need
                be.

        Returns:
            The path written.

        Raises:
            InvalidInputError: The path has another ending, or cannot be written; or, of a page of a
                run, there are neither checkpoints nor measurements.
            CheckpointError: A stored array is damaged; the message names its file.

        Cost: some seconds for the figures of a page.
        """
        from ntkdiag.report.report_file import save_result

        return save_result(path, self, lambda: self._page().html())

    def _repr_html_(self) -> str:
        """Findings and numbers, for notebooks."""
        found = "".join(f"<li>{html.escape(str(finding))}</li>" for finding in self.findings)
        table = self.table()
        if len(table) < len(table.columns):
            table = table.T
        rows = table.to_html(max_rows=_MOST_ROWS, max_cols=_MOST_COLUMNS)
        return f"<ul>{found}</ul>{rows}"
