"""`track.plot` and `run.plot`: the figures of the report, and all other numbers of checkpoints.

A figure of the report is drawn as it is there, in the colours of paper, with a legend. A number or
a matrix that the report has no figure of is drawn in the same way.
"""

import functools
from typing import TYPE_CHECKING

from ntkdiag import display, errors
from ntkdiag.quantities import axis_words
from ntkdiag.report.figures.run_figure import Curve, LineFigure, PairFigure, RunFigure
from ntkdiag.report.figures.run_figures import RUN_FIGURES
from ntkdiag.report.figures.run_training import over_checkpoints
from ntkdiag.report.light_colours import recolour
from ntkdiag.report.reported import Track
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.runs.run_reader import RunReader

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def run_plots(of: str, track: Track | None, run: RunReader | None) -> display.Plots:
    """The figures of a run by name, as methods."""
    figures = {**_figures_of_numbers(track), **RUN_FIGURES}

    def draw(figure: RunFigure, *, ax: "Axes | None" = None) -> "Axes":
        """One of them; what a monitor measured is read only now."""
        return draw_run_figure(figure, RunSubject.of(track, run), ax=ax)

    drawings = {name: functools.partial(draw, figure) for name, figure in figures.items()}
    return display.Plots(of, drawings)


def draw_run_figure(figure: RunFigure, subject: RunSubject, *, ax: "Axes | None" = None) -> "Axes":
    """Draw one figure of a run, with a legend where it has several curves."""
    if not figure.is_there(subject):
        there = [name for name, other in RUN_FIGURES.items() if other.is_there(subject)]
        raise errors.InvalidInputError(
            expected=f"a figure that this run has the numbers of: {', '.join(there)}",
            got=repr(figure.name),
            do=figure.needs,
        )
    ax = display.axes_to_draw_on(ax)
    figure.draw(subject, ax)
    figure.legend(ax)
    recolour(ax)
    return ax


def _figures_of_numbers(track: Track | None) -> dict[str, RunFigure]:
    """A figure of every number and matrix of the checkpoints."""
    if track is None:
        return {}
    figures: dict[str, RunFigure] = {}
    for name in track.names:
        text = name.replace("_", " ")
        figures[name] = LineFigure(
            name=name,
            page="",
            title=text[:1].upper() + text[1:],
            caption="",
            needs="It needs checkpoints of one layout.",
            curves=functools.partial(_curve_of, name),
        )
    for name in track.matrices:
        figures[name] = PairFigure(
            name=name,
            page="",
            title=f"{name.replace('_', ' ').capitalize()} of all pairs of checkpoints",
            caption="",
            needs="It needs two checkpoints of track.",
            matrix=name,
            bar=axis_words(name),
        )
    return figures


def _curve_of(name: str, subject: RunSubject) -> list[Curve]:
    """One number of the checkpoints."""
    curves = over_checkpoints(subject, {name: name.replace("_", " ")})
    return [curve for curve in curves if curve.y.ndim == 1]
