"""`comparison.plot`, `track.plot` and `run.plot`: the figures of the page, as methods.

A figure is drawn as it is on the page, in the colours of paper, with a legend. A number of the
checkpoints that the page has no figure of is drawn in the same way.
"""

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ntkdiag import display, errors
from ntkdiag.report.figures.drawing import add_legend
from ntkdiag.report.figures.registry import FIGURES, Figure, figure_of
from ntkdiag.report.paper_style import recolour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xarray import Dataset


def plots(
    of: str,
    dataset: "Callable[[], Dataset]",
    numbers: Iterable[str] = (),
    matrices: Iterable[str] = (),
) -> display.Plots:
    """The figures of a result by name, and those of its numbers and of its numbers of pairs."""
    figures = {name: figure_of(name, is_of_pairs=False) for name in numbers}
    figures |= {name: figure_of(name, is_of_pairs=True) for name in matrices}
    figures |= FIGURES
    drawings = {name: functools.partial(_draw, figure, dataset) for name, figure in figures.items()}
    return display.Plots(of, drawings)


def _draw(figure: Figure, dataset: "Callable[[], Dataset]", *, ax: "Axes | None" = None) -> "Axes":
    """Draw a figure on the axes of the user, or on new ones."""
    data = dataset()
    if not figure.is_there(data):
        there = [name for name, other in FIGURES.items() if other.is_there(data)]
        raise errors.InvalidInputError(
            expected=f"a figure whose numbers are there: {', '.join(there)}",
            got=repr(figure.name),
            do=figure.to_get,
        )
    ax = display.axes_to_draw_on(ax)
    figure.draw(data, ax)
    add_legend(ax)
    recolour(ax)
    return ax
