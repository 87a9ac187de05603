"""`comparison.plot`: the figures of the report, and both spectra on axes of the user."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

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
    drawings["eigenvalues"] = functools.partial(draw_eigenvalues, comparison)
    for name, figure in COMPARISON_FIGURES.items():
        if figure.is_there(comparison):
            drawings[name] = functools.partial(_draw, figure, comparison)
    return display.Plots("Comparison", drawings)


def draw_eigenvalues(comparison: Comparison, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the resolved eigenvalues of both kernels over their index, with their noise floors."""
    ax = display.axes_to_draw_on(ax)
    for side in (comparison.a, comparison.b):
        spectrum = side.spectrum
        resolved = np.asarray(spectrum.eigenvalues)[: spectrum.rank]
        (line,) = ax.plot(np.arange(1, len(resolved) + 1), resolved, ".-", label=side.label)
        # Dashed, in the colour of its side: what lies below is rounding.
        ax.axhline(float(spectrum.noise_floor), color=line.get_color(), linestyle="--")
    # Without a resolved eigenvalue nothing positive is drawn, and a logarithm has no place.
    if comparison.a.spectrum.rank or comparison.b.spectrum.rank:
        ax.set_xscale("log")
        ax.set_yscale("log")
    ax.set_xlabel("index")
    ax.set_ylabel("eigenvalue")
    ax.set_title("Eigenvalues, with noise floors")
    ax.legend()
    return ax


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
            do="Leave ax out; comparison.plot.eigenvalues(ax=ax) is one panel.",
        )
    canvas, axes = display.panels_to_draw_on(figure.size(comparison), **figure.panels)
    figure.draw(comparison, axes)
    for panel in axes:
        recolour(panel)
    return canvas
