"""`comparison.plot`: the figures of the report."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ntkdiag import display
from ntkdiag.report.figures.comparison_figures import COMPARISON_FIGURES, ComparisonFigure
from ntkdiag.report.light_colours import recolour
from ntkdiag.report.reported import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def comparison_plots(comparison: Comparison) -> display.Plots:
    """The figures of a comparison by name, as methods."""
    drawings: dict[str, Callable[..., Axes]] = {}
    for name, figure in COMPARISON_FIGURES.items():
        if figure.is_there(comparison):
            drawings[name] = functools.partial(_draw, figure, comparison)
    return display.Plots("Comparison", drawings)


def _draw(figure: ComparisonFigure, comparison: Comparison, *, ax: "Axes | None" = None) -> "Axes":
    """Draw a figure of the report on the axes of the user, or on new ones."""
    ax = display.axes_to_draw_on(ax)
    figure.draw(comparison, ax)
    recolour(ax)
    return ax
