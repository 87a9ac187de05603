"""`comparison.plot`: the figures of the report."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ntkdiag import display, errors
from ntkdiag.report.figures.comparison_figures import COMPARISON_FIGURES, ComparisonFigure
from ntkdiag.report.light_colours import recolour
from ntkdiag.report.reported import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def comparison_plots(comparison: Comparison) -> display.Plots:
    """The figures of a comparison by name, as methods."""
    drawings: dict[str, Callable[..., Axes | Figure]] = {}
    for name, figure in COMPARISON_FIGURES.items():
        if figure.is_there(comparison):
            drawings[name] = functools.partial(_draw, figure, comparison)
    return display.Plots("Comparison", drawings)


def _draw(
    figure: ComparisonFigure, comparison: Comparison, *, ax: "Axes | None" = None
) -> "Axes | Figure":
    """Draw a figure of the report: one panel on the axes of the user, several on a new figure."""
    if figure.n_panels == 1:
        ax = display.axes_to_draw_on(ax)
        figure.draw(comparison, ax)
        recolour(ax)
        return ax
    if ax is not None:
        raise errors.InvalidInputError(
            argument="ax=...",
            expected="a figure of its own",
            got=f"axes for {figure.n_panels} panels",
            do="Leave ax out.",
        )
    canvas, axes = display.panels_to_draw_on(figure.size, **figure.panels)
    figure.draw(comparison, axes)
    for panel in axes:
        recolour(panel)
    return canvas
