"""Curves and pairs of checkpoints on one axes, and what a page reads of what was drawn.

A drawing is some hundred pixels wide: more points than that are one above the other, and make a
page of many megabytes. Of a longer curve, stretches of equal length each keep

    their first and last point, their smallest and their largest value,

so that a spike of one step stays, and so do the ends. The legend and the table below a figure are
read from its axes, so that they hold what is drawn.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from ntkdiag.display import number
from ntkdiag.report.style import A_COLOUR, B_COLOUR, INK, OF_PAGE, logarithmic, step_axis

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

DASHED = (0, (4, 3))
# Colours that are told apart with every common kind of colour blindness.
PALETTE = (A_COLOUR, B_COLOUR, "#2f9e78", "#b05fb0", "#9a7b16", "#7a8494")
GREY = "#9aa0a8"  # of curves that no legend names
# From the first state to the last: none of them is lost on a light page, or on a dark one.
STATES = (A_COLOUR, "#9263c4", B_COLOUR)
MOST_DRAWN = 1200  # points of all curves of a figure together
FEWEST_DRAWN = 60  # of one curve, however many there are
LARGEST_DRAWN = 1e100  # limits of an axis overflow before its numbers do
MOST_MARKED = 40  # points of a curve, each with a marker
MOST_IN_LEGEND = 8  # of more names the first and the last
MOST_CELLS = 4000  # of a table
DIGITS_READ = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One line of a figure."""

    label: str  # its name in the legend, and in the table
    x: Float[np.ndarray, " n"]  # `[n]` where
    y: Float[np.ndarray, " n"]  # `[n]` values; NaN leaves a gap
    colour: str | None = None  # its colour; None takes the next one
    dashed: bool = False  # whether it is a level to compare with
    # `[n]` lower and `[n]` upper ends; None without.
    interval: tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]] | None = None


# Names of the columns, lines of text, and how many lines there would be, had it room for all.
ReadTable: TypeAlias = tuple[list[str], list[list[str]], int]


def draw_curves(
    ax: "Axes",
    curves: Sequence[Curve],
    y_name: str,
    *,
    x_name: str = "step",
    logarithmic_x: bool = False,
    logarithmic_y: bool = False,
    from_zero: bool = False,
) -> None:
    """Draw curves with their intervals; `from_zero` keeps a small change from looking large."""
    most = max(FEWEST_DRAWN, MOST_DRAWN // max(1, len(curves)))
    drawn = [_thinned(curve, most) for curve in curves]
    has_few_points = x_name == "step" and max(len(curve.x) for curve in drawn) <= MOST_MARKED
    for index, curve in enumerate(drawn):
        colour = curve.colour or PALETTE[index % len(PALETTE)]
        ax.plot(
            curve.x,
            curve.y,
            color=colour,
            linestyle=DASHED if curve.dashed else "-",
            marker="o" if has_few_points and not curve.dashed else None,
            label=f"_{curve.label}" if curve.colour == GREY else curve.label,
        )
        if curve.interval is not None:
            ax.fill_between(curve.x, *curve.interval, color=colour, alpha=0.15, linewidth=0)
    if any((curve.y > 0).any() for curve in drawn):
        logarithmic(ax, x=logarithmic_x, y=logarithmic_y)
    if x_name == "step":
        step_axis(ax, np.unique(np.concatenate([curve.x for curve in drawn])))
    if from_zero:
        ax.set_ylim(bottom=0)
    ax.set_xlabel(x_name)
    ax.set_ylabel(y_name)


def draw_level(ax: "Axes", value: float, name: str) -> None:
    """A value to compare with, as a dashed line."""
    style: Any = {"color": INK, "linestyle": DASHED, "linewidth": 1, "alpha": 0.6}
    ax.axhline(value, label=name, **style)


def draw_pairs(
    ax: "Axes",
    values: "xarray.DataArray",
    bar: str,
    *,
    rows: str = "step",
    columns: str = "step",
    largest: float | None = None,
) -> None:
    """Draw a number of all pairs of checkpoints, the first one at the lower left."""
    image = ax.imshow(
        values.values,
        vmin=0.0,
        vmax=largest,
        origin="lower",
        cmap="viridis",
        interpolation="nearest",
        aspect="auto",
    )
    # Of many steps, about a dozen are named.
    steps = values["step"].values
    indices = range(0, len(steps), -(-len(steps) // 14))
    names = [str(steps[index]) for index in indices]
    longest = max(map(len, names))
    ax.set_xticks(indices, names, rotation=90 if longest > 2 and len(names) > 6 else 0)
    ax.set_yticks(indices, names)
    ax.set_xlabel(columns)
    ax.set_ylabel(rows)
    ax.grid(False)
    ax.tick_params(length=0)
    of_colours = ax.figure.colorbar(image, ax=ax, pad=0.02)
    of_colours.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    of_colours.ax.tick_params(labelcolor=INK, length=0)
    of_colours.set_label(bar)


def add_legend(ax: "Axes") -> None:
    """Name what is drawn, where there are several names; of many, the first and the last."""
    lines = _named_lines(ax)
    if len(lines) > 1:
        ax.legend(lines, [str(line.get_label()) for line in lines])


def legend_of(ax: "Axes") -> list[tuple[str, str, bool]]:
    """The same names for a page, with the colour of each, and whether its line is dashed."""
    entries = []
    for line in _named_lines(ax):
        colour = str(line.get_color())
        entries.append((str(line.get_label()), OF_PAGE.get(colour, colour), line.is_dashed()))
    return entries


def table_of(ax: "Axes") -> ReadTable:
    """A line for each point on the horizontal axis, and a column for each curve."""
    columns: dict[str, dict[float, float]] = {}
    for line in ax.get_lines():
        label = str(line.get_label())
        if line.get_transform() != ax.transData:  # levels lie along the axes
            continue
        xy = np.asarray(line.get_xydata(), np.float64).tolist()
        columns[label.removeprefix("_")] = dict(xy)
    keys = sorted({x for column in columns.values() for x in column})
    lines = []
    for index in even_indices(len(keys), max(2, MOST_CELLS // max(1, len(columns)))):
        x = keys[index]
        lines.append([f"{x:g}", *(number(of.get(x), DIGITS_READ) for of in columns.values())])
    return [ax.get_xlabel(), *columns], lines, len(keys)


def table_of_pairs(values: "xarray.DataArray", ax: "Axes") -> ReadTable:
    """A number of all pairs of checkpoints, of some where there are very many."""
    steps = values["step"].values
    indices = even_indices(len(steps), int(MOST_CELLS**0.5))
    lines = []
    for row in indices:
        cells = [number(float(values.values[row, column]), DIGITS_READ) for column in indices]
        lines.append([str(steps[row]), *cells])
    head = [f"{ax.get_ylabel()} ↓ {ax.get_xlabel()} →", *map(str, steps[indices])]
    return head, lines, len(steps)


def colours_of_states(count: int) -> list[str]:
    """Colours from the first state of a training to the last one."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ramp = LinearSegmentedColormap.from_list("states", STATES)
    return [to_hex(ramp(position)) for position in np.linspace(0.0, 1.0, count)]


def even_indices(count: int, most: int) -> Int[np.ndarray, " indices"]:
    """At most so many evenly spaced indices, with the first and the last one."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _named_lines(ax: "Axes") -> list["Line2D"]:
    lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
    return lines if len(lines) <= MOST_IN_LEGEND else [lines[0], lines[-1]]


def _thinned(curve: Curve, most: int) -> Curve:
    """A curve with about so many of its points, without numbers that no axis has room for."""
    columns = []
    for values in (curve.y, *(curve.interval or ())):
        has_room = np.abs(values.astype(np.float64)) < LARGEST_DRAWN
        columns.append(np.where(has_room, values, np.nan))
    indices = _indices_to_draw(columns, most)
    y, *interval = (values[indices] for values in columns)
    ends = (interval[0], interval[1]) if interval else None
    return dataclasses.replace(curve, x=curve.x[indices], y=y, interval=ends)


def _indices_to_draw(
    columns: Sequence[Float[np.ndarray, " n"]], most: int
) -> Int[np.ndarray, " indices"]:
    """The indices of about `most` points of columns over one axis; all if there are no more."""
    n = len(columns[0])
    if n <= most:
        return np.arange(n)
    n_kept_of_each = 2 + 2 * len(columns)
    n_stretches = max(1, most // n_kept_of_each)
    edges = np.linspace(0, n, n_stretches + 1).astype(int).tolist()
    kept = {edge for begin, end in itertools.pairwise(edges) for edge in (begin, end - 1)}
    for column in columns:
        is_known = np.isfinite(column)
        lowest = np.where(is_known, column, np.inf)
        highest = np.where(is_known, column, -np.inf)
        for begin, end in itertools.pairwise(edges):
            kept.add(begin + int(np.argmin(lowest[begin:end])))
            kept.add(begin + int(np.argmax(highest[begin:end])))
    return np.array(sorted(kept))
