"""A quantity of several runs over the steps: for each group its mean, a band, and its runs.

The vertical axis has room for the runs, whatever the band is. The interval of a mean of two runs is
12.7 standard errors to each side, which would flatten all curves of a figure: of few runs none is
drawn, and the thin lines of the runs are their spread.
"""

from typing import TYPE_CHECKING

import numpy as np

from ntkdiag import display, errors
from ntkdiag.quantities import axis_words
from ntkdiag.report.figures.style import step_axis
from ntkdiag.report.reported import Runs, SeedMean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST_IN_AN_INTERVAL = 4
ROOM = 0.05  # of the range of the runs, above and below them
BANDS = ("interval", "deviation", None)
# Told apart with every common kind of colour blindness, in this order (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
DASHES = ("-", "--", ":", "-.")  # of the groups beyond the colours


def draw_seed_curves(
    runs: Runs, name: str, *, ax: "Axes | None" = None, band: str | None = "interval"
) -> "Axes":
    """Draw a quantity, a colour for each group, and return the axes."""
    if band not in BANDS:
        raise errors.InvalidInputError(
            argument="band=...",
            expected='"interval", "deviation" or None',
            got=repr(band),
            do="The interval is that of the mean, the deviation that of single runs.",
        )
    series = runs.series(name)
    means = runs.mean(name)
    ax = display.axes_to_draw_on(ax)
    for place, (label, group) in enumerate(runs.groups.items()):
        colour = COLOURS[place % len(COLOURS)]
        dash = DASHES[place // len(COLOURS) % len(DASHES)]
        # Single runs are thin, at all of their steps.
        if len(group) > 1:
            for member in group:
                (line,) = ax.plot(member.steps, series[member.name], dash, color=colour)
                line.set(linewidth=0.6, alpha=0.45)
        mean = means[label]
        # An interval of the mean is that of n runs.
        text = f"{label} (n = {mean.n_runs})" if mean.n_runs > 1 else label
        ax.plot(mean.steps, mean.mean, dash, marker=".", color=colour, label=text)
        lower, upper = _band(mean, band)
        if np.isfinite(lower).any():
            ax.fill_between(mean.steps, lower, upper, color=colour, alpha=0.2, linewidth=0)
    _fit_to_runs(ax, np.concatenate(list(series.values())))
    steps = {step for of_run in runs.steps.values() for step in of_run}
    step_axis(ax, np.array(sorted(steps)))
    ax.set_xlabel("step")
    ax.set_ylabel(axis_words(name))
    ax.legend()
    return ax


def _band(mean: SeedMean, band: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Its lower and upper end at every step; NaN where there is none."""
    if band == "interval" and mean.n_runs >= FEWEST_IN_AN_INTERVAL:
        return mean.lower, mean.upper
    if band == "deviation":
        return mean.mean - mean.standard_deviation, mean.mean + mean.standard_deviation
    nowhere = np.full_like(mean.mean, np.nan)
    return nowhere, nowhere


def _fit_to_runs(ax: "Axes", values: np.ndarray) -> None:
    """Give the vertical axis the range of the runs; a band that is wider is cut off."""
    known = values[np.isfinite(values)]
    if known.size == 0:
        return
    lowest, highest = float(known.min()), float(known.max())
    # Runs that are all the same have the room of their own size.
    room = ROOM * (highest - lowest or abs(highest) or 1.0)
    ax.set_ylim(lowest - room, highest + room)
